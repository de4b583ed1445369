#!/usr/bin/env python3
"""What Hugging Face's `tokenizers` makes of many strings, as goldens for the tests.

usage: make_tokenizer_goldens.py                        all that is in tests/data
       make_tokenizer_goldens.py TOKENIZER_DIR OUT      those of another tokenizer

In tests/data: tokenizer_tiny.jsonl, made with models/tiny; tokenizer_scripts/, a tokenizer trained
here on the strings themselves without cutting them into pieces, so that nearly any change of the
pieces changes ids, with its goldens; and tokenizer_small/, to be broken by tests. Lines of the
goldens:

  [text, ids]            text (a string, or [hex] where it is not UTF-8) and its ids
  [text, ids, old_ids]   the same, where the older pattern (no marks in words) gives other ids
  {"decode": ids, "text": text, "plain": text}
                         ids, their text, and their text without special tokens (if it differs)
"""
import json
import os
import random
import sys
import unicodedata

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
SPACES = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2003\u200a\u2028\u2029\u202f\u205f\u3000"
NEAR_SPACES = "\x1c\x1d\x1e\x1f\u180e\u200b\u2060\ufeff"
# Some of the letters (L), marks (M) and numbers (N) of Unicode 15 and 16.
NEWER = ("\u0897\u0cf3\u0ece\u1c89\u1c8a\ua7cb\ua7cd\ua7da\ua7dc\U000105c0\U000105f3\U00010d40\U00010d4a\U00010d69"
         "\U00010d6f\U00010ec2\U00010efc\U0001123f\U00011241\U00011380\U0001138b\U00011390\U000113b8\U000113c2\U000113d1"
         "\U000113e1\U000116d0\U00011bc0\U00011bf0\U00011f00\U00011f02\U00011f04\U00011f34\U00011f50\U00011f5a\U0001342f"
         "\U00013440\U00013460\U000143fa\U00016100\U0001611e\U00016130\U00016d40\U00016d70\U00018cff\U0001b132\U0001b155"
         "\U0001ccf0\U0001d2c0\U0001df25\U0001e030\U0001e08f\U0001e4d0\U0001e4ec\U0001e4f0\U0001e5d0\U0001e5ee\U0001e5f1"
         "\U0002b739\U0002ebf0\U0002ee5d\U00031350\U000323af")

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
# Tokens that contain and overlap each other; one that starts with a letter, one with several bytes.
SCRIPTS_ADDED = [("<|a|>", True), ("<|a|>b", True), ("<|a", False), ("|>b<", True), ("tok", False), ("中文", False)]

