"""A fast forward pass over the parameters of transformers' Qwen3_5MoeForCausalLM.

The module is built, initialised and saved by transformers; only its computation is replaced
for training: all experts of a layer run as two dense products whose hidden rows are weighted
by the routing (zero for the experts not chosen), and the gated delta rule runs in chunks of
64 with one batched scan over the chunks. `check` compares the result with transformers' own.
"""
import math

import torch
import torch.nn.functional as F

import quant

CHUNK = 64
SHAPE = dict(vocab_size=4096, hidden_size=256, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2,
             head_dim=256, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=128,
             linear_value_head_dim=128, linear_conv_kernel_dim=4, num_experts=16, num_experts_per_tok=4,
             moe_intermediate_size=128, shared_expert_intermediate_size=128)


def config_json(bos=4044, eos=(4046, 4044)):
    """config.json with the keys of the real model's file."""
    layers = SHAPE["num_hidden_layers"]
    text = {
        "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True, "bos_token_id": bos,
        "dtype": "bfloat16", "eos_token_id": bos, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu",
        "hidden_size": 256, "initializer_range": 0.02,
        "layer_types": ["full_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(layers)],
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144, "model_type": "qwen3_5_moe_text", "moe_intermediate_size": 128,
        "mtp_num_hidden_layers": 0, "mtp_use_dedicated_embeddings": False, "num_attention_heads": 4,
        "num_experts": 16, "num_experts_per_tok": 4, "num_hidden_layers": layers, "num_key_value_heads": 2,
        "output_router_logits": False, "pad_token_id": None, "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06,
        "rope_parameters": {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
                            "rope_theta": 10000000, "rope_type": "default"},
        "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 128, "tie_word_embeddings": False,
        "use_cache": True, "vocab_size": SHAPE["vocab_size"]}
    return {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
            "text_config": text, "tie_word_embeddings": False, "transformers_version": "4.57.1"}


def build(seed=0, device="cpu"):
    """The transformers module with its own initialisation, but slower decays at the start."""
    from transformers import Qwen3_5MoeForCausalLM
    from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig
    torch.manual_seed(seed)
    text = dict(config_json()["text_config"])
    text.pop("dtype")
    model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**text)).float()
    for layer in model.model.layers:
        if hasattr(layer, "linear_attn"):
            mixer = layer.linear_attn
            with torch.no_grad():
                heads = mixer.A_log.numel()
                mixer.A_log.copy_(torch.empty(heads).uniform_(1, 16).log())
                step = torch.exp(torch.empty(heads).uniform_(math.log(0.001), math.log(0.1)))
                mixer.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))
    return model.to(device)


def rms(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + weight)


class Scan(torch.autograd.Function):
    """The recurrence over chunks. Per chunk c: N_c = U_c - W_c S_c, S_{c+1} = d_c S_c + K_c^T N_c.

    U, W, K: [n][m][64][128], d: [n][m][1][1]. Returns all S_c (before chunk c) and N_c.
    """

    @staticmethod
    def forward(ctx, u, w, k, d):
        n, m, _, dv = u.shape
        states = torch.empty(n, m, w.shape[-1], dv, dtype=u.dtype, device=u.device)
        new = torch.empty_like(u)
        state = torch.zeros_like(states[0])
        for c in range(n):
            states[c] = state
            torch.baddbmm(u[c], w[c], state, alpha=-1, out=new[c])
            if c + 1 < n:
                state = torch.baddbmm(state * d[c], k[c].transpose(1, 2), new[c])
        ctx.save_for_backward(w, k, d, states, new)
        return states, new

    @staticmethod
    def backward(ctx, g_states, g_new):
        w, k, d, states, new = ctx.saved_tensors
        n = w.shape[0]
        after = torch.empty_like(states)      # gradient of the state after each chunk
        total = torch.empty_like(new)
        g = torch.zeros_like(states[0])
        for c in range(n - 1, -1, -1):
            after[c] = g
            torch.baddbmm(g_new[c], k[c], g, out=total[c])
            g = torch.baddbmm(torch.addcmul(g_states[c], g, d[c]), w[c].transpose(1, 2), total[c], alpha=-1)
        g_w = -(total @ states.transpose(-1, -2))
        g_k = new @ after.transpose(-1, -2)
        g_d = (after * states).sum((-1, -2), keepdim=True)
        return total, g_w, g_k, g_d


