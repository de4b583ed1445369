#!/usr/bin/env python3
"""Compares `calla quantize SRC DST` with what mlx-lm makes of SRC on a CPU.

usage: compare_mlx_quantize.py SRC DST [--ids FILE --logits FILE]

Every tensor of mlx-lm's conversion must be in DST with the same shape, type and bytes, but for exact
ties: MLX's Metal kernel, which calla follows, rounds halves away from zero, MLX's CPU code to even.
A tie of edge/scale changes the scale of its group and so its codes; a tie of (w - bias)/scale
changes one code. Both are counted, and checked to be what the same f32 arithmetic gives with either
rounding; any other difference fails.

With --ids (whitespace-separated) and --logits (`calla logits --isa f32 -m DST`, f32 [T][V]) mlx-lm
runs DST in f32 and the top tokens are compared.

Needs: pip install "mlx[cpu]" mlx-lm numpy
"""
import argparse
import json
import struct
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)
from mlx.utils import tree_flatten  # noqa: E402
from mlx_lm.utils import load_model, quantize_model  # noqa: E402

F = np.float32


def read_tensors(directory):
    """name -> (dtype, array of raw elements) over all shards."""
    tensors = {}
    for path in sorted(Path(directory).glob("*.safetensors")):
        data = np.memmap(path, np.uint8, "r")
        n = struct.unpack("<Q", data[:8].tobytes())[0]
        for name, t in json.loads(data[8 : 8 + n].tobytes()).items():
            if name == "__metadata__":
                continue
            begin, end = t["data_offsets"]
            kind = {"BF16": np.uint16, "U32": np.uint32, "F32": np.uint32}[t["dtype"]]
            raw = np.frombuffer(data[8 + n + begin : 8 + n + end].tobytes(), kind)
            tensors[name] = (t["dtype"], raw.reshape(t["shape"]))
    return tensors


def raw(array):
    """An MLX array as (dtype, raw elements)."""
    name, kind = {
        mx.bfloat16: ("BF16", np.uint16),
        mx.uint32: ("U32", np.uint32),
        mx.float32: ("F32", np.uint32),
    }[array.dtype]
    return name, np.array(array.view(mx.uint16 if kind == np.uint16 else mx.uint32))


def away(x):
    whole = np.trunc(x)
    return whole + np.where(np.abs(x - whole) >= F(0.5), np.sign(x), F(0))


def bf16(x):
    u = x.astype(F).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def is_half(x):
    return np.abs(x - np.trunc(x)) == F(0.5)


def quantize(groups, bits, rounding):
    """groups [n][64] f32 -> codes, scales, biases, and where each rounding met a half."""
    n = F(2**bits - 1)
    low, high = groups.min(1), groups.max(1)
    scale = np.maximum((high - low) / n, F(1e-7))
    low_edge = np.abs(low) > np.abs(high)
    scale = np.where(low_edge, scale, -scale)
    edge = np.where(low_edge, low, high)
    ratio = edge / scale
    q0 = rounding(ratio)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(q0 == 0, scale, edge / q0).astype(F)
    bias = np.where(q0 == 0, F(0), edge)
    t = (groups - bias[:, None]) / scale[:, None]
    codes = np.clip(rounding(t), 0, n).astype(np.uint8)
    return codes, bf16(scale), bf16(bias), is_half(ratio), is_half(t)


def unpack(words, bits):
    """u32 words -> codes [n][64]"""
    data = np.ascontiguousarray(words).view(np.uint8).reshape(-1)
    if bits == 4:
        data = np.stack([data & 15, data >> 4], 1)
    return data.reshape(-1, 64)


