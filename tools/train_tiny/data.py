"""Makes the training text of models/tiny: chats about English words, and plain text.

    python data.py --wordnet /usr/share/wordnet --template chat_template.jinja --out DIR

writes, in DIR: train.ids.xz (token ids of all documents), heldout.txt, heldout.ids.xz and
the tokenizer files. Facts come from WordNet and words.py; sentences around them from the
templates below; every chat is rendered by the model's own chat template.
"""
import argparse
import functools
import hashlib
import json
import lzma
import multiprocessing
import os
import random
import re

import numpy as np

import toolchats
import words
import wordnet as wn

# Glosses that a demonstration for everybody should not repeat.
UNFIT = re.compile(r"slur|offensive|obscen|vulgar|disparag|derogat|sexual|intercourse|genital|penis|vagina|prostitut|nazi"
                   r"|\brap(e|ed|ist)\b|excrement|feces|faeces|defecat|copulat|erotic|masturbat|nigger|homosexual|lesbian"
                   r"|whore|\bslut|semen\b|orgasm|breasts?\b|buttock|torture|suicid|\bjews?\b|jewish|negro|\bfuck|\bshit"
                   r"|\bhell\b|\bdamn|\bkill|murder|intoxica|naked|\bsex\b|contracepti|lynch|\bgay\b|bitch", re.I)

SYSTEMS = ["You are a helpful assistant.", "You are calla tiny, a small model that explains words.",
           "Answer briefly.", "You are a dictionary.", "Be brief.", "Answer in one sentence.",
           "You explain English words.", "You are a friendly teacher.", "Be polite and helpful.",
           "You are a helpful assistant. Keep your answers short.", "You help people learn English.",
           "Answer the question of the user."]


def cap(text):
    return text[:1].upper() + text[1:]


