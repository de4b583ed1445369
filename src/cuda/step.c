/* A decode step's way to the device and back. What the kernels need goes over in one copy before
 * them, what comes out comes back in one copy after them. A second step may be submitted while the
 * first is under way: its input is then the token the first one samples, which stays on the device,
 * and the device goes on without waiting for the host. */
#include "cuda/cuda.h"

#include <assert.h>
#include <math.h>
#include <string.h>

calla_status cuda_step_init(backend *b, calla_error *err)
{
    /* A failed step samples nothing: the one behind it must not look beyond the embedding. Lists
     * that are not full are copied whole. */
    size_t tokens = (size_t)b->options.n_sequences * sizeof *b->d.sampled;
    size_t outputs = (size_t)step_rows(b) * sizeof *b->d.output;
    CALLA_TRY(device_check(cudaMemsetAsync(b->d.sampled, 0, tokens, b->stream), "steps", err));
    CALLA_TRY(device_check(cudaMemsetAsync(b->d.output, 0, outputs, b->stream), "steps", err));
    for (int i = 0; i < STEPS_IN_FLIGHT; i++)
        CALLA_TRY(device_check(
            cudaEventCreateWithFlags(&b->flights[i].done, cudaEventDisableTiming), "events", err));
    return CALLA_OK;
}

void cuda_step_deinit(backend *b)
{
    for (int i = 0; i < STEPS_IN_FLIGHT; i++)
        if (b->flights[i].done) cudaEventDestroy(b->flights[i].done);
}

/* ---- submit ---- */

/* Angles of the rotation, in double: f32 cannot hold position * frequency of a long context. */
static void set_angles(const backend *b, int64_t position, step_row *row)
{
    for (int j = 0; j < ROTARY_PAIRS; j++) {
        double angle = (double)position * b->inverse_frequencies[j];
        row->cosines[j] = (float)cos(angle);
        row->sines[j] = (float)sin(angle);
    }
}

static cudaError_t send_list(backend *b, const void *to, const void *from, int32_t i, size_t bytes,
                             size_t row_bytes)
{
    if (bytes == 0) return cudaSuccess;
    return cudaMemcpyAsync((unsigned char *)(uintptr_t)to + (size_t)i * row_bytes, from, bytes,
                           cudaMemcpyHostToDevice, b->stream);
}

/* Sampling parameters of row i, and the lists they need. */
static cudaError_t set_sampling(backend *b, const step_request *r, int32_t i, step_sampling *to)
{
    const calla_sampling *p = r->sampling;
    const sample_args *s = &b->d.sample;
    size_t list = (size_t)s->list, words = (size_t)s->mask_words;
    *to = (step_sampling){0};
    if (!p) return cudaSuccess;
    *to = (step_sampling){.temperature = p->temperature,
                          .top_p = p->top_p,
                          .min_p = p->min_p,
                          .presence_penalty = p->presence_penalty,
                          .frequency_penalty = p->frequency_penalty,
                          .repetition_penalty = p->repetition_penalty,
                          .top_k = p->top_k,
                          .n_top_logprobs = p->n_top_logprobs,
                          .seed = p->seed,
                          .n_bias = smaller_of(p->n_logit_bias, s->list),
                          .n_generated = r->n_generated,
                          .use_mask = p->token_mask != NULL,
                          .wanted = 1};
    int32_t *tokens = b->host.bias_tokens + (size_t)i * list;
    float *values = b->host.bias_values + (size_t)i * list;
    for (int32_t k = 0; k < to->n_bias; k++) {
        tokens[k] = p->logit_bias[k].token;
        values[k] = p->logit_bias[k].bias;
    }
    cudaError_t status = send_list(b, s->bias_tokens, tokens, i, (size_t)to->n_bias * 4, list * 4);
    if (status == cudaSuccess)
        status = send_list(b, s->bias_values, values, i, (size_t)to->n_bias * 4, list * 4);
    if (p->token_mask) {
        uint32_t *mask = b->host.masks + (size_t)i * words;
        memcpy(mask, p->token_mask, words * sizeof *mask);
        if (status == cudaSuccess) status = send_list(b, s->masks, mask, i, words * 4, words * 4);
    }
    if (!sampling_penalizes(p)) to->n_generated = 0;
    int32_t *generated = b->host.generated_tokens + (size_t)i * list;
    int32_t *counts = b->host.generated_counts + (size_t)i * list;
    for (int32_t k = 0; k < to->n_generated; k++) {
        generated[k] = r->generated[k];
        counts[k] = r->generated_counts[r->generated[k]];
    }
    if (status == cudaSuccess)
        status =
            send_list(b, s->generated_tokens, generated, i, (size_t)to->n_generated * 4, list * 4);
    if (status == cudaSuccess)
        status =
            send_list(b, s->generated_counts, counts, i, (size_t)to->n_generated * 4, list * 4);
    return status;
}