HAND = [
    "", " ", "  ", "\n", "Hello, world!", "Caffè già, perché l'AI è utile.", "中文测试：こんにちは。",
    "  one\t two\n\nthree  \n", "I'm 1234, we're coding.", 'def f(x: int) -> str:\n    return f"{x=}"\n',
    "👩\u200d💻 café e\u0301", "\u0301!I", "<|fim_prefix|>left<|fim_suffix|>right<|fim_middle|>", "<think>penso</think>",
    "<tool_call>get_weather</tool_call>", "<|audio_start|>omesso<|audio_end|>",
    "The quick brown fox jumps over the lazy dog.", "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Voix ambiguë d’un cœur qui, au zéphyr, préfère les jattes de kiwis.", "Съешь же ещё этих мягких французских булок.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία", "עטלף אבק נס דרך מזגן שהתפוצץ כי חם", "نص حكيم له سر قاطع وذو شأن عظيم",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा", "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า", "다람쥐 헌 쳇바퀴에 타고파", "いろはにほへと ちりぬるを",
    "Pijamalı hasta yağız şoföre çabucak güvendi.", "Příliš žluťoučký kůň úpěl ďábelské ódy", "யாமறிந்த மொழிகளிலே தமிழ்மொழி போல்",
    "ქართული ენა", "Հայերեն լեզու", "አማርኛ ቋንቋ", "ភាសាខ្មែរ", "မြန်မာဘာသာ", "བོད་སྐད་", "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ", "ᐃᓄᒃᑎᑐᑦ", "Tiếng Việt có dấu",
    "a\r\nb\r\n\r\nc\r\n", "x\r\r\ny", " \r\n \r\n x", "\n\n\n   \n x  \n\ny   ", "foo(bar)[baz]{qux};//\n\n\n", "!!!\n\n", " !!!\r\n\r\na",
    "\ttabbed\tword", "\u00a0nbsp\u00a0word", "-foo _bar .baz", "3.14159e-10 0x1F ½ ⅷ ² ①", "1,234,567.89 €", "٣٤٥ ३४५ ๓๔๕",
    "it's IT'S It'S we'Re they'LL i'd I'D you'Ve o'clock 'tis 's'", "it'\u017f it\u2019s '\u017ft 'ſ", "'re're 'm'm ''''",
    "a\x00b\x01c\x7fd\x80e\x9f", "\ufffd\ufffdx", "\u180ex y\u180e z", "e\u0301 E\u0301\u0323 o\u0323\u0302 q\u0307\u0323",
    "\u1100\u1161\u11a8 \uac00\u11a8 \u1112\u1161\u11ab", "\uc2f8\u11a7x", "\u212b \u2126 \u212a \u0340 \u0344 \u0374 \u037e \u0958", "A\u030a\u0323",
    "\u05d0\u05bc\u05b0", "\u0915\u093c", "\u0f71\u0f72\u0f74", "\u304b\u3099\u306f\u309a", "🇮🇹🇯🇵 1\ufe0f\u20e3 👍🏽 🏴\U000e0067\U000e0062\U000e007f",
    "👨\u200d👩\u200d👧\u200d👦 🏳\ufe0f\u200d🌈 ❤\ufe0f\u200d🔥", "\ufeffBOM", "a\u00adb", "\U0010ffff\U000f0000\ue000",
]


def words(rng):
    """Letters, marks and numbers of every script, grouped by the first word of their names."""
    scripts = {}
    for c in range(0x110000):
        s = chr(c)
        if unicodedata.category(s)[0] in "LMN":
            scripts.setdefault(unicodedata.name(s, "?").split(" ")[0].split("-")[0], []).append(s)
    for name in sorted(scripts):
        letters = scripts[name]
        for _ in range(6 if len(letters) > 3 else 1):
            yield "".join(rng.choice(letters) if rng.random() < 0.8 else rng.choice("  \n.,-'a1")
                          for _ in range(rng.randrange(2, 9)))


def marks(rng):
    points = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c))[0] == "M"]
    parts = sorted({p for c in range(0x110000) if not 0xAC00 <= c < 0xD7A4 for p in unicodedata.normalize("NFD", chr(c))
                    if unicodedata.normalize("NFD", chr(c)) != chr(c)})
    jamo = [chr(c) for c in range(0x1100, 0x1200)] + [chr(c) for c in range(0xAC00, 0xD7A4, 7)]
    for _ in range(500):
        pools = [points, parts, parts, jamo, list("aeioun .'")]
        yield "".join(rng.choice(rng.choice(pools)) for _ in range(rng.randrange(2, 8)))
    for n in (17, 40, 200):
        yield "a" + "".join(rng.choice(points[:200]) for _ in range(n))
    for s in NEWER:
        yield rng.choice(["a", " ", "1", "!", "\u0301"]) + s + rng.choice(["a", " ", "1", "!", "\u0301\u0323"]) + s
    for _ in range(120):
        yield "".join(rng.choice(rng.choice([NEWER, "ab1 .\u0301\u0323"])) for _ in range(rng.randrange(2, 7)))


def spaces(rng):
    for c in SPACES + NEAR_SPACES:
        yield from (c, c + c, f"a{c}b", f"a{c}{c}b", f"{c}1", f"!{c}!", f"{c}\n{c}", f"\n{c} x")
    for _ in range(500):
        pool = rng.choice([" \n", " \t\r\n", SPACES, SPACES + NEAR_SPACES])
        yield "".join(rng.choice(pool) if rng.random() < 0.8 else rng.choice("a1!é\u0301") for _ in range(rng.randrange(2, 14)))


def emoji(rng):
    base = [chr(c) for c in [*range(0x1F300, 0x1F650), *range(0x1F900, 0x1FA00), *range(0x2600, 0x27C0)]]
    for _ in range(250):
        yield "".join(rng.choice([rng.choice(base), "\u200d", "\ufe0f", chr(0x1F3FB + rng.randrange(5)),
                                  chr(0x1F1E6 + rng.randrange(26)), "\u20e3", " "]) for _ in range(rng.randrange(2, 8)))


