/* The steps of encoding, each by itself: merging against a plain loop, NFC's shortcuts against
 * utf8proc, the pattern's rewriting, the tree of added tokens. */
#include "base/philox.h"
#include "model/tokenizer.h"
#include "model/utf8.h"
#include "support/files.h"
#include "support/support.h"
#include "support/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* ---- merging ---- */

/* MODEL.md 5.3, rule 5, word for word. Returns the number of ids. */
static size_t merge_plainly(const vocabulary *v, const char *piece, size_t n, int32_t *ids)
{
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)v->byte_ids[(unsigned char)piece[i]];
    for (;;) {
        size_t best = n;
        uint32_t lowest = NO_RANK;
        for (size_t i = 0; i + 1 < n; i++) {
            uint32_t rank = vocabulary_rank(v, (uint32_t)ids[i], (uint32_t)ids[i + 1]);
            if (rank < lowest) lowest = rank, best = i;
        }
        if (best == n) return n;
        ids[best] = (int32_t)v->merged[lowest];
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof *ids);
        n--;
    }
}

static void check_merges(const char *dir, const char *alphabet, uint64_t seed)
{
    enum { MAX = 400 };
    calla_tokenizer *t = open_tokenizer(dir);
    bpe b = {.vocabulary = &t->vocabulary};
    size_t n_letters = strlen(alphabet);
    for (uint64_t k = 0; k < 300; k++) {
        char piece[MAX];
        int32_t expected[MAX];
        uint32_t r[4];
        calla_error err;
        id_list ids = {0};
        philox4x32(seed, k, 0, r);
        size_t n = 1 + r[0] % (k % 3 ? 100 : MAX);
        for (size_t i = 0; i < n; i++) {
            philox4x32(seed, k, i + 1, r);
            piece[i] = alphabet[r[0] % n_letters];
        }
        size_t n_expected = merge_plainly(&t->vocabulary, piece, n, expected);
        assert_ok(bpe_encode(&b, piece, n, &ids, &err), &err);
        assert_int_equal(ids.n, n_expected);
        assert_memory_equal(ids.ids, expected, n_expected * sizeof expected[0]);
        free(ids.ids);
    }
    bpe_deinit(&b);
    calla_tokenizer_close(t);
}

static void test_merging(void **state)
{
    (void)state;
    check_merges(source_path("models/tiny"), "etaoinsrhldcum", 1);
    check_merges(source_path("models/tiny"), "abcdefghijklmnopqrstuvwxyz ABCDE", 2);
    check_merges(source_path("models/tiny"), " \n=-", 3);
    check_merges(source_path("tests/data/tokenizer_scripts"), "e \n1.'\xcc\x81\xe0\xa4\xb5", 4);
    check_merges(source_path("tests/data/tokenizer_small"), "abc ", 5);
}

/* tokenizer_small with other tokens and merges: random ones over "xyz", in random order, so that
 * merges often make pairs of lower rank, which a learned table hardly does. */
static const char *random_tokenizer(uint64_t seed)
{
    enum { MAX_TOKENS = 24, MAX_LENGTH = 9 };
    char tokens[3 + MAX_TOKENS][MAX_LENGTH + 1] = {"x", "y", "z"};
    char merges[MAX_TOKENS][2 * MAX_LENGTH], vocab_text[2048] = "", merges_text[2048] = "[";
    int n_tokens = 3, n_merges = 0;
    for (uint64_t k = 0; k < 60 && n_merges < MAX_TOKENS; k++) {
        uint32_t r[4];
        philox4x32(seed, k, 1, r);
        const char *left = tokens[r[0] % (uint32_t)n_tokens],
                   *right = tokens[r[1] % (uint32_t)n_tokens];
        char both[2 * MAX_LENGTH + 1], merge[2 * MAX_LENGTH];
        if (strlen(left) + strlen(right) > MAX_LENGTH) continue;
        sprintf(both, "%s%s", left, right);
        sprintf(merge, "%s %s", left, right);
        int known = 0, again = 0;
        for (int i = 0; i < n_merges; i++) again |= strcmp(merges[i], merge) == 0;
        for (int i = 0; i < n_tokens; i++) known |= strcmp(tokens[i], both) == 0;
        if (again) continue;
        if (!known) strcpy(tokens[n_tokens++], both);
        int at = (int)(r[2] % (uint32_t)(n_merges + 1)); /* a random place */
        memmove(merges + at + 1, merges + at, (size_t)(n_merges++ - at) * sizeof merges[0]);
        strcpy(merges[at], merge);
    }
    for (int i = 3; i < n_tokens; i++)
        sprintf(vocab_text + strlen(vocab_text), ", \"%s\": %d", tokens[i], 253 + i);
    for (int i = 0; i < n_merges; i++)
        sprintf(merges_text + strlen(merges_text), i ? ", \"%s\"" : "\"%s\"", merges[i]);
    strcat(vocab_text, "}");
    strcat(merges_text, "]");
    const text_edit edits[] = {
        {", \"ab\": 256, \"abc\": 257, \"\\u0120a\": 258, \"bc\": 259, \"bcbc\": 260, \"cab\": "
         "261}",
         vocab_text},
        {"[\"a b\", \"ab c\", \"\\u0120 a\", \"b c\", \"bc bc\", \"c ab\"]", merges_text},
        {"\"added_tokens\"", "\"no_added_tokens\""},
    };
    char *text = read_test_file(source_path("tests/data/tokenizer_small/tokenizer.json"), NULL);
    char *edited = edit_text(text, edits, sizeof edits / sizeof edits[0]);
    const char *dir = temporary_dir();
    write_test_file(dir, "tokenizer.json", edited, strlen(edited));
    free(text);
    free(edited);
    return dir;
}

