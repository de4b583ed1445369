#include "grammar/regex_parse.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

typedef struct parser {
    const char *text, *at, *end;
    regex_tree *tree;
    calla_error *err;
    calla_status status;
    int depth;
} parser;

void regex_tree_free(regex_tree *t)
{
    free(t->nodes);
    free(t->sets);
    *t = (regex_tree){0};
}

/* ---- building ---- */

static void refuse(parser *p, const char *what)
{
    if (p->status != CALLA_OK) return;
    p->status = error_set(p->err, CALLA_ERR_UNSUPPORTED, "%s at byte %zu of the pattern", what,
                          (size_t)(p->at - p->text));
    p->at = p->end;
}

static uint32_t add_node(parser *p, regex_node node)
{
    regex_tree *t = p->tree;
    void *nodes = t->nodes;
    if (p->status == CALLA_OK)
        p->status = mem_grow(&nodes, &t->node_capacity, t->n_nodes + 1, sizeof *t->nodes,
                             "a pattern", p->err);
    t->nodes = nodes;
    if (p->status != CALLA_OK) return 0;
    t->nodes[t->n_nodes] = node;
    return (uint32_t)t->n_nodes++;
}

static uint32_t add_set(parser *p, charset *set)
{
    regex_tree *t = p->tree;
    void *sets = t->sets;
    if (set->overflow) refuse(p, "a class of too many ranges");
    if (p->status == CALLA_OK)
        p->status =
            mem_grow(&sets, &t->set_capacity, t->n_sets + 1, sizeof *t->sets, "a pattern", p->err);
    t->sets = sets;
    if (p->status != CALLA_OK) return 0;
    charset_normalize(set);
    t->sets[t->n_sets] = *set;
    return add_node(p, (regex_node){.kind = REGEX_SET, .a = (uint32_t)t->n_sets++});
}

/* ---- characters ---- */

static uint32_t next_char(parser *p)
{
    unsigned char c = (unsigned char)*p->at++;
    int more = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : c >= 0xc0 ? 1 : 0;
    uint32_t point = more == 3 ? c & 7u : more == 2 ? c & 15u : more == 1 ? c & 31u : c;
    for (; more > 0 && p->at < p->end; more--) point = point << 6 | ((unsigned char)*p->at++ & 63u);
    return point;
}

static bool take(parser *p, char c)
{
    if (p->at == p->end || *p->at != c) return false;
    p->at++;
    return true;
}

static uint32_t hex(parser *p, int n)
{
    uint32_t value = 0;
    for (int i = 0; i < n; i++) {
        char c = p->at < p->end ? *p->at : '\0';
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) {
            refuse(p, "a hexadecimal escape that is not one");
            return 0;
        }
        value = value << 4 | (uint32_t)digit;
        p->at++;
    }
    return value;
}