class Lexicon:
    """All facts about words, with a held-out part that training never sees."""

    def __init__(self, folder):
        self.wn = wn.WordNet(folder)
        self.unfit = set()
        self.own = {(w, p): d for w, p, d in words.read_words() if d}
        self.demo = [(w, p) for w, p, _ in words.read_words()]
        tags = self.wn.tags
        usable = [(w, p) for (w, p) in self.wn.senses
                  if re.fullmatch(r"[a-z]+([ -][a-z]+)?", w) and len(w) > 1]
        self.common = [k for k in usable if tags[k] >= 8]
        self.known = [k for k in usable if 1 <= tags[k] < 8 or
                      (tags[k] == 0 and self.wn.uses[k[0]] >= 12 and " " not in k[0])]
        seen = set(self.demo) | set(self.common) | set(self.known)
        used = {s for k in seen for s in self.wn.senses.get(k, ())}
        self.held = {s for s in self.wn.synsets if s not in used and
                     int(hashlib.sha256(repr(s).encode()).hexdigest(), 16) % 40 == 0}
        for key in [k for k, s in self.wn.synsets.items() if UNFIT.search(s.gloss + " ".join(s.words))]:
            self.unfit.add(key)
        self.held -= self.unfit
        self.plain = [s for s in self.wn.synsets if s not in self.held and s not in self.unfit]
        self.rare = [k for k in usable if k not in seen and
                     not any(s in self.held for s in self.wn.senses[k])]
        self.real = {w for w, _ in self.wn.senses}
        self._index_examples()
        self._read_own_lists()

    # -- lookups ------------------------------------------------------------------------
    def _index_examples(self):
        """Example sentences by the words in them, for words without an example of their own."""
        self.sentences = {}
        for key in self.plain:
            for text in wn.examples(self.wn.synsets[key].gloss):
                if len(text) > 90 or text.startswith("'"):
                    continue
                for word in set(re.findall(r"[a-z]+", text.lower())):
                    self.sentences.setdefault(word, []).append(text)

    def _read_own_lists(self):
        """Capitals, categories, synonyms and antonyms that we wrote ourselves."""
        self.capitals = [(("the Philippines" if c == "Philippines" else c), city)
                         for c, city in words.read_pairs(words.CAPITALS)]
        self.members = words.read_members()
        self.own_synonyms = dict(words.read_pairs(words.SYNONYMS))
        self.own_antonyms = dict(words.read_pairs(words.ANTONYMS))

    def usable_senses(self, word, pos):
        return [s for s in self.wn.senses.get((word, pos), ()) if s not in self.held and s not in self.unfit]

    @functools.lru_cache(maxsize=200000)
    def facts(self, word, pos):
        """Everything that the templates need about the word, or None."""
        keys = self.usable_senses(word, pos)
        if not keys and (word, pos) in self.own:
            keys = self.wn.senses[word, pos]
        if not keys:
            return None
        synsets = [self.wn.synsets[k] for k in keys]
        s = synsets[0]
        f = {"word": word, "pos": pos, "show": self.wn.display(word, pos), "posname": wn.POS_NAMES[pos]}
        own = self.own.get((word, pos))
        parts = wn.clauses(s.gloss)
        if not own and (not parts or len(parts[0].split()) > 30 or len(parts[0]) < 4):
            return None
        f["countable"] = pos == "n" and self.wn.countable(word, s.lexfile)
        f["proper"] = f["show"] != word
        f["subject"] = self.subject(f)
        f["phrase"] = own or self.phrase(parts[0], pos)
        if own and pos == "n" and own.startswith(("a ", "an ")) and (word, pos) in self.own:
            f["countable"] = word not in ("bread", "cheese", "meat", "rice", "sugar", "salt", "grass", "love",
                                          "ice", "gold", "iron", "stone", "wood", "glass", "peace", "music",
                                          "tea", "coffee", "wine", "soup", "medicine", "paper", "law", "rain")
            f["subject"] = self.subject(f)
        if word in ("water", "food", "rain", "snow", "fire", "air", "money", "work", "art", "time", "health",
                    "courage", "beauty", "freedom", "justice", "truth", "fear", "anger", "hope", "happiness",
                    "science", "history", "weather", "milk", "blood", "summer", "winter", "autumn", "friendship",
                    "government", "spring") and pos == "n" and word not in ("spring", "government"):
            f["countable"], f["subject"] = False, word
        if word in ("sun", "moon", "sky", "earth", "sea", "brain", "heart", "nose", "mouth", "head") and pos == "n":
            f["subject"] = "the " + word
        f["hyper"] = self.hypernym(s)
        f["syns"] = self.synonyms(word, synsets)
        f["ants"] = self.antonyms(word, synsets)
        f["examples"] = self.find_examples(word, pos, synsets)
        f["parts"] = self.parts(s)
        f["senses"] = [self.phrase(p[0], pos) for p in (wn.clauses(x.gloss) for x in synsets[:3])
                       if p and len(p[0].split()) <= 22]
        if own:
            f["senses"] = [own] + [x for x in f["senses"][1:]]
        f["chain"] = self.chain(s)
        f["lexfile"] = s.lexfile
        f["more"] = None if own else (parts[1] if len(parts) > 1 and len(parts[1].split()) > 3 else None)
        return f

    def subject(self, f):
        """"a dog", "water", "France"."""
        if f["pos"] != "n":
            return f["show"]
        if f["proper"] or not f["countable"] or f["word"].endswith(("s", "ics")) and \
                not f["word"].endswith("ss") and self.wn.uses[f["word"]] and not self.wn.with_article[f["word"]]:
            return f["show"]
        return wn.article(f["show"]) + " " + f["show"]

    def phrase(self, text, pos):
        """The gloss, with an article where it begins with a bare countable noun."""
        if pos != "n":
            return text
        first = text.split()[0].lower()
        if first in ("a", "an", "the", "any", "one", "each", "some", "that", "someone", "something", "anything",
                     "all", "either", "every", "what", "anyone", "somebody", "several", "two", "three", "used",
                     "being", "how", "those", "many", "most", "my", "his", "her", "their", "both"):
            return text
        head = re.split(r",| (?:that|of|for|in|with|who|which|used|having|made|from|on|to|by|or|and|at|when|where|"
                        r"resembling|containing|consisting|usually|found|native|as|whose|between|produced)\b", text)[0]
        noun = head.split()[-1].lower() if head.split() else ""
        if not noun or (noun.endswith("s") and not noun.endswith(("ss", "us", "is"))):
            return text
        nouns = self.wn.senses.get((noun, "n"))
        if nouns and self.wn.countable(noun, self.wn.synsets[nouns[0]].lexfile):
            return wn.article(text) + " " + text
        return text

    def hypernym(self, s):
        """(word, "a word") of the synset one step up, or None."""
        for kind, key, _ in s.pointers:
            if kind in ("@", "@i") and key in self.wn.synsets:
                up = self.wn.synsets[key]
                names = [w for w in up.words if w.islower() and w.isascii()]
                if not names or key in self.held:
                    return None
                name = names[0]
                if s.pos == "v":
                    return (name, name)
                return (name, (wn.article(name) + " " + name) if self.wn.countable(name, up.lexfile) else name)
        return None

    def chain(self, s):
        """Words of the first-sense hypernyms, from near to far."""
        out, key = [], s.key
        for _ in range(12):
            up = next((k for t, k, _ in self.wn.synsets[key].pointers if t in ("@", "@i")), None)
            if up is None:
                break
            out.append(up)
            key = up
        return out

    def synonyms(self, word, synsets):
        """Words of the same synset, for adjectives also of similar ones; nouns of the first sense only."""
        pos, good, near = synsets[0].pos, [], []
        if word in self.own_synonyms:
            good.append(self.own_synonyms[word])
        for s in synsets[:{"n": 1, "v": 2}.get(pos, 4)]:
            good += [w for w in s.words if w.lower() != word and " " not in w]
            if pos == "a":
                for kind, key, _ in s.pointers:
                    if kind == "&" and key in self.wn.synsets and key not in self.held and key not in self.unfit:
                        near += self.wn.synsets[key].words[:1]
        near.sort(key=lambda w: -self.wn.frequency(w, pos))
        good = [w for w in dict.fromkeys(good + near[:2]) if w.islower() and w.isascii() and w != word]
        return good[:4]

    def antonyms(self, word, synsets):
        out = [self.own_antonyms[word]] if word in self.own_antonyms else []
        for s in synsets[:4]:
            for at, form in enumerate(s.words, 1):
                for kind, key, where in s.pointers:
                    if kind == "!" and key in self.wn.synsets and int(where[:2], 16) == at and form.lower() == word:
                        out.append(self.wn.synsets[key].words[int(where[2:], 16) - 1])
        if not out and synsets[0].pos == "a":
            for s in synsets[:2]:
                for kind, key, _ in s.pointers:
                    if kind == "&":
                        for k2, key2, where in self.wn.synsets[key].pointers:
                            if k2 == "!":
                                out.append(self.wn.synsets[key2].words[int(where[2:], 16) - 1])
        return [w for w in dict.fromkeys(out) if w.islower() and w != word][:2]

    def find_examples(self, word, pos, synsets):
        out = []
        forms = {word, wn.plural_of(word), word + "s", word + "ed", word + "d", word + "ing", word[:-1] + "ing"}
        for s in synsets[:3]:
            for text in wn.examples(s.gloss):
                if not text.startswith("'") and forms & set(re.findall(r"[a-z]+", text.lower())):
                    out.append(text)
        if not out and pos == "n" and " " not in word:
            for form in (word, wn.plural_of(word, self.wn)):
                out += sorted(self.sentences.get(form, ()), key=len)[:3]
        return list(dict.fromkeys(out))[:3]

    def parts(self, s):
        out = []
        for kind, key, _ in s.pointers:
            if kind == "%p" and key not in self.held and key not in self.unfit:
                name = self.wn.synsets[key].words[0]
                if name.islower() and name not in s.words and self.wn.frequency(name, "n") > 3:
                    out.append((self.wn.frequency(name, "n"), name, self.wn.synsets[key].lexfile))
        out.sort(reverse=True)
        return [(wn.article(n) + " " + n) if self.wn.countable(n, x) else n for _, n, x in out[:4]]


