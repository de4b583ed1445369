/* calla_session: what to reuse, rewind or compute. */
#include "engine/engine.h"
#include "engine/snapshot_files.h"

#include "base/clock.h"
#include "base/memory.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Most bytes of logits calla_session_score holds at a time. */
#define SCORE_BYTES ((int64_t)256 << 20)

/* ---- create and free ---- */

static void take_arrays(calla_session *s, arena *a)
{
    s->tokens = arena_take(a, (size_t)s->engine->info.n_ctx, sizeof *s->tokens);
    s->logits = arena_take(a, (size_t)s->engine->info.n_vocab, sizeof *s->logits);
}

calla_status calla_session_create(calla_engine *engine, calla_session **session, calla_error *err)
{
    calla_status status = CALLA_OK;
    arena a = {0};
    calla_session *s = calloc(1, sizeof *s);
    if (!s) return error_set(err, CALLA_ERR_MEMORY, "no memory for a session");
    s->engine = engine;
    take_arrays(s, &a);
    CALLA_TRY_GOTO(arena_allocate(&a, "session", err), fail);
    s->memory = a.memory;
    take_arrays(s, &a);
    CALLA_TRY_GOTO(token_counts_init(&s->generated, engine->info.n_vocab, err), fail);
    CALLA_TRY_GOTO(engine->ops->sequence_create(engine->backend, &s->sequence, err), fail);
    *session = s;
    return CALLA_OK;
fail:
    calla_session_free(s);
    return status;
}

void calla_session_free(calla_session *s)
{
    if (!s) return;
    session_settle(s);
    if (s->sequence) s->engine->ops->sequence_free(s->engine->backend, s->sequence);
    token_counts_deinit(&s->generated);
    mem_free(s->memory);
    free(s);
}

const int32_t *calla_session_tokens(const calla_session *s, int64_t *n_tokens)
{
    *n_tokens = s->n_tokens;
    return s->tokens;
}

/* ---- the sequence ---- */

int64_t session_n_run(const calla_session *s)
{
    return s->engine->ops->sequence_length(s->engine->backend, s->sequence);
}

void session_reset(calla_session *s)
{
    session_settle(s);
    s->engine->ops->sequence_reset(s->engine->backend, s->sequence);
    s->n_tokens = s->n_target = 0;
    s->decoded = s->has_logits = s->knows_next = s->owes = false;
    s->lost.code = CALLA_OK;
}

/* A caller's progress, counted over several calls to the backend. */
typedef struct progress_part {
    const calla_control *control;
    int64_t base, total;
} progress_part;

static void report_part(void *user, int64_t done, int64_t total)
{
    progress_part *p = user;
    (void)total;
    p->control->progress(p->control->user, p->base + done, p->total);
}

/* Prefills from where the sequence stands to s->tokens[to); logits as in prefill_tokens.
 * Snapshots make way when KV blocks run out. */
static calla_status prefill(calla_session *s, int64_t to, logits_mode mode, float *logits,
                            const progress_part *progress, calla_error *err)
{
    calla_engine *e = s->engine;
    const calla_control *outer = progress->control;
    int64_t first = session_n_run(s);
    for (;;) {
        int64_t from = session_n_run(s);
        progress_part part = {outer, progress->base + from - first, progress->total};
        calla_control control = {.cancel = outer ? outer->cancel : NULL,
                                 .progress = outer && outer->progress ? report_part : NULL,
                                 .user = &part};
        float *rows = mode == LOGITS_ALL ? logits + (from - first) * e->info.n_vocab : logits;
        calla_status status = prefill_tokens(e->ops, e->backend, s->sequence, s->tokens + from,
                                             to - from, mode, rows, e->info.n_vocab, &control, err);
        s->n_tokens = session_n_run(s);
        s->has_logits = false;
        if (status != CALLA_ERR_MEMORY) return status;
        if (!snapshot_store_evict(&e->snapshots)) return status;
    }
}

/* ---- sync ---- */

void session_keep_logits(calla_session *s, const float *logits)
{
    memcpy(s->logits, logits, (size_t)s->engine->info.n_vocab * sizeof *logits);
    s->has_logits = true;
}