/* \d \w \s and their opposites; false: another escape. */
static bool add_class_escape(char c, charset *set)
{
    static const char_range spaces[] = {
        {9, 13},          {32, 32},         {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
        {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
    charset one = {0};
    switch (c | 0x20) {
    case 'd':
        charset_add(&one, '0', '9');
        break;
    case 'w':
        charset_add(&one, '0', '9');
        charset_add(&one, 'A', 'Z');
        charset_add(&one, 'a', 'z');
        charset_add(&one, '_', '_');
        break;
    case 's':
        for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
            charset_add(&one, spaces[i].lo, spaces[i].hi);
        break;
    default:
        return false;
    }
    if (!(c & 0x20)) charset_negate(&one);
    charset_add_set(set, &one);
    return true;
}

/* After a backslash that begins no class: the character it stands for. */
static uint32_t escaped_char(parser *p)
{
    static const char letters[] = "n\nr\rt\tf\fv\v";
    char c = *p->at;
    for (const char *l = letters; *l; l += 2) {
        if (*l != c) continue;
        p->at++;
        return (unsigned char)l[1];
    }
    if (c == '0') return p->at++, 0;
    if (c == 'x') return p->at++, hex(p, 2);
    if (c == 'u') {
        p->at++;
        uint32_t high = hex(p, 4);
        if (high < 0xd800 || high > 0xdbff || p->end - p->at < 6 || p->at[0] != '\\' ||
            p->at[1] != 'u')
            return high;
        p->at += 2;
        return 0x10000 + ((high & 0x3ff) << 10) + (hex(p, 4) & 0x3ff);
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9')) {
        refuse(p, "an escape that is not supported");
        return 0;
    }
    return next_char(p);
}

/* One member of a class; *is_set: it was a whole class. */
static uint32_t class_member(parser *p, charset *set, bool *is_set)
{
    *is_set = false;
    if (!take(p, '\\')) return next_char(p);
    if (p->at == p->end) {
        refuse(p, "a backslash with nothing after it");
        return 0;
    }
    *is_set = add_class_escape(*p->at, set);
    if (*is_set) return p->at++, 0;
    if (*p->at == 'b') return p->at++, '\b';
    return escaped_char(p);
}

static uint32_t parse_class(parser *p)
{
    charset set = {0};
    bool negated = take(p, '^');
    while (p->at < p->end && *p->at != ']') {
        bool low_is_set, high_is_set;
        uint32_t lo = class_member(p, &set, &low_is_set);
        bool range = p->end - p->at >= 2 && p->at[0] == '-' && p->at[1] != ']';
        if (!range) {
            if (!low_is_set) charset_add(&set, lo, lo);
            continue;
        }
        p->at++;
        uint32_t hi = class_member(p, &set, &high_is_set);
        if (low_is_set || high_is_set || lo > hi) refuse(p, "a range that is not one");
        charset_add(&set, lo, hi);
    }
    if (!take(p, ']')) refuse(p, "a class without its end");
    if (negated) charset_negate(&set);
    return add_set(p, &set);
}

static uint32_t parse_dot(parser *p)
{
    charset set = {0};
    charset_add(&set, '\n', '\n');
    charset_add(&set, '\r', '\r');
    charset_add(&set, 0x2028, 0x2029);
    charset_negate(&set);
    return add_set(p, &set);
}

/* ---- structure ---- */

static uint32_t parse_alternatives(parser *p);

static uint32_t parse_group(parser *p)
{
    if (take(p, '?') && !take(p, ':')) {
        refuse(p, "a group that is not plain (a lookahead, a lookbehind, a name or flags)");
        return 0;
    }
    if (++p->depth > REGEX_MAX_DEPTH) refuse(p, "groups nested too deep");
    uint32_t node = parse_alternatives(p);
    p->depth--;
    if (!take(p, ')')) refuse(p, "a group without its end");
    return node;
}

static uint32_t parse_atom(parser *p)
{
    charset set = {0};
    char c = *p->at;
    if (take(p, '(')) return parse_group(p);
    if (take(p, '[')) return parse_class(p);
    if (take(p, '.')) return parse_dot(p);
    if (strchr("*+?{}]^$", c)) {
        refuse(p, c == '^' || c == '$' ? "^ or $ inside" : "a character that has to be escaped");
        return 0;
    }
    if (take(p, '\\')) {
        if (p->at == p->end) {
            refuse(p, "a backslash with nothing after it");
        } else if (add_class_escape(*p->at, &set)) {
            p->at++;
        } else {
            uint32_t point = escaped_char(p);
            charset_add(&set, point, point);
        }
    } else {
        uint32_t point = next_char(p);
        charset_add(&set, point, point);
    }
    return add_set(p, &set);
}

/* A decimal number, or `absent`. */
static uint32_t parse_count(parser *p, uint32_t absent)
{
    uint32_t value = 0;
    if (p->at == p->end || *p->at < '0' || *p->at > '9') return absent;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9') {
        value = value * 10 + (uint32_t)(*p->at++ - '0');
        if (value > REGEX_MAX_REPEAT) {
            refuse(p, "more repetitions than are supported");
            return 0;
        }
    }
    return value;
}

/* A quantifier, if there is one. */
static bool parse_quantifier(parser *p, uint32_t *min, uint32_t *max)
{
    if (take(p, '*')) {
        *min = 0, *max = REGEX_NO_MAX;
    } else if (take(p, '+')) {
        *min = 1, *max = REGEX_NO_MAX;
    } else if (take(p, '?')) {
        *min = 0, *max = 1;
    } else if (take(p, '{')) {
        *min = *max = parse_count(p, REGEX_NO_MAX);
        if (take(p, ',')) *max = parse_count(p, REGEX_NO_MAX);
        if (!take(p, '}') || *min == REGEX_NO_MAX || *max < *min) refuse(p, "a bad quantifier");
    } else {
        return false;
    }
    take(p, '?'); /* lazy: the same strings */
    return true;
}

static uint32_t parse_sequence(parser *p)
{
    uint32_t all = add_node(p, (regex_node){.kind = REGEX_EMPTY});
    while (p->at < p->end && *p->at != '|' && *p->at != ')') {
        if (p->depth == 0 && *p->at == '$' && (p->at + 1 == p->end || p->at[1] == '|')) break;
        uint32_t min, max, node = parse_atom(p);
        if (p->at < p->end && parse_quantifier(p, &min, &max)) {
            node =
                add_node(p, (regex_node){.kind = REGEX_REPEAT, .a = node, .min = min, .max = max});
            if (p->at < p->end && strchr("*+?{", *p->at)) refuse(p, "a quantifier of a quantifier");
        }
        all = add_node(p, (regex_node){.kind = REGEX_CAT, .a = all, .b = node});
    }
    return all;
}

/* Any text at all. */
static uint32_t add_anything(parser *p)
{
    charset set = {0};
    charset_add(&set, 0, LAST_CODE_POINT);
    uint32_t one = add_set(p, &set);
    return add_node(p, (regex_node){.kind = REGEX_REPEAT, .a = one, .max = REGEX_NO_MAX});
}

/* A sequence; outermost, with what stands around it where no anchor forbids it. */
static uint32_t parse_alternative(parser *p)
{
    bool outer = p->depth == 0, at_start = outer && take(p, '^');
    uint32_t node = parse_sequence(p);
    bool at_end = outer && take(p, '$');
    if (outer && !at_start)
        node = add_node(p, (regex_node){.kind = REGEX_CAT, .a = add_anything(p), .b = node});
    if (outer && !at_end)
        node = add_node(p, (regex_node){.kind = REGEX_CAT, .a = node, .b = add_anything(p)});
    return node;
}

static uint32_t parse_alternatives(parser *p)
{
    uint32_t node = parse_alternative(p);
    while (take(p, '|')) {
        uint32_t other = parse_alternative(p);
        node = add_node(p, (regex_node){.kind = REGEX_ALT, .a = node, .b = other});
    }
    return node;
}

calla_status regex_parse(const char *pattern, size_t n_bytes, regex_tree *t, calla_error *err)
{
    parser p = {.text = pattern, .at = pattern, .end = pattern + n_bytes, .tree = t, .err = err};
    if (n_bytes > REGEX_MAX_BYTES)
        return error_set(err, CALLA_ERR_UNSUPPORTED, "a pattern of more than %d bytes",
                         REGEX_MAX_BYTES);
    t->root = parse_alternatives(&p);
    if (p.at < p.end) refuse(&p, "a ')' too many");
    return p.status;
}