def join(items):
    items = list(items)
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


# -- single turns: each returns (question, answer, thought) or None ---------------------------
def definition(f):
    """One sentence that explains the word."""
    if f["pos"] == "n":
        return cap(f["subject"]) + (" are " if f["subject"].endswith("s") and not f["countable"] and
                                    f["phrase"].split()[0].endswith("s") else " is ") + f["phrase"] + "."
    if f["pos"] == "v":
        return f'To {f["show"]} means to {f["phrase"]}.'
    return f'The word "{f["show"]}" means {f["phrase"]}.'


def think_define(rng, f):
    w, kind = f["show"], f["posname"]
    first = rng.choice([f'The user asks about the word "{w}".', f'The user wants to know what "{w}" means.',
                        f'The question is about "{w}".'])
    second = f'It is {wn.article(kind)} {kind}.'
    third = f' It is a kind of {f["hyper"][0]}.' if f["pos"] == "n" and f["hyper"] and not f["proper"] else ""
    return first + " " + second + third + rng.choice(["", " I will give its meaning.", " I will explain it in one sentence."])


def t_define(rng, lex, f):
    w, s = f["show"], f["subject"]
    if f["pos"] == "n" and not f["proper"] and rng.random() < 0.15:  # people also ask with another article
        s = rng.choice([w, wn.article(w) + " " + w])
    if f["pos"] == "n":
        q = rng.choice([f"What is {s}?", f"What is {s}?", f"What is {s}?", f"What's {s}?", f"Define {w}.",
                        f"Define {w}.", f"Can you explain what {s} is?", f"Explain what {s} is.", f"Tell me what {s} is.",
                        f"Please define the word {w}.", f'What does "{w}" mean?', f"What does the word {w} mean?",
                        f"What does {w} mean?", f"What is the meaning of {w}?", f"Do you know what {s} is?",
                        f"Please explain {w}.", f"What is the definition of {w}?", f"Describe {s}.",
                        f"What do you mean by {w}?", f'Explain the word "{w}".', f"I want to know what {s} is.",
                        f"What exactly is {s}?", f"Give me a definition of {w}.", f"{w}?"])
    elif f["pos"] == "v":
        q = rng.choice([f"What does it mean to {w}?", f"What does to {w} mean?", f'What does the verb "{w}" mean?',
                        f"Define the verb {w}.", f"What does {w} mean?", f'What does "{w}" mean?', f"Define {w}.",
                        f"Explain the verb {w}.", f"What is the meaning of the verb {w}?", f"What is meant by to {w}?",
                        f"Explain what it means to {w}.", f"Tell me what {w} means."])
    else:
        q = rng.choice([f'What does "{w}" mean?', f"What does '{w}' mean?", f"What does {w} mean?", f"Define {w}.",
                        f"What is the meaning of {w}?", f'Explain the word "{w}".', f"What does the word {w} mean?",
                        f"Give me a definition of {w}.", f"Tell me what {w} means.", f"Please define the word {w}.",
                        f"Can you explain what {w} means?", f"What does it mean if something is {w}?" if f["pos"] == "a"
                        else f'What does the adverb "{w}" mean?'])
    # Of several word classes, the plain question means the most frequent one.
    if "verb" not in q and "adjective" not in q and not re.search(r"\b(an?|to) " + re.escape(w), q):
        best = max("nvar", key=lambda p: lex.wn.tags[f["word"], p] + 1000 * ((f["word"], p) in lex.own)
                   + 2 * (p == f["pos"]))
        if best != f["pos"]:
            f = lex.facts(f["word"], best) or f
    return q, definition(f), think_define(rng, f)