def code(rng):
    bits = ["if", "for", "return", "(", ")", "{", "}", "[", "]", ";", ":", "->", "==", "!=", "//", "/*", "*/", "#", '"', "'",
            "\\n", "    ", "\t", "\n", "\r\n", "x", "y_1", "camelCase", "CONST", "0", "42", "3.5", "<", ">", "&&", "||", "$", "%d",
            "@", "~", "`", "...", "—", "'s", "'LL", " ", " "]
    for _ in range(400):
        yield "".join(rng.choice(bits) for _ in range(rng.randrange(3, 14)))


def added(rng, texts):
    pool = ["a", "wor", " ", "\n", "<", "|", ">", "<|", "|>", "im_start", "1", "é", "\u0301", "'s", "\xa0"]
    for t in texts:
        yield from (t, f"wo{t}rd", f" {t} ", f"{t}{t}", f"e{t}\u0301", f"\n{t}\n", t[:-1], t[1:], t[:3] + t, t.upper(),
                    f"'{t}s")
    for _ in range(500):
        out = []
        for _ in range(rng.randrange(2, 7)):
            t = rng.choice(texts)
            i, j = sorted((rng.randrange(len(t) + 1), rng.randrange(len(t) + 1)))
            out.append(rng.choice([t, t[i:j], t[:j], t[i:], rng.choice(pool), rng.choice(pool)]))
        yield "".join(out)


def broken(rng, texts):
    lead = b"\x80\xbf\xc0\xc2\xdf\xe0\xe1\xed\xef\xf0\xf1\xf4\xf5\xff\x9f\xa0\x90\x8f"
    for b in range(128, 256):
        yield b"a" + bytes([b]) + b"b"
    for _ in range(350):
        yield b"".join(rng.choice([bytes([rng.choice(lead)]), bytes([rng.randrange(256)]), "é".encode(), "中".encode()[:2],
                                   "😀".encode()[:rng.randrange(1, 4)], rng.choice(texts).encode(), b"a", b" "])
                       for _ in range(rng.randrange(2, 10)))


def sampled(rng, tokenizer, n):
    """Texts that the merges were learned from, more or less: runs of tokens."""
    for _ in range(n):
        yield tokenizer.decode([rng.randrange(tokenizer.get_vocab_size()) for _ in range(rng.randrange(2, 12))],
                               skip_special_tokens=False)


def long_pieces(rng, tokenizer):
    """Beyond the length up to which pieces are merged by scanning."""
    for n in (63, 64, 65, 66, 100, 700):
        yield from ("a" * n, " " * n, "\n" * n, "=" * n, "ab" * n)
    letters = [t for t in (tokenizer.decode([i]) for i in range(tokenizer.get_vocab_size())) if t.isalpha() and t.isascii()]
    for n in (20, 40, 80, 160):
        for _ in range(6):
            yield "".join(rng.choice(letters) for _ in range(n))
        yield "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(4 * n))
        yield "".join(rng.choice("etaoinst") for _ in range(4 * n))
        yield "".join(rng.choice("-=*#") for _ in range(4 * n))


def strings(tokenizer, texts):
    rng = random.Random(20260410)
    yield from HAND
    yield from (chr(c) for c in range(0x180))
    yield from (f"x{chr(c)}{chr(c)}" for c in range(0x20))
    for part in (words(rng), marks(rng), spaces(rng), emoji(rng), code(rng), added(rng, texts), broken(rng, texts),
                 sampled(rng, tokenizer, 900), long_pieces(rng, tokenizer)):
        yield from part