static void test_merging_any_order(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) check_merges(random_tokenizer(seed), "xyz", seed);
}

/* ---- NFC ---- */

static void assert_nfc(const char *text, size_t n_bytes, const char *expected)
{
    nfc work = {0};
    strbuf out = {0};
    calla_error err;
    char *data;
    size_t n;
    assert_ok(nfc_append(&work, text, n_bytes, &out, &err), &err);
    assert_ok(strbuf_take(&out, &data, &n, &err), &err);
    assert_string_equal(data, expected);
    free(data);
    nfc_deinit(&work);
}

/* What the quick check lets pass is normal whatever stands beside it: no character of the blocks
 * changes, has a class, or is the second part of a composition. */
static void test_nfc_certain(void **state)
{
    (void)state;
    static bool is_second[0x110000];
    int32_t n_composites = 0, n_certain = 0;
    for (int32_t c = 0; c < 0x110000; c++) {
        if (c >= 0xac00 && c < 0xac00 + 11172)
            continue; /* their second parts are conjoining jamo */
        utf8proc_int32_t parts[8];
        int boundary = 0;
        utf8proc_ssize_t n = utf8proc_decompose_char(c, parts, 8, UTF8PROC_DECOMPOSE, &boundary);
        if (n >= 2) is_second[parts[n - 1]] = true, n_composites++;
    }
    assert_true(n_composites > 900);
    for (int32_t c = 1; c < 0x110000; c++) {
        char bytes[5] = {0};
        if (c >= 0xd800 && c < 0xe000) continue;
        size_t n = utf8_encode(c, bytes);
        if (!nfc_is_certain(bytes, n)) continue;
        n_certain++;
        assert_false(is_second[c]);
        assert_int_equal(utf8proc_get_property(c)->combining_class, 0);
        assert_nfc(bytes, n, bytes);
    }
    assert_int_equal(n_certain, 0x300 - 1 + 0x80 + 0x6000);
    assert_false(nfc_is_certain("e\u0301", 3));
}

static void test_nfc_order(void **state)
{
    (void)state;
    /* Twenty marks, circumflexes (class 230) and dots below (220) in turn: all dots come first, and
     * one of each composes with the letter. */
    char text[256] = "a", expected[256] = "\u1ead";
    for (int i = 0; i < 20; i++) strcat(text, i % 2 ? "\u0323" : "\u0302");
    for (int i = 0; i < 9; i++) strcat(expected, "\u0323");
    for (int i = 0; i < 9; i++) strcat(expected, "\u0302");
    assert_nfc(text, strlen(text), expected);
    assert_nfc("q\u0307\u0323", 5, "q\u0323\u0307");
}

static void test_nfc_newer(void **state)
{
    (void)state;
    /* U+1DF6 (Unicode 10, class 232) stays where it is; U+0334 (class 1) would go before it. */
    assert_nfc("a\u1df6\u0334", 6, "a\u1df6\u0334");
    assert_nfc("\uc2f8\u11a7x", 7, "\uc2f8\u11a7x");
    assert_nfc("\U00011935\U00011930", 8, "\U00011935\U00011930");
    assert_nfc("\u1100\u1161\u11a8", 9, "\uac01");
}

/* ---- the pattern ---- */

static void assert_rewritten(const char *pattern, const char *expected)
{
    strbuf out = {0};
    calla_error err;
    char *data;
    size_t n;
    assert_ok(pattern_rewrite(pattern, strlen(pattern), &out, &err), &err);
    assert_ok(strbuf_take(&out, &data, &n, &err), &err);
    assert_string_equal(data, expected);
    free(data);
}