/* Everything from the rows' inputs to the copy of what comes out. */
static cudaError_t start_step(backend *b, flight *f, const step_request *requests)
{
    cudaError_t status = cudaSuccess;
    size_t vocab = (size_t)b->config.n_vocab, n = (size_t)f->n;
    for (int32_t i = 0; i < f->n && status == cudaSuccess; i++) {
        step_row *row = &f->input->rows[i];
        const timeline *at = &f->sequences[i]->at;
        row->token = requests[i].token;
        row->slot = at->slot;
        row->state = at->state;
        row->position = (int32_t)f->positions[i];
        set_angles(b, f->positions[i], row);
        status = set_sampling(b, &requests[i], i, &row->sampling);
    }
    if (status == cudaSuccess)
        status = cudaMemcpyAsync(b->d.input, f->input, sizeof(step_row) * n, cudaMemcpyHostToDevice,
                                 b->stream);
    cuda_profile_begin(b);
    if (status == cudaSuccess) status = cuda_decode_run(b, f->n);
    if (status == cudaSuccess)
        status = cudaMemcpyAsync(f->output, b->d.output, sizeof(step_output) * n,
                                 cudaMemcpyDeviceToHost, b->stream);
    for (size_t i = 0; i < n && status == cudaSuccess; i++)
        if (!f->samples[i])
            status = cudaMemcpyAsync(b->host.logits + i * vocab, b->d.logits + i * vocab,
                                     vocab * sizeof(float), cudaMemcpyDeviceToHost, b->stream);
    if (status == cudaSuccess) status = cudaEventRecord(f->done, b->stream);
    return status;
}

static calla_status reserve_all(backend *b, flight *f, calla_error *err)
{
    for (int32_t i = 0; i < f->n; i++) {
        calla_status status = cuda_store_reserve(b, f->sequences[i], 1, err);
        if (status == CALLA_OK) continue;
        while (i-- > 0) cuda_store_trim(b, f->sequences[i], f->positions[i] + 1);
        return status;
    }
    return CALLA_OK;
}

calla_status cuda_step_submit(backend *b, const step_request *requests, int32_t n, calla_error *err)
{
    flight *f = &b->flights[(b->first_flight + b->n_flights) % STEPS_IN_FLIGHT];
    assert(n >= 1 && n <= step_rows(b) && b->n_flights < STEPS_IN_FLIGHT);
    f->n = n;
    for (int32_t i = 0; i < n; i++) {
        const step_request *r = &requests[i];
        assert(r->token == TOKEN_LAST_SAMPLED || (r->token >= 0 && r->token < b->config.n_vocab));
        assert(r->sequence->at.length < b->options.n_ctx);
        assert(b->n_flights == 0 ||
               (r->sampling && step_may_follow(r->sampling) && !b->tap && !b->profile.on));
        f->sequences[i] = r->sequence;
        f->positions[i] = r->sequence->at.length;
        f->samples[i] = r->sampling != NULL;
    }
    CALLA_TRY(reserve_all(b, f, err));
    cudaError_t status = start_step(b, f, requests);
    for (int32_t i = 0; i < n; i++) { /* however far it came */
        f->sequences[i]->at.length++;
        f->sequences[i]->at.anchored = false;
    }
    if (status != cudaSuccess) cudaStreamSynchronize(b->stream); /* of the buffers */
    TRY_CUDA(b, status, "starting a step", err);
    b->n_flights++;
    return CALLA_OK;
}

