"""Reads the WordNet 3.0 database files and turns glosses into plain sentences.

Only what the training data needs: synsets with their words, pointers, glosses and
sense frequencies, and the small amount of English grammar (articles, plurals, which
nouns are countable) that makes a gloss readable as an answer.
"""
import collections
import functools
import os
import re

POS_FILES = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
POS_NAMES = {"n": "noun", "v": "verb", "a": "adjective", "r": "adverb"}
# Lexicographer files whose nouns are things one can count, unless the text says otherwise.
COUNTABLE_FILES = {5, 6, 8, 10, 11, 14, 15, 17, 18, 20, 23, 25, 28}

Synset = collections.namedtuple("Synset", "key pos lexfile words pointers gloss")


class WordNet:
    """The database: synsets by (pos, offset) and, for each word, its senses in order."""

    def __init__(self, folder):
        self.synsets, self.senses, self.tags = {}, {}, collections.Counter()
        for pos, name in POS_FILES.items():
            self._read_data(os.path.join(folder, "data." + name), pos)
            self._read_index(os.path.join(folder, "index." + name), pos)
        self._read_counts(os.path.join(folder, "cntlist.rev"))
        self.exceptions = {p: self._read_exceptions(os.path.join(folder, POS_FILES[p] + ".exc"))
                           for p in "nv"}
        self._count_usage()

    def _read_data(self, path, pos):
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("  "):
                    continue
                head, gloss = line.split(" | ", 1)
                field = head.split()
                n_words = int(field[3], 16)
                words = [re.sub(r"\((a|p|ip)\)$", "", field[4 + 2 * i]).replace("_", " ")
                         for i in range(n_words)]
                at = 4 + 2 * n_words
                pointers = [(field[at + 1 + 4 * i], ("a" if field[at + 3 + 4 * i] == "s" else
                                                     field[at + 3 + 4 * i], field[at + 2 + 4 * i]),
                             field[at + 4 + 4 * i]) for i in range(int(field[at]))]
                key = (pos, field[0])
                self.synsets[key] = Synset(key, pos, int(field[1]), words, pointers, gloss.strip())

    def _read_index(self, path, pos):
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.startswith("  "):
                    continue
                field = line.split()
                offsets = field[-int(field[2]):]
                self.senses[field[0].replace("_", " "), pos] = [(pos, o) for o in offsets]

    def _read_counts(self, path):
        kinds = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
        with open(path, encoding="utf-8") as file:
            for line in file:
                sense, _, count = line.split()
                word, rest = sense.split("%", 1)
                self.tags[word.replace("_", " "), kinds[rest[0]]] += int(count)

    @staticmethod
    def _read_exceptions(path):
        table = collections.defaultdict(list)
        with open(path, encoding="utf-8") as file:
            for line in file:
                field = line.split()
                table[field[1].replace("_", " ")].append(field[0].replace("_", " "))
        return table

    def _count_usage(self):
        """How words are used in all glosses: after a/an, bare, and how often in all."""
        self.with_article, self.bare, self.uses = (collections.Counter() for _ in range(3))
        for synset in self.synsets.values():
            words = re.findall(r"[a-z]+", synset.gloss.lower())
            for before, word in zip([""] + words, words):
                self.uses[word] += 1
                if before in ("a", "an", "each", "every", "another"):
                    self.with_article[word] += 1
                elif before in ("of", "with", "in", "by", "for", "some", "much", "without", "from",
                                "into", "more", "little"):
                    self.bare[word] += 1

    @functools.lru_cache(maxsize=None)
    def frequency(self, word, pos):
        """A rough measure of how common a word is: tagged uses plus uses in glosses."""
        return self.tags[word, pos] + min(200, self.uses[word]) * 0.2

    def display(self, word, pos):
        """The word as it is written in the database (with capitals)."""
        for key in self.senses.get((word, pos), ()):
            for form in self.synsets[key].words:
                if form.lower() == word:
                    return form
        return word

    @functools.lru_cache(maxsize=None)
    def countable(self, word, lexfile):
        """Does the noun take a/an? From its use in glosses, else from its kind."""
        last = word.split()[-1]
        a, bare = self.with_article[last], self.bare[last]
        plural = self.uses[plural_of(last, self)] if plural_of(last, self) != last else 0
        prior = 8 if lexfile in (5, 6, 18) else 3 if lexfile in COUNTABLE_FILES else -3
        if " " in word:
            prior *= 2
        return prior + a + 0.4 * plural - 0.8 * bare > 0