#define SPACES                                                                                     \
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"       \
    "\\x{3000}"

static void test_rewriting(void **state)
{
    (void)state;
    assert_rewritten("a|b+", "a|b+");
    assert_rewritten("\\s+", "[" SPACES "]+");
    assert_rewritten("[^\\s\\p{L}]", "[^" SPACES "\\p{L}]");
    assert_rewritten("(?i:'s|'t)(?:x)(?!y)(?=z)", "(?i:'s|'t)(?:x)(?!y)(?=z)");
    assert_rewritten("\\p{Lu}\\P{N}{2}{1,3}{2,}?\\r\\n\\t\\.\\]",
                     "\\p{Lu}\\P{N}{2}{1,3}{2,}?\\r\\n\\t\\.\\]");
}

static void test_refused_patterns(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *seen;
    } cases[] = {
        {"a\\wb", "'\\w' at byte 1 of the pattern 'a\\wb'"},
        {"\\h", "'\\h' at byte 0"},
        {"\\d", "'\\d'"},
        {"\\b", "'\\b'"},
        {"\\1", "'\\1'"},
        {"\\Qa\\E", "'\\Q'"},
        {"\\\xc3\xa9", "'\\\xc3\xa9'"},
        {"x\\", "'\\' at byte 1"},
        {"\\pL", "'\\pL'"},
        {"\\p{Greek}", "'\\p{Gre'"},
        {"\\p{^L}", "'\\p{^L}'"},
        {"\\p{LL}", "'\\p{LL}'"},
        {"[a[b]]", "'[b' at byte 2"},
        {"[a&&b]", "'&&' at byte 2"},
        {"[]a]", "'[]'"},
        {"[^]a]", "'[^]'"},
        {"[abc", "'[abc'"},
        {"[\\d]", "'\\d'"},
        {"(a)", "'(a)'"},
        {"(?<n>a)", "'(?<n'"},
        {"(?<=a)b", "'(?<='"},
        {"(?>a)", "'(?>a'"},
        {"(*ACCEPT)a", "'(*AC'"},
        {"(?i)a", "'(?i)'"},
        {"a.", "'.' at byte 1"},
        {"^a", "'^'"},
        {"a$", "'$'"},
        {"a{,2}", "'{,2}'"},
        {"a{2", "'{2'"},
        {"a{2}+", "'{2}+'"},
        {"a{x}", "'{x}'"},
        {"a{1,2,3}", "'{1,2,3}'"},
        {"a{}", "'{}'"},
        {"(?:a", "does not compile"},
        {"a**", "does not compile"},
        {"a)", "does not compile"},
        {"a{70000}", "does not compile"},
        {"a*", "matches the empty text"},
        {"a|", "matches the empty text"},
        {"", "0 bytes, expected 1 to 4096"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        splitter s = {0};
        calla_error err;
        calla_status status = splitter_init(&s, cases[i].pattern, strlen(cases[i].pattern), &err);
        assert_error(status, CALLA_ERR_INPUT, &err, cases[i].seen);
        assert_null(s.code);
    }
    char *huge = malloc(5000);
    assert_non_null(huge);
    memset(huge, 'a', 5000);
    splitter s = {0};
    calla_error err;
    assert_error(splitter_init(&s, huge, 5000, &err), CALLA_ERR_INPUT, &err, "5000 bytes");
    free(huge);
}

/* The pieces of a text, as "[piece][piece]". */
static void assert_pieces(const char *pattern, const char *text, const char *expected)
{
    splitter s = {0};
    split_pass pass;
    calla_error err;
    char pieces[512] = "";
    assert_ok(splitter_init(&s, pattern, strlen(pattern), &err), &err);
    assert_ok(split_init(&pass, &s, &err), &err);
    for (int round = 0; round < 2; round++) { /* a pass is used for one text after another */
        size_t begin = 0, end = 0, at = 0;
        pieces[0] = '\0';
        assert_ok(split_begin(&pass, text, strlen(text), &err), &err);
        for (;;) {
            assert_ok(split_next(&pass, &begin, &end, &err), &err);
            if (begin == end) break;
            assert_int_equal(begin, at);
            at = end;
            sprintf(pieces + strlen(pieces), "[%.*s]", (int)(end - begin), text + begin);
        }
        assert_int_equal(at, strlen(text));
        assert_string_equal(pieces, expected);
    }
    split_deinit(&pass);
    splitter_deinit(&s);
}