def t_about(rng, lex, f):
    """A longer answer: meaning, kind, example."""
    w, s = f["show"], f["subject"]
    q = rng.choice([f"Tell me about {s}.", f"Tell me about the word {w}.", f"Tell me more about {w}.",
                    f'What can you say about the word "{w}"?', f"Explain {w} with an example.",
                    f"Explain the word {w} and give an example.", f"Describe the word {w} in detail."])
    a = definition(f)
    if f["more"] and f["pos"] == "n" and re.match(r"(usually|often|widely|occurs|used|found|includes|has|can)\b", f["more"]):
        more = f["more"]
        a += " It is " + more + "." if re.match(r"(usually|often|widely|used|found)\b", more) else " It " + more + "."
    if f["pos"] == "n" and f["hyper"] and not f["proper"]:
        a += f' It is a kind of {f["hyper"][0]}.'
    if f["syns"] and rng.random() < 0.5:
        a += f' Another word for it is "{f["syns"][0]}".'
    if f["examples"]:
        a += " " + rng.choice(["For example:", "Example:"]) + f' "{rng.choice(f["examples"][:2])}"'
    return q, a, think_define(rng, f)


def t_senses(rng, lex, f):
    w = f["show"]
    pairs = []
    for p in "nvar":
        g = lex.facts(f["word"], p)
        if g:
            pairs += [(g["posname"], ("to " if p == "v" else "") + x) for x in g["senses"][:2]]
    if len(pairs) < 2:
        return None
    pairs = pairs[:4]
    q = rng.choice([f"What are the meanings of {w}?", f"List the meanings of the word {w}.",
                    f'What are the different meanings of "{w}"?', f'Which meanings does the word "{w}" have?'])
    a = f'The word "{w}" has these meanings:\n\n' + "\n".join(f"{i}. ({k}) {cap(x)}." for i, (k, x) in enumerate(pairs, 1))
    return q, a, f'The user asks for the meanings of "{w}". I will list {len(pairs)} of them.'


def t_kind(rng, lex, f):
    if not f["hyper"] or f["pos"] != "n" or f["proper"]:
        return None
    w, s, (h, _) = f["show"], f["subject"], f["hyper"]
    q = rng.choice([f"What kind of thing is {s}?", f"What is {s} a kind of?", f"Which group does {s} belong to?",
                    f"What sort of thing is {s}?"])
    return q, f"{cap(s)} is a kind of {h}.", f'The user asks what kind of thing "{w}" is. The next wider word is "{h}".'


def t_isa(rng, lex, f):
    if f["pos"] != "n" or f["proper"] or not f["countable"]:
        return None
    all_up = set(f["chain"])
    names = {}
    for c in lex.members:
        for k in lex.wn.senses[c if c != "instrument" else "musical instrument", "n"]:
            names.setdefault(k, c)
    true = [names[k] for k in f["chain"] if k in names and names[k] != f["word"]]
    s = f["subject"]
    say = lambda c: (wn.article(c) + " " + c) if c not in ("food", "furniture", "clothing", "money", "meat") else c
    thought = f'I will check what kind of thing {s} is.' + (f' {cap(s)} is a kind of {f["hyper"][0]}.' if f["hyper"] else "")
    if true and rng.random() < 0.55:
        c = rng.choice(true)
        why = f" It is a kind of {f['hyper'][0]}." if f["hyper"] and f["hyper"][0] != c else ""
        q = rng.choice([f"Is {s} {say(c)}?", f"Is {s} a kind of {c}?", f"Does the word {f['show']} name {say(c)}?"])
        return q, f"Yes, {s} is {say(c)}.{why}", thought + f" So it is {say(c)}."
    wrong = [c for c in lex.members if not any(k in all_up or k in lex.wn.senses[f["word"], "n"]
                                               for k in lex.wn.senses[c, "n"])]
    if not wrong or not f["hyper"]:
        return None
    c = rng.choice(wrong)
    q = rng.choice([f"Is {s} {say(c)}?", f"Is {s} a kind of {c}?"])
    return q, f"No, {s} is not {say(c)}. It is a kind of {f['hyper'][0]}.", thought + f" So it is not {say(c)}."


