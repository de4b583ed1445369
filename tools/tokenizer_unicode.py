#!/usr/bin/env python3
"""Prints the two tables of src/model/tokenizer_unicode.c.

What Hugging Face's `tokenizers` knows of Unicode is found by asking it: its pattern classes and its
NFC, character by character. Needs a Python whose unicodedata is not newer than the oldest PCRE2 to
be supported (Python 3.11: Unicode 14).
"""
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def members(pattern):
    """The code points that the pattern matches."""
    split = pre_tokenizers.Split(Regex(f"[{pattern}]+"), "removed")
    found = set()
    for start in range(0, len(POINTS), 4096):
        block = POINTS[start:start + 4096]
        rest = set()
        for _, (begin, end) in split.pre_tokenize_str("".join(map(chr, block))):
            rest.update(block[begin:end])
        found.update(set(block) - rest)
    return found


def ranges(points):
    out = []
    for c in sorted(points):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def newer_members():
    """[first, last, class] of the letters, marks and numbers that unicodedata does not know."""
    out = []
    for major in "LMN":
        new = {c for c in members(rf"\p{{{major}}}") if unicodedata.category(chr(c))[0] != major}
        assert all(unicodedata.category(chr(c)) == "Cn" for c in new), "a class has changed"
        out += [(first, last, major) for first, last in ranges(new)]
    return sorted(out)


def inert():
    """Characters that unicodedata's NFC moves or composes and that of `tokenizers` does not."""
    nfc = normalizers.NFC().normalize_str
    found = set()
    for c in POINTS:
        s = chr(c)
        if unicodedata.combining(s):
            probes = [f"a\u0334{s}", f"a{s}\u0334", f"a\u0345{s}", f"a{s}\u0345", f"a\u0301{s}"]
            if any(nfc(p) != unicodedata.normalize("NFC", p) for p in probes):
                found.add(c)
        parts = unicodedata.normalize("NFD", s)
        if parts != s and unicodedata.normalize("NFC", s) == s and nfc(parts) != s:
            found.update([c, *map(ord, parts)])
    return ranges(found)


def main():
    print("newer:")
    for first, last, major in newer_members():
        print(f"    {{0x{first:05x}, 0x{last:05x}, '{major}'}},")
    print("inert:")
    for first, last in inert():
        print(f"    {{0x{first:05x}, 0x{last:05x}, 0}},")


if __name__ == "__main__":
    main()
