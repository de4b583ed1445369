#include "hybrid/redact.h"

#include "base/json.h"
#include "base/memory.h"
#include "hybrid/placeholder.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* A value: its bytes as first seen, and after them its normalised form, by which it is found. */
typedef struct entry {
    char *bytes; /* [n_value + n_key] */
    size_t n_value, n_key;
    uint64_t hash;
    int type;
    uint32_t number;
} entry;

/* What the values that are put back may take together: an answer that is nothing but placeholders
 * of a long value must not fill the memory. */
#define MOST_RESTORED ((size_t)64 << 20)

struct redaction_map {
    pthread_mutex_t lock;
    size_t n_restored; /* bytes of values put back */
    uint64_t seed;     /* of the hashes, so that nobody can choose values that collide */
    entry *entries;    /* [n], in the order they came */
    size_t n, capacity;
    size_t *slots; /* [n_slots], a power of two: index of an entry and 1, or 0 */
    size_t n_slots;
    struct {
        size_t *entry; /* [n]: of number i + 1 */
        size_t n, capacity;
    } by_number[PLACEHOLDER_N_TYPES];
};

static void wipe_and_free(void *memory, size_t n_bytes)
{
    if (memory) explicit_bzero(memory, n_bytes);
    free(memory);
}

static void wipe_strbuf(strbuf *s)
{
    if (s->data) explicit_bzero(s->data, s->capacity);
    strbuf_free(s);
}

calla_status redaction_map_create(redaction_map **map, calla_error *err)
{
    redaction_map *m = calloc(1, sizeof *m);
    if (!m) return error_set(err, CALLA_ERR_MEMORY, "no memory for a redaction map");
    if (getrandom(&m->seed, sizeof m->seed, GRND_NONBLOCK) != sizeof m->seed)
        m->seed = (uint64_t)(uintptr_t)m;
    pthread_mutex_init(&m->lock, NULL);
    *map = m;
    return CALLA_OK;
}

void redaction_map_free(redaction_map *map)
{
    if (!map) return;
    for (size_t i = 0; i < map->n; i++)
        wipe_and_free(map->entries[i].bytes, map->entries[i].n_value + map->entries[i].n_key);
    wipe_and_free(map->entries, map->capacity * sizeof *map->entries);
    wipe_and_free(map->slots, map->n_slots * sizeof *map->slots);
    for (int i = 0; i < PLACEHOLDER_N_TYPES; i++) free(map->by_number[i].entry);
    pthread_mutex_destroy(&map->lock);
    free(map);
}

size_t redaction_map_size(redaction_map *map)
{
    pthread_mutex_lock(&map->lock);
    size_t n = map->n;
    pthread_mutex_unlock(&map->lock);
    return n;
}

static uint64_t hash_of(const redaction_map *map, int type, const char *key, size_t n)
{
    uint64_t h = map->seed ^ (uint64_t)type;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ (unsigned char)key[i]) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
    }
    return h;
}

/* Room for one more value in all tables. */
static calla_status make_room(redaction_map *map, int type, calla_error *err)
{
    static const char what[] = "a redaction map";
    CALLA_TRY(mem_grow((void **)&map->by_number[type].entry, &map->by_number[type].capacity,
                       map->by_number[type].n + 1, sizeof(size_t), what, err));
    /* Not mem_grow: what realloc leaves behind would not be wiped. */
    if (map->n == map->capacity) {
        size_t capacity = map->capacity ? 2 * map->capacity : 16;
        entry *entries = calloc(capacity, sizeof *entries);
        if (!entries) return error_set(err, CALLA_ERR_MEMORY, "no memory for %s", what);
        if (map->n) memcpy(entries, map->entries, map->n * sizeof *entries);
        wipe_and_free(map->entries, map->capacity * sizeof *entries);
        map->entries = entries;
        map->capacity = capacity;
    }
    if (2 * (map->n + 1) <= map->n_slots) return CALLA_OK;
    size_t n_slots = map->n_slots ? 2 * map->n_slots : 64;
    size_t *slots = calloc(n_slots, sizeof *slots);
    if (!slots) return error_set(err, CALLA_ERR_MEMORY, "no memory for %s", what);
    for (size_t i = 0; i < map->n; i++) {
        size_t at = map->entries[i].hash & (n_slots - 1);
        while (slots[at]) at = (at + 1) & (n_slots - 1);
        slots[at] = i + 1;
    }
    free(map->slots);
    map->slots = slots;
    map->n_slots = n_slots;
    return CALLA_OK;
}

