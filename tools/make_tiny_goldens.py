"""Goldens of models/tiny from Hugging Face transformers, in float32 on a CPU.

    python tools/make_tiny_goldens.py models/tiny tests/data/tiny_goldens.safetensors

The 4-bit weights are dequantised exactly (scale * code + bias in float32), loaded into transformers'
Qwen3_5Moe text model, and run with eager attention over the first windows of heldout.txt, each from
an empty context. Per position of a window: the id, the most likely next token, its lead over the
second in nats, and -log p of the token that follows (0 at a window's last position).

Needs torch, transformers, tokenizers, safetensors, numpy."""

import json
import sys

import numpy as np
import torch
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeForCausalLM

WINDOW, WINDOWS = 1024, 4
ADD_ONE = ("input_layernorm", "post_attention_layernorm", "model.norm", "q_norm", "k_norm")


def load_tensors(path):
    """safetensors with bf16 as float32 (numpy has no bf16)."""
    data = open(path, "rb").read()
    n = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + n])
    tensors = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        raw = data[8 + n + t["data_offsets"][0] : 8 + n + t["data_offsets"][1]]
        if t["dtype"] == "BF16":
            bits = np.frombuffer(raw, np.uint16).astype(np.uint32) << 16
            tensors[name] = bits.view(np.float32).reshape(t["shape"])
        else:
            kind = {"U32": np.uint32, "F32": np.float32}[t["dtype"]]
            tensors[name] = np.frombuffer(raw, kind).reshape(t["shape"])
    return tensors


def dequantise(tensors, stem):
    codes, scales, biases = (tensors[stem + s] for s in (".weight", ".scales", ".biases"))
    bits = 32 * codes.shape[-1] // (scales.shape[-1] * 64)
    shifts = np.arange(32 // bits, dtype=np.uint32) * bits
    q = (codes[..., None] >> shifts) & np.uint32(2**bits - 1)
    q = q.reshape(*codes.shape[:-1], -1).astype(np.float32)
    return np.repeat(scales, 64, -1) * q + np.repeat(biases, 64, -1)


def hf_weights(tensors):
    """The MLX layout back to transformers' names (conversion steps in reverse)."""
    out, stems = {}, {n[: -len(".scales")] for n in tensors if n.endswith(".scales")}
    for name in tensors:
        stem = name.rsplit(".", 1)[0]
        if name.endswith((".scales", ".biases")):
            continue
        w = dequantise(tensors, stem) if stem in stems else tensors[name]
        if name.endswith("conv1d.weight"):
            w = w.transpose(0, 2, 1)
        if name.endswith(".weight") and any(a in name for a in ADD_ONE):
            w = w - 1
        out[name.removeprefix("language_model.")] = w
    for name in [n for n in out if ".switch_mlp.gate_proj" in n]:
        experts = name.split(".switch_mlp.")[0] + ".experts."
        gate, up = out.pop(name), out.pop(name.replace("gate_proj", "up_proj"))
        out[experts + "gate_up_proj"] = np.concatenate([gate, up], 1)
        out[experts + "down_proj"] = out.pop(name.replace("gate_proj", "down_proj"))
    return {n: torch.from_numpy(np.ascontiguousarray(w)) for n, w in out.items()}


def load_model(model_dir):
    config = json.load(open(f"{model_dir}/config.json"))["text_config"]
    config = Qwen3_5MoeTextConfig(**config, attn_implementation="eager")
    config.dtype = "float32"
    model = Qwen3_5MoeForCausalLM(config).float().eval()
    missing, unexpected = model.load_state_dict(
        hf_weights(load_tensors(f"{model_dir}/model.safetensors")), strict=False
    )
    assert not missing and not unexpected, (missing, unexpected)
    return model


def main(model_dir, path):
    model = load_model(model_dir)
    text = open(f"{model_dir}/heldout.txt", encoding="utf-8").read()
    ids = Tokenizer.from_file(f"{model_dir}/tokenizer.json").encode(text).ids
    ids = np.array(ids[: WINDOW * WINDOWS], np.int64).reshape(WINDOWS, WINDOW)
    top, margin, nll = [], [], []
    with torch.no_grad():
        for row in torch.from_numpy(ids):
            logits = model(input_ids=row[None]).logits[0].double()
            best = logits.topk(2)
            top.append(best.indices[:, 0])
            margin.append(best.values[:, 0] - best.values[:, 1])
            loss = torch.nn.functional.cross_entropy(logits[:-1], row[1:], reduction="none")
            nll.append(torch.cat([loss, loss.new_zeros(1)]))
    stack = lambda x, kind: torch.stack(x).numpy().astype(kind)
    save_file(
        {
            "ids": ids.astype(np.uint32),
            "top": stack(top, np.uint32),
            "margin": stack(margin, np.float32),
            "nll": stack(nll, np.float32),
        },
        path,
    )
    mean = float(sum(x.sum() for x in nll)) / (WINDOWS * (WINDOW - 1))
    print(f"{WINDOWS * WINDOW} positions, mean -log p {mean:.6f}, perplexity {np.exp(mean):.5f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
