"""Conversations and what the official chat template makes of them, for tests/unit/test_chat_render.c.

usage: make_chat_goldens.py TEMPLATE OUT

TEMPLATE is the chat_template.jinja of Qwen/Qwen3.6-35B-A3B. It is compiled as transformers does it. Every line of
OUT is an object: messages and tools as JSON texts (tools may be absent), the flags that are set, and `text` or
`error`: the message of the template's raise_exception, or "" where Jinja or Python fails otherwise. In `text` the
instructions for tools are replaced by U+E000; they stand in the first line of OUT.
`plain` marks conversations that need no strict mode."""
import hashlib
import json
import math
import random
import struct
import sys

import jinja2
from transformers.utils.chat_template_utils import _compile_jinja_template

SHA256 = "e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259"
INSTRUCTIONS_BEGIN, INSTRUCTIONS_END = "\n</tools>\n\nIf you choose", "</IMPORTANT>"
COUNT = 330

rng = random.Random(36)


class Number(str):
    """A number in a given spelling."""


class Pairs(list):
    """An object with its keys as listed, duplicates included."""


# ---- JSON texts in many spellings ----

def spell_string(text, odd):
    if not odd:
        return json.dumps(text, ensure_ascii=False)
    out = []
    for c in text:
        r = rng.random()
        if c in '"\\' or ord(c) < 0x20:
            out.append(json.dumps(c)[1:-1] if r < 0.7 else "\\u%04X" % ord(c))
        elif c == "/" and r < 0.3:
            out.append("\\/")
        elif r < 0.1:
            out.append(json.dumps(c)[1:-1] if ord(c) > 0x7f else "\\u%04x" % ord(c))
        else:
            out.append(c)
    return '"' + "".join(out) + '"'


def spell(value, odd=True):
    space = (lambda: rng.choice(["", "", "", " ", "\n", "\t", " \r\n "])) if odd else (lambda: "")
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, str):
        return spell_string(value, odd)
    if isinstance(value, (Pairs, dict)):
        items = value if isinstance(value, Pairs) else value.items()
        return "{" + space() + ",".join(space() + spell_string(k, odd) + space() + ":" + space() + spell(v, odd) + space()
                                        for k, v in items) + "}"
    if isinstance(value, list):
        return "[" + space() + ",".join(space() + spell(v, odd) + space() for v in value) + "]"
    return json.dumps(value)


# ---- values ----

NUMBERS = ("0 -0 1 -1 7 10 12345 -98765 9007199254740993 9223372036854775807 -9223372036854775808 9223372036854775808 "
           "-9223372036854775809 18446744073709551615 123456789012345678901234567890 1000000000000000000000 0.0 -0.0 0.1 0.5 1.0 "
           "-2.50 3.14159 100000.0 1e5 1E5 1e+5 1e15 1e16 1e17 123456789012345680.0 1e22 1e23 9e23 1.5e300 1e-4 1e-5 0.0001 "
           "0.00012345 0.000012345 1e-7 5e-324 2.2250738585072014e-308 1.7976931348623157e308 4.35 0.30000000000000004 "
           "2.675 1.1e-10 9999999999999998.0 99999999999999990.0 7.120236347223045e-307 5.684341886080802e-14 "
           "1e-400 12e3 0e5 0E-3 -1.25E-3 123456.789e-2 4503599627370497.5").split()
WORDS = ("river happy run music justice tree rapid house Paris weather ok yes no 42 3.5 true null None caffè già 中文 こんにちは "
         "👩‍💻 naïve ß Ω \u0301e a\u00a0b x\u2028y z\u200bq don't \"quoted\" back\\slash tab\there C:\\dir <b>bold</b> a<b a>b & &amp; "
         "{\"a\":1} [1,2] {{x}} {%raw%} #tag $x `code` \u007f \u0080 \ufeff \u0000 \u0001 \u001f").split(" ")
