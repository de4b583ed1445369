#include "engine/backend.h"

#include "base/error.h"

#include <assert.h>

calla_status prefill_tokens(const backend_ops *ops, backend *b, backend_sequence *s,
                            const int32_t *tokens, int64_t n_tokens, logits_mode mode,
                            float *logits, int32_t n_vocab, const calla_control *control,
                            calla_error *err)
{
    backend_capabilities capabilities;
    ops->capabilities(b, &capabilities);
    int64_t chunk = capabilities.prefill_chunk;
    assert(n_tokens >= 1);
    for (int64_t done = 0; done < n_tokens;) {
        int64_t n = chunk - ops->sequence_length(b, s) % chunk;
        if (n > n_tokens - done) n = n_tokens - done;
        bool last = done + n == n_tokens;
        logits_mode own = mode == LOGITS_LAST && !last ? LOGITS_NONE : mode;
        CALLA_TRY(ops->prefill(b, s, tokens + done, (int32_t)n, own, logits, control, err));
        done += n;
        if (mode == LOGITS_ALL) logits += n * n_vocab;
        if (control && control->progress) control->progress(control->user, done, n_tokens);
    }
    return CALLA_OK;
}
