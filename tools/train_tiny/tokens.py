"""The tokenizer of models/tiny: byte-level BPE in the form of the official tokenizer.json."""
import json
import os
import shutil

import numpy as np

VOCAB = 4096          # rows of the embedding, the last of them padding
BPE = 4044            # tokens of the BPE model; the added tokens follow
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
ADDED = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
         "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
         "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>",
         "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>",
         "<think>", "</think>"]
EXTRA = ["<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>",
         "<|audio_pad|>"]
PLAIN = set(ADDED[14:])  # added, but not "special"
END_OF_TEXT, IM_START, IM_END = BPE, BPE + 1, BPE + 2


def added_token(id_, text):
    return {"id": id_, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": text not in PLAIN}


def make(docs, template, out, sample=60000):
    """Trains the BPE model on the documents and writes the tokenizer files."""
    from tokenizers import Tokenizer, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    level = dict(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), behavior="isolated", invert=False), pre_tokenizers.ByteLevel(**level)])
    trainer = trainers.BpeTrainer(vocab_size=BPE, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False, special_tokens=[])

    def spans():
        """The text between added tokens; tool preambles only now and then, they are all alike."""
        import re
        cut = re.compile("|".join(re.escape(t) for t in ADDED))
        n_tools = 0
        for doc in docs[:sample]:
            if doc.startswith("<|im_start|>system\n# Tools"):
                n_tools += 1
                if n_tools % 4:
                    continue
            yield from (s for s in cut.split(doc) if s)
    tokenizer.train_from_iterator(spans(), trainer)
    text = json.loads(tokenizer.to_str())
    model = text["model"]
    if len(model["vocab"]) != BPE:
        raise SystemExit(f"the BPE model has {len(model['vocab'])} tokens, expected {BPE}")
    byte_level = {"type": "ByteLevel", **level}
    official = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added_token(BPE + i, t) for i, t in enumerate(ADDED)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}, byte_level]},
        "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": model["vocab"],
                  "merges": [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]}}
    with open(os.path.join(out, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(official, file, ensure_ascii=False, indent=1)
        file.write("\n")
    shutil.copy(template, os.path.join(out, "chat_template.jinja"))
    with open(template, encoding="utf-8") as file:
        chat_template = file.read()
    every = {str(BPE + i): {k: v for k, v in added_token(BPE + i, t).items() if k != "id"}
             for i, t in enumerate(ADDED + EXTRA)}
    write_json(os.path.join(out, "tokenizer_config.json"), {
        "add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": every,
        "additional_special_tokens": [t for t in ADDED[1:14]],
        "bos_token": None, "chat_template": chat_template, "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>", "errors": "replace", "model_max_length": 262144, "pad_token": "<|endoftext|>",
        "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer", "unk_token": None})
    write_json(os.path.join(out, "generation_config.json"), {
        "bos_token_id": END_OF_TEXT, "do_sample": True, "eos_token_id": [IM_END, END_OF_TEXT],
        "pad_token_id": END_OF_TEXT, "temperature": 1.0, "top_k": 20, "top_p": 0.95,
        "transformers_version": "4.57.1"})


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, indent=2)
        file.write("\n")


def load(folder):
    from tokenizers import Tokenizer
    return Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))


def encode(folder, docs):
    """(ids of all documents one after the other, each ended by <|endoftext|>; their lengths)"""
    tokenizer = load(folder)
    ids, lengths = [], []
    for at in range(0, len(docs), 2000):
        for e in tokenizer.encode_batch(docs[at:at + 2000], add_special_tokens=False):
            ids.append(np.array(e.ids + [END_OF_TEXT], np.uint16))
            lengths.append(len(e.ids) + 1)
    return np.concatenate(ids), np.array(lengths, np.uint32)
