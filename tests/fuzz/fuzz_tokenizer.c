/* tokenizer.json from arbitrary bytes: accepted or refused with a message, and what is accepted
 * encodes any text to ids that decode to it. */
#include "model/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MAX_TEXT = 2000 };

/* Without normalisation the text comes back as it was, but for its broken UTF-8; with it, encoding
 * the result again changes nothing. */
static void check_text(calla_tokenizer *t, const char *text, size_t n)
{
    calla_error err;
    calla_tokens ids, again;
    calla_text whole, second;
    calla_status status = calla_tokenizer_encode(t, text, n, NULL, 0, &ids, &err);
    if (status != CALLA_OK) { /* a pattern that runs away */
        if (err.code != status || !err.message[0]) abort();
        return;
    }
    for (int64_t i = 0; i < ids.n; i++)
        if (ids.ids[i] < 0 || ids.ids[i] >= calla_tokenizer_n_tokens(t)) abort();
    if (calla_tokenizer_decode(t, ids.ids, ids.n, false, &whole, &err) != CALLA_OK) abort();
    calla_range all = {0, whole.n_bytes};
    if (calla_tokenizer_encode(t, whole.data, whole.n_bytes, &all, 1, &again, &err) == CALLA_OK) {
        if (calla_tokenizer_decode(t, again.ids, again.n, false, &second, &err) != CALLA_OK)
            abort();
        bool same =
            second.n_bytes == whole.n_bytes && memcmp(second.data, whole.data, whole.n_bytes) == 0;
        /* Texts of neighbouring added tokens may compose with each other. */
        if (!same && !t->normalize) abort();
        calla_text_free(&second);
        calla_tokens_free(&again);
    }
    calla_text_free(&whole);
    calla_tokens_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char text[] = "I'm abcabc 123,\r\n\r\n  <t>cab\xcc\x81\xcc\xa3 \xe4\xb8\xad\xff"
                               "<|im_end|>bcbcbcbcbcbcbcbcbcbcbcbcbcbcbcbcbcbcbcbcbcbcbcbcbcbcbcbc";
    calla_tokenizer *t;
    calla_error err = {0};
    calla_status status = tokenizer_parse((const char *)data, n, "fuzz", &t, &err);
    if (status != CALLA_OK) {
        if (err.code != status || strncmp(err.message, "fuzz: ", 6) != 0) abort();
        return 0;
    }
    check_text(t, text, sizeof text - 1);
    check_text(t, (const char *)data, n < MAX_TEXT ? n : MAX_TEXT);
    calla_tokenizer_close(t);
    return 0;
}