def load(folder, old_pattern):
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as file:
        data = json.load(file)
    split = data["pre_tokenizer"]["pretokenizers"][0]["pattern"]
    new = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    old = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    if new not in split["Regex"] and old not in split["Regex"]:
        raise SystemExit(f"an unknown pattern: {split['Regex']}")
    split["Regex"] = split["Regex"].replace(new, old) if old_pattern else split["Regex"].replace(old, new)
    tokenizer = Tokenizer.from_str(json.dumps(data))
    texts = {t["id"]: t["content"] for t in data["added_tokens"]}
    config = os.path.join(folder, "tokenizer_config.json")
    if os.path.exists(config):
        with open(config, encoding="utf-8") as file:
            extra = json.load(file).get("added_tokens_decoder", {})
        for key, t in sorted(extra.items(), key=lambda item: int(item[0])):
            token = AddedToken(t["content"], normalized=False, special=t["special"])
            (tokenizer.add_special_tokens if t["special"] else tokenizer.add_tokens)([token])
            assert tokenizer.token_to_id(t["content"]) == int(key)
            texts[int(key)] = t["content"]
    return tokenizer, [texts[i] for i in sorted(texts)]


def decodings(tokenizer):
    """Runs of ids whose bytes are often broken: single bytes, pieces of characters, any token."""
    rng = random.Random(8)
    n = tokenizer.get_vocab_size()
    for _ in range(400):
        low = rng.choice([256, 256, n, n])
        ids = [rng.randrange(n - 40, n) if rng.random() < 0.1 else rng.randrange(low) for _ in range(rng.randrange(1, 10))]
        yield {"decode": ids, "text": tokenizer.decode(ids, skip_special_tokens=False),
               "plain": tokenizer.decode(ids, skip_special_tokens=True)}


def train(folder):
    """Byte-level BPE over all strings, merged across whatever the pattern would cut."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=2400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    rng = random.Random(5)
    texts = [unicodedata.normalize("NFC", s) for part in (HAND * 3, words(rng), marks(rng), spaces(rng), emoji(rng), code(rng))
             for s in part if len(s) < 100]
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    merges = [m if isinstance(m, list) else m.split(" ") for m in model["merges"]]
    write_tokenizer(folder, model["vocab"], merges, SCRIPTS_ADDED)


def small(folder):
    """A tokenizer of which every entry can be read, for tests of broken files."""
    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for token in ("ab", "abc", "\u0120a", "bc", "bcbc", "cab"):
        vocab[token] = len(vocab)
    merges = [["a", "b"], ["ab", "c"], ["\u0120", "a"], ["b", "c"], ["bc", "bc"], ["c", "ab"]]
    write_tokenizer(folder, vocab, merges, [("<|endoftext|>", True), ("<|im_end|>", True), ("<t>", False)])


def write_tokenizer(folder, vocab, merges, added_tokens):
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    data = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": len(vocab) + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": special} for i, (t, special) in enumerate(added_tokens)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}, byte_level]},
        "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab, "merges": [" ".join(m) for m in merges]}}
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(data, file, ensure_ascii=True)
        file.write("\n")


def make(folder, out):
    """Writes the goldens of one tokenizer."""
    tokenizer, texts = load(folder, False)
    old, _ = load(folder, True)
    seen = set()
    n_old = 0

    def compact(value):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"
    with open(out, "w", encoding="utf-8", newline="\n") as file:
        for s in strings(tokenizer, texts):
            if s in seen:
                continue
            seen.add(s)
            text = s if isinstance(s, str) else s.decode("utf-8", "replace")
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            old_ids = old.encode(text, add_special_tokens=False).ids
            line = [s if isinstance(s, str) else [s.hex()], ids]
            if old_ids != ids:
                line.append(old_ids)
                n_old += 1
            file.write(compact(line))
        for d in decodings(tokenizer):
            if d["plain"] == d["text"]:
                del d["plain"]
            file.write(compact(d))
    print(f"{out}: {len(seen)} strings, {n_old} of them differ with the old pattern; {os.path.getsize(out)} bytes")


def main():
    if len(sys.argv) == 3:
        make(sys.argv[1], sys.argv[2])
        return
    data = os.path.join(HERE, "..", "tests", "data")
    small(os.path.join(data, "tokenizer_small"))
    train(os.path.join(data, "tokenizer_scripts"))
    make(os.path.join(data, "tokenizer_scripts"), os.path.join(data, "tokenizer_scripts", "goldens.jsonl"))
    make(os.path.join(HERE, "..", "models", "tiny"), os.path.join(data, "tokenizer_tiny.jsonl"))


if __name__ == "__main__":
    main()