def article(phrase):
    """"a" or "an" before the phrase."""
    word = phrase.lstrip("'\"").lower()
    if re.match(r"(uni[^nm]|us[aeu]|eu|one\b|once|ut[ei]|ur[aei]n|ub|uv)", word):
        return "a"
    if re.match(r"(hour|honest|heir|honou?r)", word):
        return "an"
    return "an" if word[:1] in "aeiou" else "a"


def plural_of(noun, wordnet=None):
    """The plural of a noun, irregular forms from the database."""
    if wordnet and noun in wordnet.exceptions["n"]:
        forms = [f for f in wordnet.exceptions["n"][noun] if f != noun]
        if forms and " " not in noun:
            return {"oxen": "oxen"}.get(forms[0], forms[-1] if noun == "fish" else forms[0])
    if noun in ("sheep", "deer", "fish", "series", "species", "aircraft"):
        return noun
    if re.search(r"(s|x|z|ch|sh)$", noun):
        return noun + "es"
    if re.search(r"[^aeiou]y$", noun):
        return noun[:-1] + "ies"
    return noun + "s"


def past_of(verb, wordnet):
    """The past tense of a verb; None where the database gives several irregular forms."""
    forms = [f for f in wordnet.exceptions["v"].get(verb, ()) if not f.endswith("ing")
             and not f.endswith("s")]
    if forms:
        return None
    if verb.endswith("e"):
        return verb + "d"
    if re.search(r"[^aeiou]y$", verb):
        return verb[:-1] + "ied"
    if re.search(r"^[^aeiou]*[aeiou][^aeiouwxy]$", verb):
        return verb + verb[-1] + "ed"
    return verb + "ed"


def clean(text):
    """Drops remarks in parentheses and repairs the spacing that they leave."""
    for _ in range(3):
        text = re.sub(r"\([^()]*\)", " ", text)
    text = text.replace("`", "'").replace("''", "'").replace("�", "")
    text = re.sub(r"[()]", " ", text)
    text = re.sub(r"\s+", " ", text)
    return re.sub(r" ([,;:.!?])", r"\1", text).strip(" ,;:-.")


def clauses(gloss):
    """The parts of the definition, without examples."""
    text = clean(re.sub(r'"[^"]*("|$)', " ", gloss).split(' -- ')[0])
    parts = [p.strip(" ,;:-.") for p in re.split(r";|: ", text)]
    return [p for p in parts if p]


FINITE = re.compile(r"\b(is|was|are|were|has|have|had|will|would|can|could|did|does|do|must|should|"
                    r"may|might|am|he|she|they|we|I|it|you|don't|didn't|can't|won't|let)\b")


def sentence(text):
    """A capital at the front and a full stop at the end."""
    text = text.strip()
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."


def examples(gloss):
    """The examples of a gloss that read as whole sentences."""
    out = []
    for text in re.findall(r'"([^"]+)"', gloss):
        text = re.sub(r"\s+", " ", text.replace("`", "'").strip(" ,;"))
        text = text.split(" - ")[0].split("--")[0].strip()
        n = len(text.split())
        if not 4 <= n <= 18 or not text.isascii() or "(" in text or text.count("'") > 2:
            continue
        first = text.split()[0].lower()
        verb = re.search(r"\b(the|an?|my|his|her|our|their|these|this|that|some|many|[A-Z][a-z]+)"
                         r"( [a-z]+)? [a-z]+(ed|s)\b", text)
        if FINITE.search(text) or (verb and first not in ("a", "an") and n >= 4):
            out.append(sentence(text))
    return out