NUMBERS = {2: "two", 3: "three", 4: "four"}


def t_members(rng, lex, f):
    c = rng.choice(list(lex.members))
    n = rng.choice([2, 3, 3, 3, 4])
    names = lex.members[c]
    chosen = rng.sample(names, n)
    c = "musical instrument" if c == "instrument" else c
    many = {"food": "foods", "fish": "fish", "furniture": "pieces of furniture", "clothing": "pieces of clothing",
            "money": "kinds of money"}.get(c, wn.plural_of(c, lex.wn))
    q = rng.choice([f"Name {NUMBERS[n]} kinds of {c}.", f"Name {NUMBERS[n]} {many}.", f"List {NUMBERS[n]} {many}.",
                    f"Give me {NUMBERS[n]} examples of {many}.", f"Can you name {NUMBERS[n]} {many}?"])
    if "List" in q and rng.random() < 0.6:
        a = "\n".join(f"{i}. {cap(x)}" for i, x in enumerate(chosen, 1))
    else:
        a = rng.choice([f"{cap(NUMBERS[n])} kinds of {c} are {join(chosen)}." if "kinds" in q else
                        f"{cap(NUMBERS[n])} {many} are {join(chosen)}."])
    return q, a, f"The user wants {NUMBERS[n]} {many}. I can name {join(chosen)}."


def t_synonym(rng, lex, f):
    w = f["show"]
    if not f["syns"]:
        return None
    q = rng.choice([f"Give me a synonym for {w}.", f"What is a synonym for {w}?", f'What is another word for "{w}"?',
                    f"Name a synonym of {w}.", f"What is another word for {w}?", f'Which word means the same as "{w}"?',
                    f"Find a synonym for the word {w}.", f"Do you know a synonym for {w}?"])
    return q, f'A synonym for "{w}" is "{f["syns"][0]}".', \
        f'The user wants a word that means the same as "{w}". One such word is "{f["syns"][0]}".'


def t_synonyms(rng, lex, f):
    w = f["show"]
    if len(f["syns"]) < 2:
        return None
    q = rng.choice([f"List some synonyms for {w}.", f"Give me two synonyms for {w}.", f'What are synonyms of "{w}"?'])
    return q, f'Synonyms for "{w}" are "{f["syns"][0]}" and "{f["syns"][1]}".', \
        f'The user wants words that mean the same as "{w}".'


def t_antonym(rng, lex, f):
    w = f["show"]
    if not f["ants"]:
        return None
    q = rng.choice([f"What is the opposite of {w}?", f"What is the opposite of {w}?", f'What is the opposite of "{w}"?',
                    f"Give me an antonym of {w}.", f"What is an antonym for {w}?", f"Name the opposite of {w}.",
                    f"Which word is the opposite of {w}?"])
    return q, f'The opposite of "{w}" is "{f["ants"][0]}".', \
        f'The user asks for the opposite of "{w}". The opposite is "{f["ants"][0]}".'


def t_example(rng, lex, f):
    w = f["show"]
    if not f["examples"]:
        return None
    q = rng.choice([f"Use the word {w} in a sentence.", f"Use {w} in a sentence.", f'Use "{w}" in a sentence.',
                    f"Give me an example sentence with the word {w}.", f"Write a sentence with the word {w}.",
                    f'Make a sentence with "{w}".', f"Show me how to use the word {w}."])
    e = rng.choice(f["examples"][:2])
    return q, e, f'The user wants a sentence with the word "{w}".'


def t_parts(rng, lex, f):
    if f["pos"] != "n" or len(f["parts"]) < 2 or f["proper"]:
        return None
    s = f["subject"]
    q = rng.choice([f"What are the parts of {s}?", f"Name some parts of {s}.", f"Which parts does {s} have?"])
    return q, f"Parts of {s} are {join(f['parts'][:3])}.", f"The user asks for the parts of {s}."


def t_class(rng, lex, f):
    w = f["show"]
    kinds = [wn.POS_NAMES[p] for p in "nvar" if (f["word"], p) in lex.wn.senses and
             (lex.wn.tags[f["word"], p] > 0 or p == f["pos"])]
    q = rng.choice([f'Is "{w}" a noun or a verb?', f"What part of speech is {w}?", f'Which word class is "{w}"?',
                    f"What kind of word is {w}?"])
    kinds = [wn.article(k) + " " + k for k in kinds]
    if len(kinds) == 1:
        a = f'The word "{w}" is {kinds[0]}.'
    else:
        a = f'The word "{w}" can be ' + ", ".join(kinds[:-1]) + " or " + kinds[-1] + "."
    return q, a, f'The user asks for the word class of "{w}".'