static calla_status check_tokens(const calla_session *s, const int32_t *tokens, int64_t n_tokens,
                                 calla_error *err)
{
    const calla_engine_info *info = &s->engine->info;
    if (n_tokens < 1) return error_set(err, CALLA_ERR_INPUT, "the prompt has no tokens");
    if (n_tokens > info->n_ctx)
        return error_set(err, CALLA_ERR_CONTEXT, "the prompt has %lld tokens, the context holds %d",
                         (long long)n_tokens, info->n_ctx);
    for (int64_t i = 0; i < n_tokens; i++)
        if (tokens[i] < 0 || tokens[i] >= info->n_vocab)
            return error_set(err, CALLA_ERR_INPUT,
                             "token %lld of the prompt is %d, outside 0 ... %d", (long long)i,
                             tokens[i], info->n_vocab - 1);
    return CALLA_OK;
}

/* Whether the session's own state leads to tokens[n_tokens]. */
static bool can_extend(const calla_session *s, const int32_t *tokens, int64_t n_tokens)
{
    int64_t n = session_n_run(s);
    if (n > n_tokens || (n == n_tokens && !(s->has_logits && s->n_tokens == n))) return false;
    return memcmp(s->tokens, tokens, (size_t)n * sizeof *tokens) == 0;
}

/* Notes what the last sync could take over: `own` tokens are shared with the timeline before. */
static void note_reuse(calla_session *s, const snapshot_match *m, const int32_t *tokens,
                       int64_t n_tokens)
{
    int64_t own = 0, n = s->n_tokens < n_tokens ? s->n_tokens : n_tokens;
    while (own < n && s->tokens[own] == tokens[own]) own++;
    s->reuse = (session_reuse){.n_common = own, .other_token = -1};
    if (own < s->n_tokens) s->reuse.other_token = s->tokens[own];
    if (!m->nearest || m->n_common <= own) return;
    s->reuse.n_common = m->n_common;
    s->reuse.other_token =
        m->n_common < m->nearest->n_tokens ? m->nearest->tokens[m->n_common] : -1;
}

/* Brings the sequence to the deepest reusable prefix of tokens. */
static void rewind_to_prefix(calla_session *s, const int32_t *tokens, int64_t n_tokens)
{
    calla_engine *e = s->engine;
    snapshot_match match = snapshot_store_find(&e->snapshots, tokens, n_tokens);
    bool extend = can_extend(s, tokens, n_tokens);
    int64_t own = extend ? session_n_run(s) : 0, kept = match.usable ? match.usable->n_tokens : 0;
    if (e->snapshots.files) {
        snapshot_files_restore(e->snapshots.files, tokens, n_tokens, kept > own ? kept : own);
        match = snapshot_store_find(&e->snapshots, tokens, n_tokens);
        kept = match.usable ? match.usable->n_tokens : 0;
    }
    snapshot_slot *slot = match.usable;
    note_reuse(s, &match, tokens, n_tokens);
    if (slot && (kept > own || (kept == own && s->decoded && !slot->decoded))) {
        e->ops->snapshot_restore(e->backend, slot->state, s->sequence);
        memcpy(s->tokens, slot->tokens, (size_t)kept * sizeof *tokens);
        s->n_tokens = kept;
        s->decoded = slot->decoded;
        s->has_logits = false;
        if (slot->has_logits) session_keep_logits(s, slot->logits);
        snapshot_store_touch(&e->snapshots, slot);
    } else if (!extend) {
        session_reset(s);
    } else if (s->n_tokens > own) { /* a sampled token that was never run */
        s->n_tokens = own;
        s->has_logits = false;
    }
    s->reuse.n_reused = session_n_run(s);
    s->reuse.decoded = s->decoded;
}

/* ---- where snapshots stand ---- */

static void add_point(calla_session *s, int64_t at)
{
    int32_t i = s->n_points;
    while (i > 0 && s->points[i - 1] > at) i--;
    if (s->n_points == MAX_SNAPSHOT_POINTS || (i > 0 && s->points[i - 1] == at)) return;
    memmove(s->points + i + 1, s->points + i, (size_t)(s->n_points - i) * sizeof *s->points);
    s->points[i] = at;
    s->n_points++;
}