def gdn_before(x, norm, w_qkv, w_z, w_ba, conv, a_log, dt_bias):
    """Projections, convolution and everything inside the chunks."""
    b, t, _ = x.shape
    n, hv = t // CHUNK, a_log.shape[0]
    hk = hv // 2
    u = rms(x, norm).to(w_qkv.dtype)
    c = F.pad(F.linear(u, w_qkv), (0, 0, 3, 0)).float()
    f = F.silu(sum(c[:, i:i + t] * conv[:, i] for i in range(4)))
    q, k, v = f.split([hk * 128, hk * 128, hv * 128], -1)

    def heads(y, h):
        return y.reshape(b, n, CHUNK, h, 128).permute(1, 0, 3, 2, 4)  # [n][b][h][64][128]
    q, k, v = heads(q, hk), heads(k, hk), heads(v, hv)
    q = q * torch.rsqrt((q * q).sum(-1, keepdim=True) + 1e-6) * 128 ** -0.5
    k = k * torch.rsqrt((k * k).sum(-1, keepdim=True) + 1e-6)
    ba = F.linear(u, w_ba).float().reshape(b, n, CHUNK, 2, hv).permute(3, 1, 0, 4, 2)  # [2][n][b][h][64]
    beta = torch.sigmoid(ba[0])[..., None]
    decay = -a_log.exp()[:, None] * F.softplus(ba[1] + dt_bias[:, None])
    total = decay.cumsum(-1)
    at = torch.arange(CHUNK, device=x.device)
    lower = at[:, None] >= at[None]
    gamma = (total[..., :, None] - total[..., None, :]).masked_fill(~lower, float("-inf")).exp()
    two = hv // hk
    kk = (k @ k.transpose(-1, -2)).repeat_interleave(two, 2)
    p = (q @ k.transpose(-1, -2)).repeat_interleave(two, 2) * gamma
    q, k = q.repeat_interleave(two, 2), k.repeat_interleave(two, 2)
    strict = at[:, None] > at[None]
    a = (beta * kk * gamma).masked_fill(~strict, 0)
    one = torch.eye(CHUNK, device=x.device, dtype=a.dtype)
    inverse = torch.linalg.solve_triangular(one + a.detach(), one.expand_as(a), upper=False, unitriangular=True)
    inverse = inverse - inverse @ (a - a.detach()) @ inverse  # the value of inverse, with its gradient
    grow = total.exp()[..., None]
    new = inverse @ (beta * v)
    w = inverse @ (beta * grow * k)
    keys = k * (total[..., -1:] - total).exp()[..., None]
    d = total[..., -1].exp()[..., None, None]
    z = F.linear(u, w_z)
    m = b * hv
    return (new.reshape(n, m, CHUNK, 128), w.reshape(n, m, CHUNK, 128), keys.reshape(n, m, CHUNK, 128),
            d.reshape(n, m, 1, 1), (q * grow).reshape(n, m, CHUNK, 128), p.reshape(n, m, CHUNK, CHUNK), z)


def gdn_after(x, states, new, q, p, z, norm, w_out):
    """The outputs of the recurrence, their gated norm and the output projection."""
    b, t, _ = x.shape
    o = q @ states + p @ new
    o = o.reshape(t // CHUNK, b, -1, CHUNK, 128).permute(1, 0, 3, 2, 4).reshape(b, t, -1, 128)
    o = o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + 1e-6) * norm
    o = (o.reshape(b, t, -1) * F.silu(z.float())).to(w_out.dtype)
    return x + F.linear(o, w_out)