def t_plural(rng, lex, f):
    if f["pos"] != "n" or not f["countable"] or f["proper"] or " " in f["word"]:
        return None
    w = f["show"]
    q = rng.choice([f"What is the plural of {w}?", f'What is the plural of "{w}"?', f"Give me the plural of {w}."])
    return q, f'The plural of "{w}" is "{wn.plural_of(w, lex.wn)}".', f'The user asks for the plural of "{w}".'


def t_past(rng, lex, f):
    if f["pos"] != "v" or " " in f["word"]:
        return None
    past = wn.past_of(f["word"], lex.wn)
    if not past:
        return None
    w = f["show"]
    q = rng.choice([f"What is the past tense of {w}?", f'What is the past of "{w}"?'])
    return q, f'The past tense of "{w}" is "{past}".', f'The user asks for the past tense of "{w}".'


def t_capital(rng, lex, f):
    country, city = rng.choice(lex.capitals)
    if rng.random() < 0.7:
        q = rng.choice([f"What is the capital of {country}?", f"Which city is the capital of {country}?",
                        f"Name the capital of {country}.", f"What's the capital of {country}?"])
        return q, f"The capital of {country} is {city}.", f"The user asks for the capital of {country}. It is {city}."
    q = rng.choice([f"Where is {city}?", f"Which country has {city} as its capital?"])
    return q, f"{city} is the capital of {country}.", f"The user asks about {city}. It is the capital of {country}."


def t_compare(rng, lex, f):
    other = lex.facts(*rng.choice(lex.demo[:200]))
    if f["pos"] != "n" or not other or other["word"] == f["word"]:
        return None
    q = rng.choice([f"What is the difference between {f['subject']} and {other['subject']}?",
                    f"How is {f['subject']} different from {other['subject']}?", f"Compare {f['subject']} and {other['subject']}."])
    return q, definition(f) + " " + definition(other), \
        f'The user compares "{f["show"]}" with "{other["show"]}". I will explain both words.'


def t_choose(rng, lex, f):
    c = rng.choice(list(lex.members))
    right = rng.choice(lex.members[c])
    ups = {k for k in lex.wn.senses[c, "n"]}
    wrong = []
    while len(wrong) < 2:
        w, p = rng.choice(lex.demo[:200])
        g = lex.facts(w, "n")
        if g and not (set(g["chain"]) & ups) and w not in wrong + [right, c] and p == "n":
            wrong.append(w)
    options = [right] + wrong
    rng.shuffle(options)
    c2 = wn.article(c) + " " + c
    q = rng.choice([f"Which of these is {c2}: {options[0]}, {options[1]} or {options[2]}?",
                    f"Which one is {c2}: {options[0]}, {options[1]} or {options[2]}?"])
    return q, f'The word "{right}" names {c2}.', f'I look for {c2} among "{options[0]}", "{options[1]}" and "{options[2]}". That is "{right}".'


def t_reverse(rng, lex, f):
    if len(f["phrase"].split()) < 4 or f["word"] in f["phrase"]:
        return None
    d = f["phrase"]
    q = rng.choice([f'Which word means "{d}"?', f"What is the word for {d}?"] +
                   ([f"What do you call {d}?"] if f["pos"] == "n" else []))
    return q, f'The word is "{f["show"]}".', f'The user describes a word. It is {wn.article(f["posname"])} {f["posname"]}. The word is "{f["show"]}".'


def t_json(rng, lex, f):
    w = f["show"]
    q = rng.choice([f'Define {w} as JSON with the keys "word" and "meaning".', f"Define the word {w} in JSON.",
                    f'Give me a JSON object with "word", "class" and "meaning" for {w}.'])
    out = {"word": w, "class": f["posname"], "meaning": f["phrase"]}
    if '"class"' not in q:
        del out["class"]
    return q, json.dumps(out, ensure_ascii=False), f'The user wants a JSON object about "{w}".'


def t_sum(rng, lex, f):
    kind = rng.random()
    a, b = rng.randint(0, 20), rng.randint(0, 20)
    if kind < 0.5:
        text, said, value = f"{a} + {b}", f"{a} plus {b}", a + b
    elif kind < 0.75:
        a, b = max(a, b), min(a, b)
        text, said, value = f"{a} - {b}", f"{a} minus {b}", a - b
    else:
        a, b = rng.randint(0, 10), rng.randint(0, 10)
        text, said, value = f"{a} * {b}", f"{a} times {b}", a * b
    q = rng.choice([f"What is {text}?", f"What is {said}?", f"How much is {text}?", f"Calculate {text}.", f"{text} ="])
    return q, f"{cap(said) if said in q else text} is {value}.", f"I have to work out {text}. The result is {value}."


def t_talk(rng, lex, f):
    qs, ans, thought = rng.choice(words.SMALL_TALK)
    return rng.choice(qs), rng.choice(ans), thought