/* Multiples of the stride, or wider apart, so that one long prompt does not push out the rest. */
static void add_grid_points(calla_session *s, int64_t from, int64_t n_most)
{
    int64_t stride = s->engine->snapshot_stride;
    if (n_most < 1 || stride < 1) return;
    int64_t n = (s->n_target - 1) / stride - from / stride;
    if (n < 1) return;
    int64_t step = stride * ((n + n_most - 1) / n_most);
    for (int64_t at = (from / step + 1) * step; at < s->n_target; at += step) add_point(s, at);
}

/* Message starts: the last one, where the next turn parts from this; the one after the system
 * message, which other conversations share; then from the last to the first. */
static void add_turn_points(calla_session *s, int64_t from, int64_t n_most)
{
    const calla_engine *e = s->engine;
    int64_t grid = e->capabilities.snapshot_grid, first = 1, n = 0;
    int32_t turn = e->vocabulary.turn_token;
    if (turn < 0) return;
    while (first < s->n_target && s->tokens[first] != turn) first++;
    for (int64_t i = s->n_target - 1; i > from && n < n_most; i--) {
        if (s->tokens[i] != turn) continue;
        if (i / grid * grid > from) add_point(s, i / grid * grid);
        if (++n == 1 && n < n_most && first > from && first < i) {
            if (first / grid * grid > from) add_point(s, first / grid * grid);
            n++;
        }
    }
}

static void plan_points(calla_session *s)
{
    int32_t n_slots = s->engine->snapshots.n_slots;
    int64_t from = session_n_run(s), half = MAX_SNAPSHOT_POINTS / 2;
    s->n_points = 0;
    if (n_slots == 0) return;
    add_grid_points(s, from, n_slots / 2 < half ? n_slots / 2 : half);
    if (n_slots > 1)
        add_turn_points(s, from, n_slots < 8 ? 1 : n_slots / 4 < half ? n_slots / 4 : half);
}

void session_keep(calla_session *s)
{
    calla_engine *e = s->engine;
    session_settle(s);
    int64_t n = session_n_run(s);
    if (n == 0 || n % e->capabilities.snapshot_grid != 0 || (s->decoded && !e->keep_decoded))
        return;
    bool has_logits = s->has_logits && s->n_tokens == n;
    snapshot_store_keep(&e->snapshots, s->sequence, s->tokens, n, has_logits ? s->logits : NULL,
                        s->decoded);
}

/* ---- running a prompt ---- */

/* The snapshot before the last message goes to a file, too: from there the next turn goes on. */
static void save_if_worth(calla_session *s, int64_t at)
{
    calla_engine *e = s->engine;
    int64_t i = s->n_target - 1, grid = e->capabilities.snapshot_grid;
    if (!e->snapshots.files) return;
    while (i > at && s->tokens[i] != e->vocabulary.turn_token) i--;
    if (i / grid * grid == at && at < s->n_target)
        snapshot_files_save(e->snapshots.files, s->tokens, at);
}

static int64_t next_point(const calla_session *s, int64_t from)
{
    for (int32_t i = 0; i < s->n_points; i++)
        if (s->points[i] > from) return s->points[i];
    return s->n_target;
}

/* Prefills to `end`, with a snapshot at each point on the way. */
static calla_status run_prompt(calla_session *s, int64_t end, progress_part *progress,
                               calla_error *err)
{
    calla_engine *e = s->engine;
    int64_t from = session_n_run(s);
    for (int64_t at = from; at < end;) {
        int64_t point = next_point(s, at), to = point < end ? point : end;
        bool last = to == s->n_target;
        progress->base = at - from;
        CALLA_TRY(prefill(s, to, last ? LOGITS_LAST : LOGITS_NONE, last ? s->logits : NULL,
                          progress, err));
        if (last) {
            CALLA_TRY(logits_check(s->logits, e->info.n_vocab, to - 1, err));
            s->has_logits = true;
        }
        if (to == point) {
            session_keep(s);
            save_if_worth(s, to);
        }
        at = to;
    }
    return CALLA_OK;
}