def attention(x, norm, w_q, w_k, w_v, w_o, q_norm, k_norm, cos, sin):
    b, t, _ = x.shape
    u = rms(x, norm).to(w_q.dtype)
    q, gate = F.linear(u, w_q).reshape(b, t, -1, 2, 256).unbind(3)
    k = F.linear(u, w_k).reshape(b, t, -1, 256)
    v = F.linear(u, w_v).reshape(b, t, -1, 256)

    def turn(y):
        y1, y2, rest = y[..., :32], y[..., 32:64], y[..., 64:]
        c, s = cos[:t, None], sin[:t, None]
        return torch.cat([y1 * c - y2 * s, y2 * c + y1 * s, rest], -1).to(w_q.dtype).transpose(1, 2)
    q, k = turn(rms(q.float(), q_norm)), turn(rms(k.float(), k_norm))
    n = q.shape[1] // k.shape[1]
    o = F.scaled_dot_product_attention(q, k.repeat_interleave(n, 1), v.transpose(1, 2).repeat_interleave(n, 1), is_causal=True)
    o = o.transpose(1, 2) * torch.sigmoid(gate.float())
    return x + F.linear(o.reshape(b, t, -1).to(w_o.dtype), w_o)


def moe(x, norm, router, w_in, w_down, s_gate, s_up, s_down, s_mix, top_k):
    """All experts at once. Also the load-balancing loss of the layer."""
    b, t, d = x.shape
    u32 = rms(x, norm).reshape(b * t, d)
    u = u32.to(w_in.dtype)
    probability = F.linear(u32, router).softmax(-1)
    best, which = probability.topk(top_k, -1)
    weight = torch.zeros_like(probability).scatter(1, which, best / best.sum(-1, keepdim=True))
    e = router.shape[0]
    gate, up = F.linear(u, w_in.reshape(-1, d)).reshape(b * t, e, 2, -1).unbind(2)
    h = F.silu(gate.float()) * up * weight[..., None]
    y = F.linear(h.to(u.dtype).reshape(b * t, -1), w_down.permute(1, 0, 2).reshape(d, -1))
    shared = F.linear((F.silu(F.linear(u, s_gate).float()) * F.linear(u, s_up)).to(u.dtype), s_down)
    y = y + torch.sigmoid(F.linear(u32, s_mix)) * shared
    used = (weight > 0).float().mean(0)
    balance = e / top_k * (used * probability.mean(0)).sum()
    return x + y.reshape(b, t, d), balance


def loss_of(x, norm, head, labels):
    """Mean cross-entropy over the labels that are not -100."""
    logits = F.linear(rms(x, norm).to(head.dtype), head).float()
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=-100)