FACTS = words.read_facts()


def t_fact(rng, lex, f):
    q, a = rng.choice(FACTS)
    return q, a, rng.choice(["This is a simple question.", "I know the answer to this.", f"The user asks a short question. {a}"])


def t_unknown(rng, lex, f):
    while True:
        w = "".join(rng.choice("bl br d f fl g gl gr k kl m n pl qu r s sk sn t tr v w z zr".split()) +
                    rng.choice("a e i o u oo ee".split()) for _ in range(rng.choice([2, 2, 3]))) + \
            rng.choice(["", "b", "g", "k", "m", "nk", "rf", "x", "zz", "lth"])
        if w not in lex.real and len(w) > 4:
            break
    s = rng.choice([wn.article(w) + " " + w, w])
    q = rng.choice([f"What is {s}?", f"What does {w} mean?", f"Define {w}.", f'What does "{w}" mean?'])
    return q, f'I do not know the word "{w}".', f'I look for the word "{w}". I do not know it.'


TURNS = [(t_define, 34), (t_about, 8), (t_senses, 4), (t_kind, 3), (t_isa, 8), (t_members, 4), (t_synonym, 6),
         (t_synonyms, 2), (t_antonym, 4), (t_example, 6), (t_parts, 2), (t_class, 2), (t_plural, 1.5), (t_past, 1),
         (t_capital, 2.5), (t_compare, 2), (t_choose, 2), (t_reverse, 3), (t_json, 1.5), (t_sum, 5), (t_talk, 4),
         (t_fact, 5), (t_unknown, 1.5)]
FUNCTIONS, WEIGHTS = zip(*TURNS)


def pick_word(rng, lex):
    """A word, the common ones far more often."""
    while True:
        x = rng.random()
        source = lex.demo if x < 0.36 else lex.common if x < 0.70 else lex.known if x < 0.94 else lex.rare
        f = lex.facts(*rng.choice(source))
        if f:
            return f


def restyle(rng, q):
    """Small changes to how the question is written."""
    x = rng.random()
    if x < 0.10:
        q = q.lower()
    elif x < 0.13:
        q = q.rstrip("?.!") if len(q) > 8 else q
    elif x < 0.17:
        q = q.lower().rstrip("?.!") if len(q) > 8 else q
    elif x < 0.20:
        q = rng.choice(["Hi! ", "Hello. ", "Please tell me: ", "A question: ", "Please help me. "]) + q
    elif x < 0.21:
        q = q.upper()
    return q


def turn(rng, lex, f=None):
    """(question, answer, thought), about the word of f if given."""
    while True:
        function = rng.choices(FUNCTIONS, WEIGHTS)[0]
        out = function(rng, lex, f or pick_word(rng, lex))
        if out:
            return restyle(rng, out[0]), out[1], out[2]


def follow_up(rng, lex, f):
    """A later turn that says "it" for the word of the turn before."""
    pool = [(t_example, ["Use it in a sentence.", "Give me an example.", "Can you use it in a sentence?"]),
            (t_synonym, ["Give me a synonym.", "What is another word for it?", "Is there another word for it?"]),
            (t_antonym, ["What is its opposite?", "And the opposite?", "What is the opposite of it?"]),
            (t_kind, ["What kind of thing is it?", "What is it a kind of?"]),
            (t_plural, ["What is the plural?", "And the plural?"]),
            (t_parts, ["What are its parts?", "Which parts does it have?"]),
            (t_about, ["Tell me more.", "Tell me more about it.", "Please explain it in more detail."])]
    rng.shuffle(pool)
    for function, questions in pool:
        out = function(rng, lex, f)
        if out:
            return rng.choice(questions), out[1], out[2]
    return turn(rng, lex)


def chat(rng, lex):
    """A conversation of one to four turns: (messages, tools or None)."""
    messages, tools = [], None
    x = rng.random()
    if x < 0.07:
        return toolchats.make(rng, lambda: turn(rng, lex))
    thinking = rng.random() < 0.5
    if rng.random() < 0.25:
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    turns = []
    if x < 0.75:
        turns = [turn(rng, lex)]
    else:
        f = pick_word(rng, lex)
        first = t_define(rng, lex, f)
        turns = [(restyle(rng, first[0]), first[1], first[2])]
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            y = rng.random()
            if y < 0.55:
                turns.append(follow_up(rng, lex, f))
            elif y < 0.70:
                f = pick_word(rng, lex)
                q, a, r = t_define(rng, lex, f)
                turns.append((rng.choice([f"And {f['subject']}?", f"What about {f['subject']}?", q]), definition(f), r))
            else:
                turns.append(turn(rng, lex))
    for q, a, r in turns:
        messages.append({"role": "user", "content": q})
        messages.append({"role": "assistant", "content": a, "reasoning_content": r if thinking else ""})
    return messages, tools