/* The number of the value [n], with its normalised form `key`, a new one if it is not there yet. */
static calla_status number_of_value(redaction_map *map, int type, const char *value, size_t n,
                                    const strbuf *key, uint32_t *number, calla_error *err)
{
    uint64_t hash = hash_of(map, type, key->data, key->n);
    CALLA_TRY(make_room(map, type, err));
    size_t at = hash & (map->n_slots - 1);
    for (; map->slots[at]; at = (at + 1) & (map->n_slots - 1)) {
        const entry *e = &map->entries[map->slots[at] - 1];
        if (e->hash != hash || e->type != type || e->n_key != key->n ||
            memcmp(e->bytes + e->n_value, key->data, key->n) != 0)
            continue;
        *number = e->number;
        return CALLA_OK;
    }
    entry e = {.n_value = n, .n_key = key->n, .hash = hash, .type = type};
    e.number = (uint32_t)map->by_number[type].n + 1;
    e.bytes = malloc(n + key->n + 1);
    if (!e.bytes) return error_set(err, CALLA_ERR_MEMORY, "no memory for a redaction map");
    memcpy(e.bytes, value, n);
    memcpy(e.bytes + n, key->data, key->n);
    map->slots[at] = map->n + 1;
    map->by_number[type].entry[map->by_number[type].n++] = map->n;
    map->entries[map->n++] = e;
    *number = e.number;
    return CALLA_OK;
}

static calla_status put_placeholder(redaction_map *map, int type, const char *value, size_t n,
                                    strbuf *out, calla_error *err)
{
    strbuf key = {0};
    if (type == PLACEHOLDER_TEXT)
        strbuf_append(&key, value, n);
    else
        detect_normalise((detect_category)type, value, n, &key);
    /* What is nothing but separators is itself. */
    if (key.n == 0) strbuf_append(&key, value, n);
    uint32_t number = 0;
    calla_status status = key.failed
                              ? error_set(err, CALLA_ERR_MEMORY, "no memory for a redaction map")
                              : number_of_value(map, type, value, n, &key, &number, err);
    if (status == CALLA_OK) placeholder_write(out, type, number);
    wipe_strbuf(&key);
    return status;
}

/* Text between findings: as it is, but for what looks like a placeholder. */
static calla_status put_plain(redaction_map *map, const char *text, size_t n, strbuf *out,
                              calla_error *err)
{
    size_t from = 0;
    for (size_t i = 0; i < n;) {
        placeholder p;
        if (!placeholder_may_start(text[i]) ||
            placeholder_read(text + i, n - i, &p) != PLACEHOLDER_FOUND) {
            i++;
            continue;
        }
        strbuf_append(out, text + from, i - from);
        CALLA_TRY(put_placeholder(map, PLACEHOLDER_TEXT, text + i, p.n_bytes, out, err));
        from = i += p.n_bytes;
    }
    strbuf_append(out, text + from, n - from);
    return CALLA_OK;
}