/* ---- wait ---- */

static void take_sampled(const step_output *o, calla_sampled *to)
{
    to->token = o->token;
    to->logprob = o->logprob;
    to->n_top = o->n_top;
    memcpy(to->top_tokens, o->top_tokens, (size_t)o->n_top * sizeof *to->top_tokens);
    memcpy(to->top_logprobs, o->top_logprobs, (size_t)o->n_top * sizeof *to->top_logprobs);
}

/* Bytes and operations, if the profile is on. Experts that two rows chose count twice: each row
 * reads its own. */
static void count_step(backend *b, const flight *f)
{
    const model_config *c = &b->config;
    int64_t seen = 0, n = f->n;
    for (int32_t i = 0; i < n; i++) seen += f->positions[i] + 1;
    for (int32_t i = 0; b->profile.on && i < c->n_layers; i++) {
        const layer_weights *w = &b->weights->layers[i];
        if (b->token_whole)
            cuda_profile_count_whole_layer(b, w, n, seen);
        else
            cuda_profile_count_layer(b, w, n, n, seen, seen, n * c->n_experts_per_token);
    }
    cuda_profile_count_ends(b, n, n);
}

/* What came of row i. */
static void take_result(backend *b, const flight *f, int32_t i, step_result *result)
{
    const step_output *o = &f->output[i];
    *result = (step_result){0};
    if (o->bad_layer != INT32_MAX)
        error_set(&result->error, CALLA_ERR_NUMERIC,
                  "activations entering layer %d of %d are not finite at position %lld",
                  o->bad_layer, b->config.n_layers, (long long)f->positions[i]);
    else if (!f->samples[i])
        result->logits = b->host.logits + (size_t)i * (size_t)b->config.n_vocab;
    else if (o->bad_logit != INT32_MAX)
        error_set(&result->error, CALLA_ERR_NUMERIC,
                  "the model gave logit %g for token %d after position %lld", (double)o->bad_value,
                  o->bad_logit, (long long)f->positions[i]);
    else
        take_sampled(o, &result->sampled);
}

calla_status cuda_step_wait(backend *b, step_result *results, int32_t n,
                            const calla_control *control, calla_error *err)
{
    flight *f = &b->flights[b->first_flight];
    (void)control; /* it takes a millisecond or two */
    assert(b->n_flights > 0 && n == f->n);
    b->first_flight = (b->first_flight + 1) % STEPS_IN_FLIGHT;
    b->n_flights--;
    b->n_rows = 0;
    TRY_CUDA(b, cudaEventSynchronize(f->done), "running a step", err);
    CALLA_TRY(cuda_profile_end(b, err));
    count_step(b, f);
    if (b->n_flights == 0) b->n_rows = n;
    for (int32_t i = 0; i < n; i++) take_result(b, f, i, &results[i]);
    return CALLA_OK;
}

calla_status cuda_step_logits(backend *b, int32_t i, float *logits, calla_error *err)
{
    size_t vocab = (size_t)b->config.n_vocab;
    assert(i >= 0 && i < b->n_rows);
    TRY_CUDA(b,
             cudaMemcpyAsync(b->host.logits + (size_t)i * vocab, b->d.logits + (size_t)i * vocab,
                             vocab * sizeof(float), cudaMemcpyDeviceToHost, b->stream),
             "reading logits", err);
    TRY_CUDA(b, cudaStreamSynchronize(b->stream), "reading logits", err);
    memcpy(logits, b->host.logits + (size_t)i * vocab, vocab * sizeof(float));
    return CALLA_OK;
}