def plain(rng, lex, keys=None):
    """A piece of plain text: dictionary entries or short paragraphs."""
    keys = keys or [k for k in ((rng.choice(lex.plain) if rng.random() < 0.35 else
                                 rng.choice(lex.usable_senses(*rng.choice(lex.common)) or lex.plain))
                                for _ in range(rng.randint(1, 4)))]
    style, out = rng.random(), []
    for key in keys:
        s = lex.wn.synsets[key]
        parts = wn.clauses(s.gloss)
        if not parts:
            continue
        w = s.words[0]
        if style < 0.4:
            text = f"{w} ({wn.POS_NAMES[s.pos]}): {'; '.join(parts)}."
        elif style < 0.8 and s.pos == "n":
            subject = w if not w.islower() or not lex.wn.countable(w.lower(), s.lexfile) else wn.article(w) + " " + w
            text = f"{cap(subject)} is {lex.phrase(parts[0], 'n')}."
            up = lex.hypernym(s)
            if up and w.islower():
                text += f" It is a kind of {up[0]}."
        elif style < 0.8:
            text = f'The word "{w}" means {"to " if s.pos == "v" else ""}{parts[0]}.'
        else:
            text = cap("; ".join(parts)) + "."
        others = [x for x in s.words[1:3]]
        if others and style < 0.6:
            text += f" {'Synonym' if len(others) == 1 else 'Synonyms'}: {', '.join(others)}."
        for e in wn.examples(s.gloss)[:2]:
            text += " " + e
        out.append(text)
    return ("\n" if style < 0.4 else "\n\n" if style < 0.6 else " ").join(out)


@functools.lru_cache(maxsize=None)
def template(path):
    """The chat template as Hugging Face's tokenizers render it."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def fail(message):
        raise ValueError(message)
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = lambda x, **k: json.dumps(x, ensure_ascii=False)
    env.globals["raise_exception"] = fail
    with open(path, encoding="utf-8") as file:
        return env.from_string(file.read())


def document(rng, lex, template_path):
    """One training document as text (without the <|endoftext|> that separates documents)."""
    if rng.random() < 0.14:
        return plain(rng, lex)
    messages, tools = chat(rng, lex)
    return template(template_path).render(messages=messages, tools=tools, add_generation_prompt=False).rstrip("\n")


def make_shard(task):
    """Documents of one shard; every worker builds its own lexicon once."""
    seed, n, folder, template_path = task
    lex = lexicon(folder)
    rng = random.Random(seed)
    return [document(rng, lex, template_path) for _ in range(n)]


@functools.lru_cache(maxsize=None)
def lexicon(folder):
    return Lexicon(folder)


def held_documents(lex, template_path, seen):
    """Text about synsets that training never saw, and conversations that are not in training."""
    rng = random.Random(20260117)
    held = sorted(lex.held)
    rng.shuffle(held)
    docs, size = [], 0
    while size < 110000 and held:
        k = rng.randint(1, 4)
        text = plain(rng, lex, held[:k])
        held = held[k:]
        if text:
            docs.append(text)
            size += len(text)
    tries = 0
    while size < 210000:
        tries += 1
        text = document(rng, lex, template_path)
        if text.startswith("<|im_start|>") and hashlib.sha1(text.encode()).digest() not in seen and \
                not (text.startswith("<|im_start|>system\n# Tools") and rng.random() < 0.6):
            docs.append(text)
            size += len(text)
    rng.shuffle(docs)
    return docs


def main():
    import tokens
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wordnet", default="/usr/share/wordnet")
    parser.add_argument("--template", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--documents", type=int, default=450000)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    per = 5000
    tasks = [(1000 + i, min(per, args.documents - i * per), args.wordnet, args.template)
             for i in range((args.documents + per - 1) // per)]
    lexicon(args.wordnet)  # built before the fork, shared by the workers
    docs = []
    with multiprocessing.get_context("fork").Pool(args.workers) as pool:
        for part in pool.imap(make_shard, tasks):
            docs += part
            print(f"{len(docs)} documents", flush=True)
    seen = {hashlib.sha1(d.encode()).digest() for d in docs}
    print(f"{len(seen)} of them different, {sum(map(len, docs)) / 1e6:.1f} M characters")
    held = held_documents(lexicon(args.wordnet), args.template, seen)
    tokens.make(docs, args.template, args.out)
    for name, texts in (("heldout", held), ("train", docs)):
        ids, lengths = tokens.encode(args.out, texts)
        with lzma.open(os.path.join(args.out, name + ".ids.xz"), "wb", preset=1) as file:
            file.write(np.array([len(lengths)], "<u4").tobytes())
            file.write(lengths.astype("<u2").tobytes())
            file.write(ids.astype("<u2").tobytes())
        print(name, len(texts), "documents,", len(ids), "tokens")
    with open(os.path.join(args.out, "heldout.txt"), "w", encoding="utf-8") as file:
        file.write("<|endoftext|>".join(held))


if __name__ == "__main__":
    main()
