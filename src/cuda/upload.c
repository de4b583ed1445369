/* Uploading: pieces of the checkpoint go through page-locked buffers, several in flight, and are
 * repacked by the device. */
#include "cuda/cuda.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { N_SLOTS = 4 };
#define SLOT_BYTES ((size_t)16 << 20)

typedef struct upload {
    backend *b;
    unsigned char *host, *device; /* [N_SLOTS][SLOT_BYTES] */
    cudaEvent_t done[N_SLOTS];
    bool busy[N_SLOTS];
    int next;
    int64_t bytes_done, bytes_total;
    calla_error *err;
} upload;

/* ---- slots ---- */

typedef struct copy_job {
    unsigned char *to;
    const unsigned char *from;
} copy_job;

static void copy_part(void *context, int64_t begin, int64_t end, int thread)
{
    const copy_job *c = context;
    (void)thread;
    memcpy(c->to + begin, c->from + begin, (size_t)(end - begin));
}

/* A slot whose last piece has been taken over by the device. */
static calla_status take_slot(upload *u, int *slot)
{
    *slot = u->next;
    u->next = (u->next + 1) % N_SLOTS;
    if (u->busy[*slot])
        TRY_CUDA(u->b, cudaEventSynchronize(u->done[*slot]), "uploading weights", u->err);
    u->busy[*slot] = true;
    return CALLA_OK;
}

/* Copies n bytes to `offset` of a slot's host side. */
static void fill_slot(upload *u, int slot, size_t offset, const void *from, size_t n)
{
    copy_job c = {u->host + (size_t)slot * SLOT_BYTES + offset, from};
    thread_pool_run(u->b->pool, (int64_t)n, 1 << 18, copy_part, &c);
}

/* Sends the first n bytes of the slot. */
static calla_status send_slot(upload *u, int slot, size_t n)
{
    size_t at = (size_t)slot * SLOT_BYTES;
    TRY_CUDA(u->b,
             cudaMemcpyAsync(u->device + at, u->host + at, n, cudaMemcpyHostToDevice, u->b->stream),
             "uploading weights", u->err);
    return CALLA_OK;
}

/* The slot's work is in the stream. */
static calla_status finish_slot(upload *u, int slot, size_t n)
{
    const backend_options *o = &u->b->options;
    TRY_CUDA(u->b, cudaEventRecord(u->done[slot], u->b->stream), "uploading weights", u->err);
    u->bytes_done += (int64_t)n;
    if (o->progress) o->progress(o->progress_user, "uploading", u->bytes_done, u->bytes_total);
    if (o->cancel && atomic_load_explicit(o->cancel, memory_order_relaxed))
        return error_set(u->err, CALLA_ERR_CANCELLED, "cancelled");
    return CALLA_OK;
}

static size_t round_up(size_t n)
{
    return (n + 255) / 256 * 256;
}

/* ---- matrices ---- */

/* Rows per piece. */
static int64_t piece_rows(const matrix *m, int64_t n_rows)
{
    size_t per_row = matrix_row_bytes(m) + (size_t)(m->cols / QUANT_GROUP) * 4;
    int64_t rows = (int64_t)((SLOT_BYTES - 3 * 256) / per_row);
    return rows < n_rows ? rows : n_rows;
}

/* Where the parts of a piece are in its slot. */
typedef struct piece {
    int slot;
    size_t codes_bytes, scale_bytes, scales_at, biases_at;
    const unsigned char *codes;
    const uint16_t *scales, *biases; /* in device memory */
} piece;

/* Rows [at, at + n) of m into a slot, and on their way. */
static calla_status send_piece(upload *u, const matrix *m, int64_t at, int64_t n, piece *p)
{
    size_t groups = (size_t)(m->cols / QUANT_GROUP);
    *p = (piece){.codes_bytes = (size_t)n * matrix_row_bytes(m),
                 .scale_bytes = (size_t)n * groups * sizeof(uint16_t)};
    p->scales_at = round_up(p->codes_bytes);
    p->biases_at = round_up(p->scales_at + p->scale_bytes);
    CALLA_TRY(take_slot(u, &p->slot));
    fill_slot(u, p->slot, 0, (const unsigned char *)m->codes + (size_t)at * matrix_row_bytes(m),
              p->codes_bytes);
    fill_slot(u, p->slot, p->scales_at, m->scales + (size_t)at * groups, p->scale_bytes);
    fill_slot(u, p->slot, p->biases_at, m->biases + (size_t)at * groups, p->scale_bytes);
    p->codes = u->device + (size_t)p->slot * SLOT_BYTES;
    p->scales = (const uint16_t *)(const void *)(p->codes + p->scales_at);
    p->biases = (const uint16_t *)(const void *)(p->codes + p->biases_at);
    return send_slot(u, p->slot, p->biases_at + p->scale_bytes);
}

static calla_status finish_piece(upload *u, const piece *p)
{
    return finish_slot(u, p->slot, p->codes_bytes + 2 * p->scale_bytes);
}

/* n_rows rows of m, which may be more than m->rows (those of the experts behind it), as rows
 * first ... of `to` (or the first gate or up rows). */
