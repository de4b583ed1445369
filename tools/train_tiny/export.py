"""Writes checkpoints: the Hugging Face bf16 layout, and from it the MLX affine 4-bit layout.

    python export.py --random DIR             a random-initialised bf16 checkpoint (no tokenizer)
    python export.py --mlx BF16_DIR DST_DIR   the 4-bit form, for comparison with `calla quantize`
"""
import argparse
import json
import os
import shutil

import torch
from safetensors.torch import load_file, save_file

import model as tiny
import quant
import tokens

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")


def is_shifted(name):
    """Norm weights that are stored as w and used as 1 + w."""
    return name.endswith("norm.weight") and "linear_attn" not in name


def to_bf16(model):
    """The tensors under the names of the real checkpoint, all bf16."""
    out = {}
    for name, p in model.state_dict().items():
        w = p.detach().float().cpu()
        if is_shifted(name):  # such that 1 + w is bf16 too, as the 4-bit layout stores that
            w = (1 + w).bfloat16().float() - 1
        new = name if name == "lm_head.weight" else name.replace("model.", "model.language_model.", 1)
        out[new] = w.bfloat16().contiguous()
    return out


def save_bf16(tensors, folder, tokenizer=None):
    os.makedirs(folder, exist_ok=True)
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    tokens.write_json(os.path.join(folder, "config.json"), tiny.config_json(tokens.END_OF_TEXT))
    for name in TOKENIZER_FILES if tokenizer else ():
        shutil.copy(os.path.join(tokenizer, name), os.path.join(folder, name))


def load_into(model, tensors):
    """Puts tensors of the bf16 layout into the transformers module."""
    back = {n.replace("model.language_model.", "model.", 1): w.float() for n, w in tensors.items()}
    model.load_state_dict(back, strict=True)
    return model


def dequantised(tensors):
    """The same tensors with every matrix replaced by what its 4- or 8-bit form stands for (f32)."""
    out = {}
    for name, w in tensors.items():
        if quant.is_matrix(name, w):
            out[name] = quant.fake(w.reshape(-1, quant.GROUP), quant.bits_of(name)).reshape(w.shape)
        else:
            out[name] = w.float()
    return out


def to_mlx(tensors, config):
    """(tensors, config) of the MLX layout."""
    out, special = {}, {}

    def put(stem, w, bits):
        codes, scale, bias = quant.quantise(w.reshape(-1, quant.GROUP), bits)
        lead = w.shape[:-1]
        out[stem + ".weight"] = quant.pack(codes.reshape(-1, w.shape[-1]), bits).view(torch.uint32).reshape(*lead, -1)
        out[stem + ".scales"] = scale.bfloat16().reshape(*lead, -1)
        out[stem + ".biases"] = bias.bfloat16().reshape(*lead, -1)
        if bits != 4:
            special[stem] = {"group_size": quant.GROUP, "bits": bits}

    for name, w in tensors.items():
        new = name.replace("model.language_model.", "language_model.model.", 1)
        new = "language_model." + new if new == "lm_head.weight" else new
        if new.endswith("mlp.experts.gate_up_proj"):
            stem, half = new.replace("experts.gate_up_proj", "switch_mlp."), w.shape[1] // 2
            put(stem + "gate_proj", w[:, :half], 4)
            put(stem + "up_proj", w[:, half:], 4)
        elif new.endswith("mlp.experts.down_proj"):
            put(new.replace("experts.down_proj", "switch_mlp.down_proj"), w, 4)
        elif new.endswith("conv1d.weight"):
            out[new] = w.transpose(1, 2).contiguous()
        elif quant.is_matrix(name, w):
            put(new[:-len(".weight")], w, quant.bits_of(name))
        else:
            out[new] = (1 + w.float()).bfloat16() if is_shifted(name) else w
    quantization = {"group_size": quant.GROUP, "bits": 4, "mode": "affine", **special}
    return out, {**config, "quantization": quantization, "quantization_config": quantization}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--random", metavar="DIR")
    parser.add_argument("--tokenizer", metavar="DIR")
    parser.add_argument("--mlx", nargs=2, metavar=("SRC", "DST"))
    args = parser.parse_args()
    if args.random:
        save_bf16(to_bf16(tiny.build()), args.random, args.tokenizer)
    if args.mlx:
        src, dst = args.mlx
        with open(os.path.join(src, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        tensors, config = to_mlx(load_file(os.path.join(src, "model.safetensors")), config)
        os.makedirs(dst, exist_ok=True)
        save_file(tensors, os.path.join(dst, "model.safetensors"), metadata={"format": "mlx"})
        tokens.write_json(os.path.join(dst, "config.json"), config)
        for name in TOKENIZER_FILES:
            if os.path.exists(os.path.join(src, name)):
                shutil.copy(os.path.join(src, name), os.path.join(dst, name))


if __name__ == "__main__":
    main()
