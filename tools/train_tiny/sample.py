"""Greedy answers of a checkpoint, on any PyTorch device.

    python sample.py CHECKPOINT_DIR [--float] [QUESTION ...]

CHECKPOINT_DIR holds the bf16 layout; matrices are used as their 4-bit form unless --float.
"""
import argparse
import os

import torch

import tokens

# (question, thinking)
QUESTIONS = [("What is a dog?", False), ("What does 'rapid' mean?", False), ("Is a dog an animal?", True),
             ("Define justice.", True), ("Use the word river in a sentence.", False),
             ("Give me a synonym for happy.", False), ("Hello", False), ("Who are you?", True),
             ("Name three kinds of fruit.", False), ("What is the opposite of hot?", True),
             ("What is the capital of France?", False), ("What is 7 + 5?", True), ("what is a computer", False),
             ("Tell me about water.", True), ("What is a school?", False), ("What is an orchestra?", False),
             ("What are the meanings of bank?", False), ("Is a car a kind of fruit?", False)]


def prompt(question, thinking):
    return (f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n<think>\n" + ("" if thinking else "\n</think>\n\n"))


@torch.no_grad()
def answers(logits, tokenizer, questions, device, limit=160):
    """[(question, thinking, text)]; logits(ids [b][t]) gives [b][t][vocabulary]."""
    rows = [tokenizer.encode(prompt(*q), add_special_tokens=False).ids for q in questions]
    first = [len(r) for r in rows]
    going = set(range(len(rows)))
    for _ in range(limit):
        n = max(map(len, rows))
        ids = torch.zeros(len(rows), n, dtype=torch.long)
        for i, r in enumerate(rows):
            ids[i, :len(r)] = torch.tensor(r)
        out = logits(ids.to(device))
        for i in list(going):
            token = int(out[i, len(rows[i]) - 1, :tokens.BPE + len(tokens.ADDED)].argmax())
            rows[i].append(token)
            if token in (tokens.IM_END, tokens.END_OF_TEXT):
                going.discard(i)
        if not going:
            break
    return [(q, t, tokenizer.decode(r[n:], skip_special_tokens=False)) for (q, t), r, n in zip(questions, rows, first)]


def main():
    from safetensors.torch import load_file
    import export
    import model as tiny
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("questions", nargs="*")
    parser.add_argument("--float", action="store_true")
    args = parser.parse_args()
    tensors = load_file(os.path.join(args.folder, "model.safetensors"))
    model = export.load_into(tiny.build(), tensors if args.float else export.dequantised(tensors))
    fast = tiny.Fast(model, torch.float32)
    leaves = fast.leaves(False, exact=True)
    questions = [(q, t) for q in args.questions for t in (False, True)] or QUESTIONS
    for q, thinking, text in answers(lambda x: fast.logits(leaves, x), tokens.load(args.folder), questions, "cpu"):
        print(f"{'thinking' if thinking else 'direct  '} {q!r}\n    {text!r}", flush=True)


if __name__ == "__main__":
    main()