static calla_status upload_q4(upload *u, const device_matrix *to, int64_t first, const matrix *m,
                              int64_t n_rows, repack_rows order)
{
    int64_t step = piece_rows(m, n_rows);
    for (int64_t at = 0; at < n_rows; at += step) {
        int64_t n = step < n_rows - at ? step : n_rows - at;
        piece p;
        CALLA_TRY(send_piece(u, m, at, n, &p));
        repack_args a = {.blocks = (unsigned char *)(uintptr_t)to->w.blocks,
                         .codes = p.codes,
                         .scales = p.scales,
                         .biases = p.biases,
                         .cols = m->cols,
                         .first = first + at,
                         .n = n,
                         .order = order};
        TRY_CUDA(u->b, launch_repack(&a, u->b->stream), "repacking weights", u->err);
        CALLA_TRY(finish_piece(u, &p));
    }
    return CALLA_OK;
}

/* The factors of n_matrices matrices whose rows are all there. */
static calla_status set_factors(upload *u, const device_matrix *m, int32_t n_matrices)
{
    w4_matrix all = m->w;
    all.rows *= n_matrices;
    TRY_CUDA(u->b, prefill_w4_factors(&all, m->factors, u->b->stream), "scaling weights", u->err);
    return CALLA_OK;
}

/* A matrix that stands alone. */
static calla_status upload_whole(upload *u, const device_matrix *to, const matrix *m)
{
    CALLA_TRY(upload_q4(u, to, 0, m, m->rows, REPACK_PLAIN));
    return set_factors(u, to, 1);
}

/* Row-major, scales and biases in pairs. */
static calla_status upload_plain(upload *u, unsigned char *codes, uint32_t *pairs, const matrix *m)
{
    size_t groups = (size_t)(m->cols / QUANT_GROUP);
    int64_t step = piece_rows(m, m->rows);
    for (int64_t at = 0; at < m->rows; at += step) {
        int64_t n = step < m->rows - at ? step : m->rows - at;
        piece p;
        CALLA_TRY(send_piece(u, m, at, n, &p));
        TRY_CUDA(u->b,
                 cudaMemcpyAsync(codes + (size_t)at * matrix_row_bytes(m), p.codes, p.codes_bytes,
                                 cudaMemcpyDeviceToDevice, u->b->stream),
                 "uploading weights", u->err);
        TRY_CUDA(u->b,
                 launch_pair(p.scales, p.biases, n * (int64_t)groups, pairs + (size_t)at * groups,
                             u->b->stream),
                 "uploading weights", u->err);
        CALLA_TRY(finish_piece(u, &p));
    }
    return CALLA_OK;
}

/* ---- vectors ---- */

/* Element i of a small tensor, as the kernels want it. */
typedef float element_fn(const void *context, int32_t i);

static calla_status upload_vector(upload *u, float *to, int32_t n, element_fn *element,
                                  const void *context)
{
    int32_t most = (int32_t)(SLOT_BYTES / sizeof(float));
    for (int32_t at = 0; at < n; at += most) {
        int32_t count = smaller_of(n - at, most);
        int slot;
        CALLA_TRY(take_slot(u, &slot));
        float *values = (float *)(void *)(u->host + (size_t)slot * SLOT_BYTES);
        for (int32_t i = 0; i < count; i++) values[i] = element(context, at + i);
        TRY_CUDA(u->b,
                 cudaMemcpyAsync(to + at, values, (size_t)count * sizeof(float),
                                 cudaMemcpyHostToDevice, u->b->stream),
                 "uploading weights", u->err);
        CALLA_TRY(finish_slot(u, slot, 0));
    }
    return CALLA_OK;
}

static float norm_element(const void *context, int32_t i)
{
    return norm_factor(context, i);
}
static float plain_element(const void *context, int32_t i)
{
    return vector_at(context, i);
}
/* Finite, because it meets a softplus that may be 0 and inf * 0 is NaN; but not where the weight
 * itself is not. */
static float decay_element(const void *context, int32_t i)
{
    float a_log = vector_at(context, i);
    return isfinite(a_log) ? -fminf(expf(a_log), FLT_MAX) : NAN;
}
/* From channel-major to tap-major. */
static float tap_element(const void *context, int32_t i)
{
    const vector_view *v = context;
    int32_t channels = v->n / CONV_TAPS;
    return vector_at(v, i % channels * CONV_TAPS + i / channels);
}

static calla_status upload_norm(upload *u, float *to, const norm_view *norm)
{
    return upload_vector(u, to, norm->weight.n, norm_element, norm);
}

/* ---- layers ---- */

/* Matrices below each other in one. */
static calla_status upload_stack(upload *u, const device_matrix *to, const matrix *const *parts,
                                 int n)
{
    int64_t first = 0;
    for (int i = 0; i < n; i++) {
        CALLA_TRY(upload_q4(u, to, first, parts[i], parts[i]->rows, REPACK_PLAIN));
        first += parts[i]->rows;
    }
    return set_factors(u, to, 1);
}

