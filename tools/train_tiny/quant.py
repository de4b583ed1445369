"""Affine quantisation, group 64, as `calla quantize` does it; and the names of what is quantised."""
import torch

GROUP = 64
# Rows of a matrix are quantised to 4 bits, except these two, which keep 8.
EIGHT_BITS = ("mlp.gate.weight", "mlp.shared_expert_gate.weight")


def is_matrix(name, tensor):
    """Is this tensor of the Hugging Face checkpoint a quantised matrix?"""
    return tensor.dim() >= 2 and "conv1d" not in name


def bits_of(name):
    return 8 if name.endswith(EIGHT_BITS) else 4


def quantise(weights, bits):
    """(codes, scale, bias) of weights[n, 64]; scale and bias rounded to bf16, all as f32."""
    w = weights.float()
    n = 2 ** bits - 1
    low, high = w.amin(-1, keepdim=True), w.amax(-1, keepdim=True)
    from_low = low.abs() > high.abs()
    scale = ((high - low) / n).clamp_min(1e-7)
    edge = torch.where(from_low, low, high)
    scale = torch.where(from_low, scale, -scale)
    q0 = round_away(edge / scale)
    at_zero = q0 == 0
    scale = torch.where(at_zero, scale, edge / torch.where(at_zero, torch.ones_like(q0), q0))
    bias = torch.where(at_zero, torch.zeros_like(edge), edge)
    codes = round_away((w - bias) / scale).clamp(0, n)
    return codes, scale.bfloat16().float(), bias.bfloat16().float()


def round_away(x):
    """To the nearest integer, halves away from zero."""
    return torch.trunc(x + torch.copysign(torch.full_like(x, 0.5), x))


def fake(weights, bits):
    """The values that the quantised form of bf16 weights[n, 64] stands for."""
    codes, scale, bias = quantise(weights.bfloat16(), bits)
    return codes * scale + bias


def pack(codes, bits):
    """Codes [rows, columns] as int32 words, lowest bits first."""
    per = 32 // bits
    c = codes.to(torch.int64).reshape(codes.shape[0], -1, per)
    words = (c << (bits * torch.arange(per))).sum(-1)
    return torch.where(words >= 2 ** 31, words - 2 ** 32, words).to(torch.int32)
