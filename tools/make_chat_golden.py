"""A golden conversation of models/tiny from Hugging Face's own parts: Jinja template, tokenizers,
transformers in float32. The form is that of tests/data/golden_35b_*.json.

    python tools/make_chat_golden.py models/tiny tests/data/golden_tiny_chat.json "What is a bridge?"

Needs what make_tiny_goldens.py needs, and jinja2."""

import json
import sys

import jinja2
import make_tiny_goldens as tiny
import torch
from tokenizers import Tokenizer

STEPS, TOP = 40, 16


def main(model_dir, path, prompt):
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda x: json.dumps(x, ensure_ascii=False)
    template = environment.from_string(open(f"{model_dir}/chat_template.jinja").read())
    text = template.render(
        messages=[{"role": "user", "content": prompt}], add_generation_prompt=True
    )
    ids = Tokenizer.from_file(f"{model_dir}/tokenizer.json").encode(text).ids
    model, steps, all_ids = tiny.load_model(model_dir), [], list(ids)
    with torch.no_grad():
        for _ in range(STEPS):
            logprobs = model(input_ids=torch.tensor([all_ids])).logits[0, -1].log_softmax(-1)
            best = logprobs.topk(TOP)
            top = [[int(i), float(v)] for v, i in zip(*best)]
            steps.append({"chosen": top[0][0], "topk": top})
            all_ids.append(top[0][0])
    golden = {
        "model": "models/tiny",
        "chat_template": True,
        "prompt": prompt,
        "prompt_token_ids": ids,
        "steps": steps,
    }
    json.dump(golden, open(path, "w"), separators=(",", ":"))
    print(Tokenizer.from_file(f"{model_dir}/tokenizer.json").decode(all_ids))


if __name__ == "__main__":
    main(*sys.argv[1:])