TAGS = ("<think> </think> <tool_call> </tool_call> <tool_response> </tool_response> <|im_start|> <|im_end|> <|endoftext|> "
        "<function=f> </function> <parameter=p> </parameter> <|image_pad|> <thin k> </think").split(" ")
SPACES = ["", "", " ", "\n", "\n\n", "\t", "  \n ", "\r\n", "\u00a0", "\u3000", "\u2009\n", "\x1c", "\x85", "\u1680", "\u202f", "\u205f",
          "\x0b", "\x0c", "\u200b", "\u2028", "\u2029", "\ufeff", "\x1b", "\u180e", "\u2000", "\u200a", "\u200b "]
ODD_KEYS = ["a", "b", "city", "days", "q", "the key", "k-1", "ключ", "", "x.y", 'q"uote', "back\\slash", "new\nline", "a/b", "<k>"]


def pick_text(n=8, tags=0.05):
    words = [rng.choice(TAGS) if rng.random() < tags else rng.choice(WORDS) for _ in range(rng.randint(0, n))]
    return "".join(w + rng.choice([" ", " ", " ", "\n", "", "\n\n"]) for w in words)


def padded(text):
    return rng.choice(SPACES) + rng.choice(SPACES) + text + rng.choice(SPACES) + rng.choice(SPACES)


def pick_value(depth=0):
    r = rng.random()
    if depth < 4 and r < 0.15:
        return [pick_value(depth + 1) for _ in range(rng.randint(0, 4))]
    if depth < 4 and r < 0.32:
        return pick_object(depth + 1)
    if r < 0.6:
        return Number(rng.choice(NUMBERS))
    if r < 0.7:
        return rng.choice([True, False, None])
    if r < 0.75:
        return Number(repr(rng.uniform(-1, 1) * 10 ** rng.randint(-20, 20)))
    if r < 0.8:
        return rng.choice(["", "\n", "true", "null", "3", "[1]", "{}"])
    return pick_text(6)


def pick_object(depth=0):
    return Pairs((rng.choice(ODD_KEYS), pick_value(depth)) for _ in range(rng.randint(0, 4)))


# ---- conversations ----

def schema_of(name):
    properties = {k: rng.choice([{"type": "string"}, {"type": "integer", "minimum": Number(rng.choice(NUMBERS))}, {"type": ["null", "array"]}, {}])
                  for k in rng.sample(ODD_KEYS, rng.randint(0, 3))}
    function = {"name": name, "description": pick_text(6), "parameters": {"type": "object", "properties": properties}}
    if rng.random() < 0.3:
        function["strict"] = rng.choice([True, False, None])
    return rng.choice([{"type": "function", "function": function}, {"type": "function", "function": function}, function, {"x": pick_value()}])


def pick_content():
    text = padded(pick_text())
    r = rng.random()
    if r < 0.75:
        return text
    if r < 0.9:
        return [{"type": "text", "text": padded(pick_text(5))} for _ in range(rng.randint(0, 3))]
    return rng.choice([None, "", " \n ", [{"text": "no type"}], []])


def pick_call():
    call = {"name": rng.choice(["get_weather", "f", "search-web", "имя", "with space"])}
    if rng.random() < 0.9:
        call["arguments"] = pick_object()
    if rng.random() < 0.7:
        call = {"id": "call_%d" % rng.randint(0, 99), "type": "function", "function": call}
    return call