calla_status calla_session_begin(calla_session *s, const int32_t *tokens, int64_t n_tokens,
                                 calla_sync_stats *stats, calla_error *err)
{
    CALLA_TRY(check_tokens(s, tokens, n_tokens, err));
    session_settle(s);
    s->knows_next = false;
    s->lost.code = CALLA_OK;
    rewind_to_prefix(s, tokens, n_tokens);
    token_counts_clear(&s->generated);
    memmove(s->tokens, tokens, (size_t)n_tokens * sizeof *tokens); /* they may be its own */
    s->n_target = n_tokens;
    int64_t n_reused = session_n_run(s);
    if (n_reused < n_tokens) s->has_logits = false;
    plan_points(s);
    if (stats)
        *stats = (calla_sync_stats){.n_tokens = (int32_t)n_tokens,
                                    .n_reused = (int32_t)n_reused,
                                    .n_prefill = (int32_t)(n_tokens - n_reused)};
    return CALLA_OK;
}

calla_status calla_session_advance(calla_session *s, int64_t n_most, const calla_control *control,
                                   int64_t *n_left, calla_error *err)
{
    assert(n_most >= 1);
    if (s->n_target == 0) return error_set(err, CALLA_ERR_INPUT, "no prompt was begun");
    int64_t from = session_n_run(s), left = from < s->n_target ? s->n_target - from : 0;
    if (left > 0) {
        int64_t end = n_most < left ? from + n_most : s->n_target;
        progress_part progress = {control, 0, left};
        calla_status status = run_prompt(s, end, &progress, err);
        if (status == CALLA_ERR_NUMERIC || status == CALLA_ERR_DEVICE) session_reset(s);
        if (status != CALLA_OK) return status;
        left = s->n_target - end;
    }
    *n_left = left;
    return CALLA_OK;
}

calla_status calla_session_sync(calla_session *s, const int32_t *tokens, int64_t n_tokens,
                                const calla_control *control, calla_sync_stats *stats,
                                calla_error *err)
{
    calla_sync_stats begun;
    int64_t n_left, start_ns = clock_ns();
    CALLA_TRY(calla_session_begin(s, tokens, n_tokens, &begun, err));
    CALLA_TRY(calla_session_advance(s, n_tokens, control, &n_left, err));
    begun.prefill_ns = clock_ns() - start_ns;
    if (stats) *stats = begun;
    return CALLA_OK;
}

/* ---- score ---- */

/* Rows per piece: as many as fit SCORE_BYTES, on a grid the backend's chunks are on too. */
static int64_t score_rows(const calla_engine *e)
{
    int64_t rows = SCORE_BYTES / ((int64_t)e->info.n_vocab * (int64_t)sizeof(float));
    if (rows > e->options.prefill_chunk) rows = e->options.prefill_chunk;
    return rows > 64 ? rows / 64 * 64 : rows < 1 ? 1 : rows;
}

calla_status calla_session_score(calla_session *s, const int32_t *tokens, int64_t n_tokens,
                                 calla_logits_fn rows, void *user, const calla_control *control,
                                 calla_error *err)
{
    CALLA_TRY(check_tokens(s, tokens, n_tokens, err));
    calla_status status = CALLA_OK;
    int64_t n_vocab = s->engine->info.n_vocab, n_rows = score_rows(s->engine);
    if (n_rows > n_tokens) n_rows = n_tokens;
    void *memory;
    CALLA_TRY(mem_alloc((size_t)(n_rows * n_vocab), sizeof(float), "logits", &memory, err));
    float *logits = memory;
    session_reset(s);
    token_counts_clear(&s->generated);
    memmove(s->tokens, tokens, (size_t)n_tokens * sizeof *tokens); /* they may be its own */
    progress_part progress = {control, 0, n_tokens};
    for (int64_t at = 0; at < n_tokens; at += n_rows) {
        int64_t to = at + n_rows < n_tokens ? at + n_rows : n_tokens;
        progress.base = at;
        CALLA_TRY_GOTO(prefill(s, to, LOGITS_ALL, logits, &progress, err), done);
        for (int64_t i = 0; i < to - at; i++)
            CALLA_TRY_GOTO(logits_check(logits + i * n_vocab, n_vocab, at + i, err), done);
        if (rows(user, at, to - at, logits) != 0) {
            status = error_set(err, CALLA_ERR_CANCELLED, "cancelled");
            goto done;
        }
        if (to == n_tokens) {
            session_keep_logits(s, logits + (to - at - 1) * n_vocab);
        }
    }
done:
    if (status == CALLA_ERR_NUMERIC || status == CALLA_ERR_DEVICE) session_reset(s);
    mem_free(memory);
    return status;
}