def compare_matrix(weight, ours, mlx, bits, count, batch=1 << 20):
    """weight: bf16 bits of the source; ours, mlx: (words, scales, biases)."""
    words_per_group = 2 * bits
    sides = [(w.reshape(-1, words_per_group), s.reshape(-1), b.reshape(-1)) for w, s, b in (ours, mlx)]
    groups = weight.reshape(-1, 64)
    bad = 0
    for i in range(0, len(groups), batch):
        (w, s, b), (u, t, v) = [[part[i : i + batch] for part in side] for side in sides]
        at = np.flatnonzero((w != u).any(1) | (s != t) | (b != v))
        count["groups"] += len(w)
        count["codes"] += 64 * len(w)
        if len(at):
            values = (groups[i + at].astype(np.uint32) << 16).view(F)
            bad += explain(values, (w[at], s[at], b[at]), (u[at], t[at], v[at]), bits, count)
    return bad


def explain(values, ours, mlx, bits, count):
    """Groups that differ: counts the ties, returns how much is not explained by them."""
    bad, codes = 0, []
    for (words, scales, biases), rounding in ((ours, away), (mlx, np.rint)):
        c, s, b, half_scale, half_code = quantize(values, bits, rounding)
        codes.append(unpack(words, bits))
        bad += (codes[-1] != c).sum() + (scales != s).sum() + (biases != b).sum()
        if rounding is away:
            tied_scale, tied_code = half_scale, half_code
    differs = codes[0] != codes[1]
    tied_group = ours[1] != mlx[1]
    count["codes that differ, a tie of their own"] += (differs & ~tied_group[:, None]).sum()
    count["codes that differ with their group's scale"] += (differs & tied_group[:, None]).sum()
    count["groups whose scale differs, a tie"] += tied_group.sum()
    bad += (differs & ~tied_code & ~tied_group[:, None]).sum() + (tied_group & ~tied_scale).sum()
    return int(bad)


def compare_tensors(source, destination):
    model, config = load_model(Path(source))
    plain = {k: raw(v) for k, v in tree_flatten(model.parameters())}
    model, _ = quantize_model(model, config, 64, 4)
    expected = {k: raw(v) for k, v in tree_flatten(model.parameters())}
    found = read_tensors(destination)
    if found.keys() != expected.keys():
        sys.exit(f"different tensors: {sorted(found.keys() ^ expected.keys())[:8]}")
    count = {
        "groups": 0,
        "groups whose scale differs, a tie": 0,
        "codes": 0,
        "codes that differ, a tie of their own": 0,
        "codes that differ with their group's scale": 0,
    }
    bad = unquantized = 0
    for name, (dtype, array) in expected.items():
        if (found[name][0], found[name][1].shape) != (dtype, array.shape):
            sys.exit(f"{name}: {found[name][0]} {found[name][1].shape}, MLX has {dtype} {array.shape}")
        stem = name.rsplit(".", 1)[0]
        if stem + ".scales" not in expected:
            unquantized += 1
            bad += int((found[name][1] != array).sum())
        elif name.endswith(".weight"):
            bits = 32 * array.shape[-1] // (64 * expected[stem + ".scales"][1].shape[-1])
            triples = [[t[f"{stem}.{s}"][1] for s in ("weight", "scales", "biases")] for t in (found, expected)]
            bad += compare_matrix(plain[name][1], *triples, bits, count)
    print(f"{len(expected)} tensors, {unquantized} of them not quantized")
    for name, n in count.items():
        print(f"{name}: {n}")
    print(f"other differences: {bad}")
    return bad


def compare_logits(destination, ids_file, logits_file):
    ids = [int(x) for x in Path(ids_file).read_text().split()]
    model, _ = load_model(Path(destination))
    model.set_dtype(mx.float32)
    theirs = np.array(model(mx.array([ids])))[0]
    ours = np.fromfile(logits_file, "<f4").reshape(len(ids), -1)
    error = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
    same = int((ours.argmax(-1) == theirs.argmax(-1)).sum())
    print(f"mlx-lm in f32: relative error {error:.2e}, same top token at {same} of {len(ids)}")
    return len(ids) - same


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source")
    parser.add_argument("destination")
    parser.add_argument("--ids")
    parser.add_argument("--logits")
    args = parser.parse_args()
    bad = compare_tensors(args.source, args.destination)
    if args.ids:
        bad += compare_logits(args.destination, args.ids, args.logits)
    sys.exit(1 if bad else 0)


main()