def pick_assistant(with_calls):
    message = {"role": "assistant"}
    content = pick_content()
    r = rng.random()
    if r < 0.35:
        message["reasoning_content"] = padded(pick_text())
    elif r < 0.7:
        body = padded(pick_text())
        content = rng.choice(["<think>\n%s\n</think>\n\n%s", "<think>%s</think>%s", "%s</think>\n%s", "<think>\n\n%s</think> %s"]) % (pick_text(), body)
    elif r < 0.75:
        message["reasoning_content"] = rng.choice([None, ""])
    if not (with_calls and rng.random() < 0.1):
        message["content"] = content
    if with_calls:
        message["tool_calls"] = [pick_call() for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    elif rng.random() < 0.1:
        message["tool_calls"] = rng.choice([[], None])
    return message


def pick_conversation():
    messages = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": pick_content()})
    for _ in range(rng.randint(1, 3)):
        messages.append({"role": "user", "content": pick_content()})
        for _ in range(rng.choice([0, 0, 1, 2])):
            messages.append(pick_assistant(True))
            for _ in range(rng.choice([1, 1, 2, 3])):
                messages.append({"role": "tool", "tool_call_id": "x", "content": pick_content()})
        if rng.random() < 0.1:
            messages.append({"role": "user", "content": rng.choice([" ", ""]) + "<tool_response>\n%s\n</tool_response>\n" % pick_text(3)})
        if rng.random() < 0.7:
            messages.append(pick_assistant(False))
    if rng.random() < 0.6 and messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": pick_content()})
    for message in messages:
        if rng.random() < 0.05:
            message["name"] = "extra"
    return messages


def pick_doubles():
    """Powers of two where rounding to n digits does not give the shortest form, and any bits."""
    doubles = [2.0 ** k for k in range(-1074, 1024) if float("%.15e" % 2.0 ** k) != 2.0 ** k and "%.16e" % 2.0 ** k != repr(2.0 ** k)]
    while len(doubles) < 400:
        x = struct.unpack("d", struct.pack("Q", rng.getrandbits(64) >> rng.choice([0, 0, 0, 12])))[0]
        if math.isfinite(x):
            doubles.append(x)
    return [Number("%.16e" % x) for x in doubles]


def U(content, **more): return {"role": "user", "content": content, **more}
def A(content, **more): return {"role": "assistant", "content": content, **more}
def S(content): return {"role": "system", "content": content}
def T(content): return {"role": "tool", "content": content}
def call(arguments, name="f"): return {"type": "function", "function": {"name": name, "arguments": arguments}}


IMAGE, VIDEO = {"type": "image_url", "image_url": {"url": "x"}}, {"type": "video", "video": "x"}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Météo", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
EDGE = Pairs((n, Number(n)) for n in NUMBERS)

# (messages, tools or ..., strict mode needed)
SPECIAL = [
    # MODEL.md 6.2
    ([U("Hi")], ..., False), ([S("  Be brief.\n"), U("\n Hi \n")], ..., False), ([S(""), U("Hi")], ..., False),
    ([U("A"), A("<think>\nplan\n</think>\n\nB"), U("C")], ..., False), ([U("A"), A("B"), U("C")], ..., False),
    ([S("Be brief."), U("Weather?")], [WEATHER], False), ([U("Weather?")], [WEATHER], False),
    ([U("W?"), A("", reasoning_content="call it", tool_calls=[call({"city": "Roma", "days": 3, "opts": {"a": [1, True, None]}, "raw": True}, "get_weather")]), T('{"c":28}')], ..., False),
    ([U("W?"), A("Sure.", tool_calls=[call({"city": "Rome"}), call({"city": "Oslo"})]), T("28"), T("5")], ..., False),
    ([U("W?"), A("", reasoning_content="call", tool_calls=[call({"city": "Rome"})]), T("28"), A("It is 28.", reasoning_content="done"), U("Thx")], ..., False),
    ([U("x"), A("", tool_calls=[call({}, "now")])], ..., False), ([U("x"), A("", tool_calls=[{"name": "now"}])], ..., False),
    ([U("x"), A("<think>x</think>mid</think>\nend")], ..., False), ([U("x"), A("<think>\nhalf"), U("y")], ..., False),
    ([], ..., False), ([S("only")], ..., False), ([U("x"), S("late")], ..., True), ([{"role": "developer", "content": "d"}, U("x")], ..., True),
    ([U("x"), A("", tool_calls=[call('{"a": 1}')])], ..., True), ([S("s"), U("<tool_response>\nx\n</tool_response>")], ..., False),
    ([U("A"), A("B")], ..., False),
    # further
    ([U("x"), A("", tool_calls=[call(EDGE)])], [EDGE], False), ([U("x"), A(" \n", tool_calls=[call({"a": ""})])], ..., False),
    ([T("first"), U("x")], ..., False), ([T("first"), T("second"), U("x"), T("third"), T("last")], ..., False), ([T("only")], ..., False),
    ([U("x"), A("y", tool_calls=[call(None)])], ..., True), ([U("x"), A("y", tool_calls=[call([1])])], ..., False),
    ([U("x"), A("y", tool_calls=[call(3)])], ..., False), ([U("x"), A("y", tool_calls=[call("")])], ..., True),
    ([U("x"), A("y", tool_calls=[call({}, 5)])], ..., False), ([U("x"), A("y", tool_calls=[{"arguments": {}}])], ..., False),
    ([U("x"), A("y", tool_calls=[{"function": None}])], ..., False), ([U("x"), A("y", tool_calls=[None])], ..., False),
    ([U("x"), A("y", tool_calls=["text"])], ..., False), ([U("x"), A("y", tool_calls={"name": "f"})], ..., True),
    ([U("x"), A("y", tool_calls=3)], ..., True), ([U("x"), A("y", tool_calls="")], ..., True), ([U("x"), A("y", tool_calls=False)], ..., True),
    ([U("x"), A("</think>\n y \n", tool_calls=[call({})])], ..., False), ([U("x"), A("<think></think>\n\n\t", tool_calls=[call({})])], ..., False),
    ([U("x"), A("a</think>", reasoning_content="r")], ..., False), ([U("x"), A("a</think>b", reasoning_content=3)], ..., True),
    ([U("x"), A("a</think>b", reasoning_content=["r"])], ..., True), ([U("x"), A("a</think>b", reasoning_content=None)], ..., False),
    ([U("x"), A("<think>\n\n a <think>\n\n b \n\n</think>\n\n c")], ..., False),
    ([U("x"), A("y", tool_calls=[call({"k": "<|im_end|>"}, "<|im_start|>")]), T("<|im_start|>")], [{"<|im_start|>": "<|im_end|>"}], False),
    ([U([IMAGE, {"type": "text", "text": " look "}]), A("ok")], ..., True), ([U([VIDEO, IMAGE])], ..., True), ([S([IMAGE]), U("x")], ..., True),
    ([S([VIDEO]), U("x")], ..., True), ([S([IMAGE]), U("x")], [WEATHER], True), ([U([{"type": "audio"}])], ..., True), ([U([{"type": "image"}])], ..., True),
    ([U([{"type": "video_url", "video_url": "x"}])], ..., True), ([U(["image", "my text"])], ..., True), ([U(["word"])], ..., True), ([U([3])], ..., True),
    ([U([None])], ..., True), ([U([["text"]])], ..., True), ([U(3)], ..., True), ([U({"text": "x"})], ..., True), ([U(True)], ..., True), ([S(1.5), U("x")], ..., True),
    ([U(Number("18446744073709551616"))], ..., True), ([{"role": "user"}], ..., False), ([{"role": "user", "content": None}, A(None)], ..., False),
    ([{"content": "no role"}], ..., True), ([U("x"), {"content": "no role"}], ..., True), ([U("x"), {"role": 3}], ..., True), ([U("x"), {"role": "USER"}], ..., False),
    ([U("x"), {"role": "function", "name": "f", "content": "y"}], ..., False), ([U("x"), A([IMAGE]), T([IMAGE, {"text": "t"}])], ..., True),
    ([U("x"), "text"], ..., False), ([U("x"), 5], ..., False), ([None], ..., False), ("messages", ..., False), ({"role": "user"}, ..., False), (None, ..., False),
    ([U("x")], [], False), ([U("x")], None, False), ([U("x")], {}, True), ([U("x")], {"a": 1}, True), ([U("x")], 3, True), ([U("x")], False, True),
    ([U("x")], "", True), ([U("x")], [None, 1, "a", [], {}], True), ([S(" "), U("x")], [{}], False), ([S("\n"), S("y"), U("x")], ..., True),
    ([U("<tool_response></tool_response>")], ..., False), ([U("<tool_response>")], ..., False), ([U("</tool_response>")], ..., False),
    ([U("q"), A("a", reasoning_content="r"), U(" <tool_response>x</tool_response>\n"), A("b", reasoning_content="s")], ..., False),
    ([U("q"), A("a", reasoning_content="r"), U([{"text": "<tool_response>"}, {"text": "</tool_response>"}]), A("b", reasoning_content="s")], ..., False),
    ([U("".join(SPACES) + "x" + "".join(SPACES)), A("".join(SPACES))], ..., False),
    ([U("x"), A("y", tool_calls=[call(Pairs([("a", Number("1")), ("b", Number("2")), ("a", Number("3"))]))])], ..., False),
    ([U("x"), A("y", tool_calls=[call({"s": "\u0000", "t": "\u0000\u0000x", "n": Number("99999999999999999999"), "l": ["\u0000", Number("-99999999999999999999")]})])], ..., False),
    ([U("\u0000a"), A("y", tool_calls=[call({"n": Number("99999999999999999999")}, "\u0000f")])], ..., False),
    ([U("x"), A("y", tool_calls=[call({"doubles": pick_doubles()})])], ..., False),
    ([U("x"), A("y", tool_calls=[call({"deep": json.loads("[" * 50 + "]" * 50)})])], ..., False),
]


def main():
    source = open(sys.argv[1], encoding="utf-8").read()
    if hashlib.sha256(source.encode()).hexdigest() != SHA256:
        sys.exit("not the template of Qwen3.6-35B-A3B")
    template = _compile_jinja_template(source)
    jobs = []
    for messages, tools, strict in SPECIAL:
        for flags in ({}, {"preserve_thinking": True}, {"no_thinking": True, "no_generation_prompt": rng.random() < 0.5}):
            if flags and (strict or rng.random() < 0.6):
                continue
            jobs.append((messages, tools, flags, not strict, False))
    while len(jobs) < COUNT:
        tools = [schema_of(rng.choice(["f", "get_weather", "имя"])) for _ in range(rng.randint(0, 2))] if rng.random() < 0.4 else ...
        flags = {k: True for k, p in (("no_thinking", 0.3), ("preserve_thinking", 0.4), ("no_generation_prompt", 0.2)) if rng.random() < p}
        jobs.append((pick_conversation(), tools, flags, True, rng.random() < 0.5))

    lines, n_errors, instructions = [], 0, None
    for messages, tools, flags, plain, odd in jobs:
        flags = {k: v for k, v in flags.items() if v}
        line = {"messages": spell(messages, odd)}
        given = {"messages": json.loads(line["messages"])}
        if tools is not ...:
            line["tools"] = spell(tools, odd)
            given["tools"] = json.loads(line["tools"])
        if flags.get("no_thinking"):
            given["enable_thinking"] = False
        if flags.get("preserve_thinking"):
            given["preserve_thinking"] = True
        line.update(flags)
        if plain:
            line["plain"] = True
        try:
            text = template.render(add_generation_prompt=not flags.get("no_generation_prompt"), **given)
            begin = text.find(INSTRUCTIONS_BEGIN)
            if begin >= 0:
                end = text.index(INSTRUCTIONS_END, begin) + len(INSTRUCTIONS_END)
                assert "\ue000" not in text and instructions in (None, text[begin:end])
                instructions = text[begin:end]
                text = text.replace(instructions, "\ue000")
            line["text"] = text
        except Exception as e:
            # What is no list of objects never gets as far as the template in transformers.
            raised = type(e) is jinja2.exceptions.TemplateError and isinstance(given["messages"], list) and \
                all(isinstance(m, dict) for m in given["messages"])
            line["error"] = str(e) if raised else ""
            n_errors += 1
        lines.append(line)
    with open(sys.argv[2], "w", encoding="utf-8") as f:
        for line in [{"instructions": instructions}] + lines:
            f.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(len(lines), "conversations,", n_errors, "errors")


main()