static calla_status upload_attention(upload *u, const device_layer *l, const attention_weights *w)
{
    const matrix *parts[] = {&w->q, &w->k, &w->v};
    CALLA_TRY(upload_stack(u, &l->in, parts, 3));
    CALLA_TRY(upload_whole(u, &l->out, &w->o));
    CALLA_TRY(upload_norm(u, l->q_norm, &w->q_norm));
    return upload_norm(u, l->k_norm, &w->k_norm);
}

static calla_status upload_gdn(upload *u, const device_layer *l, const gdn_weights *w)
{
    const matrix *parts[] = {&w->qkv, &w->z, &w->a, &w->b};
    CALLA_TRY(upload_stack(u, &l->in, parts, 4));
    CALLA_TRY(upload_whole(u, &l->out, &w->out));
    CALLA_TRY(upload_vector(u, l->taps, w->conv.n, tap_element, &w->conv));
    CALLA_TRY(upload_vector(u, l->neg_exp_a, w->a_log.n, decay_element, &w->a_log));
    CALLA_TRY(upload_vector(u, l->dt_bias, w->dt_bias.n, plain_element, &w->dt_bias));
    return upload_norm(u, l->gdn_norm, &w->norm);
}

/* Gate and up, interleaved, of n experts. */
static calla_status upload_inner(upload *u, const device_matrix *to, const matrix *gate,
                                 const matrix *up, int32_t n)
{
    int64_t n_rows = (int64_t)n * gate->rows;
    CALLA_TRY(upload_q4(u, to, 0, gate, n_rows, REPACK_GATE));
    CALLA_TRY(upload_q4(u, to, 0, up, n_rows, REPACK_UP));
    return set_factors(u, to, n);
}

static calla_status upload_moe(upload *u, const device_layer *l, const moe_weights *w)
{
    const model_config *c = &u->b->config;
    size_t before = (size_t)c->n_experts * (size_t)c->hidden_size;
    unsigned char *codes = (unsigned char *)(uintptr_t)l->router.codes;
    uint32_t *pairs = (uint32_t *)(uintptr_t)l->router.pairs;
    CALLA_TRY(upload_plain(u, codes, pairs, &w->router));
    CALLA_TRY(
        upload_plain(u, codes + before, pairs + before / QUANT_GROUP, &w->shared_expert_gate));
    CALLA_TRY(upload_inner(u, &l->inner, &w->gate.first, &w->up.first, c->n_experts));
    CALLA_TRY(upload_q4(u, &l->outer, 0, &w->down.first, (int64_t)c->n_experts * c->hidden_size,
                        REPACK_PLAIN));
    CALLA_TRY(set_factors(u, &l->outer, c->n_experts));
    CALLA_TRY(upload_inner(u, &l->shared_inner, &w->shared_gate, &w->shared_up, 1));
    return upload_whole(u, &l->shared_outer, &w->shared_down);
}

static calla_status upload_all(upload *u)
{
    backend *b = u->b;
    const model_weights *w = b->weights;
    TRY_CUDA(b, cudaMemsetAsync(b->w.memory.memory, 0, b->w.memory.used, b->stream),
             "clearing memory", u->err);
    CALLA_TRY(upload_plain(u, b->w.embedding, b->w.embedding_pairs, &w->embedding));
    for (int32_t i = 0; i < b->config.n_layers; i++) {
        const device_layer *l = &b->w.layers[i];
        const layer_weights *from = &w->layers[i];
        CALLA_TRY(upload_norm(u, l->input_norm, &from->input_norm));
        CALLA_TRY(upload_norm(u, l->post_norm, &from->post_norm));
        if (from->is_attention)
            CALLA_TRY(upload_attention(u, l, &from->attention));
        else
            CALLA_TRY(upload_gdn(u, l, &from->gdn));
        CALLA_TRY(upload_moe(u, l, &from->moe));
    }
    CALLA_TRY(upload_norm(u, b->w.final_norm, &w->final_norm));
    return upload_whole(u, &b->w.head, &w->head);
}

calla_status cuda_weights_upload(backend *b, calla_error *err)
{
    upload u = {.b = b, .bytes_total = b->weights->text_bytes, .err = err};
    device_arena staging = {0};
    void *host = NULL;
    calla_status status;
    cudaError_t ended;
    int n_events = 0;
    device_take(&staging, N_SLOTS, SLOT_BYTES, 1);
    CALLA_TRY_GOTO(device_allocate(&staging, "upload buffers", err), done);
    u.device = staging.memory;
    CALLA_TRY_GOTO(pinned_allocate(N_SLOTS * SLOT_BYTES, "page-locked upload buffers", &host, err),
                   done);
    u.host = host;
    for (; n_events < N_SLOTS; n_events++)
        CALLA_TRY_GOTO(
            device_check(cudaEventCreateWithFlags(&u.done[n_events], cudaEventDisableTiming),
                         "an event", err),
            done);
    status = upload_all(&u);
done:
    ended = cudaStreamSynchronize(b->stream); /* what is under way uses the buffers */
    if (status == CALLA_OK) status = backend_check(b, ended, "uploading weights", err);
    for (int i = 0; i < n_events; i++) cudaEventDestroy(u.done[i]);
    cudaFreeHost(host);
    device_free(&staging);
    return status;
}