calla_status redact_text(redaction_map *map, const char *text, size_t n_bytes,
                         const finding *findings, size_t n_findings, strbuf *out, calla_error *err)
{
    size_t before = out->n, at = 0;
    calla_status status = CALLA_OK;
    pthread_mutex_lock(&map->lock);
    for (size_t i = 0; i < n_findings; i++) {
        const finding *f = &findings[i];
        if (f->start < at || f->end <= f->start || f->end > n_bytes) {
            status = error_set(err, CALLA_ERR_INPUT, "finding %zu, [%zu, %zu), is out of order", i,
                               f->start, f->end);
            goto done;
        }
        CALLA_TRY_GOTO(put_plain(map, text + at, f->start - at, out, err), done);
        CALLA_TRY_GOTO(
            put_placeholder(map, (int)f->category, text + f->start, f->end - f->start, out, err),
            done);
        at = f->end;
    }
    CALLA_TRY_GOTO(put_plain(map, text + at, n_bytes - at, out, err), done);
    if (out->failed) status = error_set(err, CALLA_ERR_MEMORY, "no memory for a redacted text");
done:
    pthread_mutex_unlock(&map->lock);
    if (status != CALLA_OK && out->data) {
        out->n = before;
        out->data[before] = '\0';
    }
    return status;
}

/* ---- back ---- */

struct restorer {
    redaction_map *map;
    restore_form form;
    strbuf held; /* what may be the beginning of a placeholder */
};

calla_status restorer_create(redaction_map *map, restore_form form, restorer **r, calla_error *err)
{
    restorer *made = calloc(1, sizeof *made);
    if (!made) return error_set(err, CALLA_ERR_MEMORY, "no memory to restore a text");
    made->map = map;
    made->form = form;
    *r = made;
    return CALLA_OK;
}

void restorer_free(restorer *r)
{
    if (!r) return;
    strbuf_free(&r->held);
    free(r);
}

static void put_value(redaction_map *map, restore_form form, const placeholder *p,
                      const char *written, strbuf *out)
{
    const entry *e = NULL;
    pthread_mutex_lock(&map->lock);
    if (p->number <= map->by_number[p->type].n)
        e = &map->entries[map->by_number[p->type].entry[p->number - 1]];
    if (e && map->n_restored + e->n_value > MOST_RESTORED) e = NULL;
    if (e) map->n_restored += e->n_value;
    if (!e)
        strbuf_append(out, written, p->n_bytes);
    else if (form == RESTORE_JSON)
        json_write_escaped(out, e->bytes, e->n_value);
    else
        strbuf_append(out, e->bytes, e->n_value);
    pthread_mutex_unlock(&map->lock);
}

/* Appends text [n] restored and returns how much of it was used up: all if `last`, else all but
 * what may be a beginning. */
static size_t restore_some(redaction_map *map, restore_form form, const char *text, size_t n,
                           bool last, strbuf *out)
{
    size_t from = 0, i = 0;
    while (i < n) {
        placeholder p;
        placeholder_match match = placeholder_may_start(text[i])
                                      ? placeholder_read(text + i, n - i, &p)
                                      : PLACEHOLDER_NONE;
        if (match == PLACEHOLDER_CUT && !last) break;
        if (match != PLACEHOLDER_FOUND) {
            i++;
            continue;
        }
        strbuf_append(out, text + from, i - from);
        put_value(map, form, &p, text + i, out);
        from = i += p.n_bytes;
    }
    strbuf_append(out, text + from, i - from);
    return i;
}

void restorer_push(restorer *r, const char *piece, size_t n_bytes, strbuf *out)
{
    strbuf_append(&r->held, piece, n_bytes);
    if (r->held.failed) {
        out->failed = true;
        return;
    }
    size_t used = restore_some(r->map, r->form, r->held.data, r->held.n, false, out);
    memmove(r->held.data, r->held.data + used, r->held.n - used);
    r->held.n -= used;
}

void restorer_finish(restorer *r, strbuf *out)
{
    if (r->held.n) restore_some(r->map, r->form, r->held.data, r->held.n, true, out);
    strbuf_clear(&r->held);
}

void restore_text(redaction_map *map, restore_form form, const char *text, size_t n_bytes,
                  strbuf *out)
{
    restore_some(map, form, text, n_bytes, true, out);
}