static void test_pieces(void **state)
{
    (void)state;
    /* What is between matches, before the first and after the last, is a piece too. */
    assert_pieces("b+", "aabbabaa", "[aa][bb][a][b][aa]");
    assert_pieces("b", "aa", "[aa]");
    assert_pieces("b", "", "");
    assert_pieces("\\s", "a\u180eb\u2003c", "[a\u180eb][\u2003][c]");
    assert_pieces("\\S+", "a\u180eb\u2003c", "[a\u180eb][\u2003][c]");
    assert_pieces("[\\S]+",
                  "a\u180eb\u2003c\nd\xc2\x85"
                  "e\u3000f",
                  "[a\u180eb][\u2003][c][\n][d][\xc2\x85][e][\u3000][f]");
    assert_pieces("(?i:'s)", "x'\u017fy'S", "[x]['\u017f][y]['S]");
    /* Unicode 15 and 16: a letter, a mark, a number, and beside them a letter of old. */
    assert_pieces("\\p{L}+|\\p{M}|\\p{N}", "a\u1c89\U00031350\u0897\U0001611e\U00010d40-",
                  "[a\u1c89\U00031350][\u0897][\U0001611e][\U00010d40][-]");
}

/* Repeated groups need a stack that grows with the text; the compiled form has a fixed one. */
static void test_deep_pattern(void **state)
{
    (void)state;
    enum { N = 300000 };
    splitter s = {0};
    split_pass pass;
    calla_error err;
    size_t begin, end;
    char *text = malloc(N);
    assert_non_null(text);
    for (int i = 0; i < N; i++) text[i] = "abc"[i % 3];
    assert_ok(splitter_init(&s, "(?:ab|c)+", 9, &err), &err);
    assert_ok(split_init(&pass, &s, &err), &err);
    assert_ok(split_begin(&pass, text, N, &err), &err);
    assert_ok(split_next(&pass, &begin, &end, &err), &err);
    assert_int_equal(begin, 0);
    assert_int_equal(end, N);
    split_deinit(&pass);
    splitter_deinit(&s);
    free(text);
}

/* Exponential patterns end with an error instead of running on. */
static void test_runaway_pattern(void **state)
{
    (void)state;
    static const char pattern[] = "(?:a+)+[bc]",
                      text[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    splitter s = {0};
    split_pass pass;
    calla_error err;
    size_t begin, end;
    assert_ok(splitter_init(&s, pattern, strlen(pattern), &err), &err);
    assert_ok(split_init(&pass, &s, &err), &err);
    assert_ok(split_begin(&pass, text, strlen(text), &err), &err);
    assert_error(split_next(&pass, &begin, &end, &err), CALLA_ERR_INPUT, &err, "match limit");
    split_deinit(&pass);
    splitter_deinit(&s);
}

/* ---- added tokens ---- */

static void test_added_tree(void **state)
{
    (void)state;
    static const char *const texts[] = {"<a>", "<ab>", "<", "x", "<a>b<", "\xe4\xb8\xad"};
    added_tree tree = {0};
    calla_error err;
    int32_t before;
    size_t length;
    for (int i = 0; i < 6; i++) {
        assert_ok(added_insert(&tree, texts[i], strlen(texts[i]), i, &before, &err), &err);
        assert_int_equal(before, -1);
    }
    assert_ok(added_insert(&tree, "<ab>", 4, 9, &before, &err), &err);
    assert_int_equal(before, 1);
    for (int i = 0; i < 6; i++) assert_int_equal(added_find(&tree, texts[i], strlen(texts[i])), i);
    assert_int_equal(added_find(&tree, "<ab", 3), -1);
    assert_int_equal(added_find(&tree, "<ab>c", 5), -1);
    assert_int_equal(added_match(&tree, "<a>b<<", 6, &length), 4);
    assert_int_equal(length, 5);
    assert_int_equal(added_match(&tree, "<a>b<<", 4, &length), 0);
    assert_int_equal(length, 3);
    assert_int_equal(added_match(&tree, "<a", 2, &length), 2);
    assert_int_equal(length, 1);
    assert_int_equal(added_match(&tree, "y", 1, &length), -1);
    assert_int_equal(added_match(&tree, "x", 0, &length), -1);
    assert_true(tree.starts['<'] && tree.starts['x'] && !tree.starts['a']);
    added_deinit(&tree);
    assert_int_equal(added_match(&tree, "x", 1, &length), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merging),          cmocka_unit_test(test_merging_any_order),
        cmocka_unit_test(test_nfc_certain),      cmocka_unit_test(test_nfc_order),
        cmocka_unit_test(test_nfc_newer),        cmocka_unit_test(test_rewriting),
        cmocka_unit_test(test_refused_patterns), cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_deep_pattern),     cmocka_unit_test(test_runaway_pattern),
        cmocka_unit_test(test_added_tree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