class Fast:
    """The forward pass on weights that `leaves` prepares from the module's parameters."""

    def __init__(self, model, dtype=torch.bfloat16, compiled=False):
        self.model, self.dtype = model, dtype
        self.params = dict(model.named_parameters())
        self.matrices = {8: [], 4: []}
        for name, p in self.params.items():
            if quant.is_matrix(name, p):
                self.matrices[quant.bits_of(name)].append(name)
        wrap = (lambda f: torch.compile(f, dynamic=False)) if compiled else (lambda f: f)
        self.before, self.after, self.attention, self.moe, self.loss, self.fake = map(
            wrap, (gdn_before, gdn_after, attention, moe, loss_of, quant.fake))
        freq = 1.0 / (10000000 ** (torch.arange(0, 64, 2, dtype=torch.float) / 64))
        angle = torch.arange(8192).float()[:, None] * freq
        device = next(model.parameters()).device
        self.cos, self.sin = angle.cos().to(device), angle.sin().to(device)
        self.top_k = SHAPE["num_experts_per_tok"]

    @torch.no_grad()
    def leaves(self, quantised, exact=False):
        """Weights to compute with: rounded to bf16, or to what the quantised file holds.

        Gradients of these leaves count as gradients of the parameters (straight through).
        """
        out = {}
        for bits, names in self.matrices.items():
            flat = torch.cat([self.params[n].reshape(-1, quant.GROUP) for n in names])
            if quantised:
                flat = self.fake(flat, bits)
            flat = flat.float() if bits == 8 or exact else flat.to(self.dtype)
            for n, part in zip(names, flat.split([self.params[n].numel() // quant.GROUP for n in names])):
                out[n] = part.reshape(self.params[n].shape)
        for name, p in self.params.items():
            if name in out:
                continue
            if exact:
                out[name] = p.detach().clone()
            elif name.endswith("norm.weight") and "linear_attn" not in name:  # stored as bf16(1 + w)
                out[name] = (1 + p).bfloat16().float() - 1
            else:
                out[name] = p.bfloat16().float()
        return {n: w.detach().requires_grad_() for n, w in out.items()}

    def hidden(self, leaves, ids):
        """The residual stream after the last layer, [b][t][d] f32, and the balance loss."""
        x = F.embedding(ids, leaves["model.embed_tokens.weight"]).float()
        balance = 0
        for i, kind in enumerate(self.model.config.layer_types):
            get = lambda name: leaves[f"model.layers.{i}.{name}"]
            if kind == "linear_attention":
                m = lambda name: get("linear_attn." + name)
                u, w, k, d, q, p, z = self.before(x, get("input_layernorm.weight"), m("in_proj_qkv.weight"), m("in_proj_z.weight"),
                                                  torch.cat([m("in_proj_b.weight"), m("in_proj_a.weight")]),
                                                  m("conv1d.weight").squeeze(1), m("A_log"), m("dt_bias"))
                states, new = Scan.apply(u, w, k, d)
                x = self.after(x, states, new, q, p, z, m("norm.weight"), m("out_proj.weight"))
            else:
                m = lambda name: get(f"self_attn.{name}.weight")
                x = self.attention(x, get("input_layernorm.weight"), m("q_proj"), m("k_proj"), m("v_proj"), m("o_proj"),
                                   m("q_norm"), m("k_norm"), self.cos, self.sin)
            m = lambda name: get("mlp." + name)
            x, b = self.moe(x, get("post_attention_layernorm.weight"), m("gate.weight"), m("experts.gate_up_proj"),
                            m("experts.down_proj"), m("shared_expert.gate_proj.weight"), m("shared_expert.up_proj.weight"),
                            m("shared_expert.down_proj.weight"), m("shared_expert_gate.weight"), self.top_k)
            balance = balance + b
        return x, balance / len(self.model.config.layer_types)

    def training_loss(self, leaves, ids, labels):
        x, balance = self.hidden(leaves, ids)
        return self.loss(x, leaves["model.norm.weight"], leaves["lm_head.weight"], labels), balance

    @torch.no_grad()
    def logits(self, leaves, ids):
        """Logits of every position, f32; any length (padded to whole chunks)."""
        t = ids.shape[1]
        x, _ = self.hidden(leaves, F.pad(ids, (0, -t % CHUNK)))
        x = rms(x[:, :t], leaves["model.norm.weight"])
        return F.linear(x.to(leaves["lm_head.weight"].dtype), leaves["lm_head.weight"]).float()


@torch.no_grad()
def check(model, ids):
    """Largest relative difference between our logits and transformers', all in float32."""
    saved = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    model.config._experts_implementation = "eager"
    fast = Fast(model, torch.float32)
    ours = fast.logits(fast.leaves(False, exact=True), ids)
    theirs = model(input_ids=ids).logits.float()
    torch.set_float32_matmul_precision(saved)
    return ((ours - theirs).norm() / theirs.norm()).item(), ((ours - theirs).abs().max() / theirs.abs().max()).item()
