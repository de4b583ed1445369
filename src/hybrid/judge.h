/* The second look at a text, by a model's judgement: what detectors have no form for (names, plans,
 * what a document is about). It only ever adds findings.
 *
 * Who has a model gives judgements as JSON of judge_schema; here they are asked for once a text,
 * kept by the text's hash, and turned into findings. What is kept are places and categories, no
 * texts. */
#ifndef CALLA_HYBRID_JUDGE_H
#define CALLA_HYBRID_JUDGE_H

#include "base/json.h"
#include "hybrid/detect/detect.h"

/* Texts longer than this are cut into pieces for the model. */
enum { JUDGE_PIECE_BYTES = 8000 };

/* The model's answer about text [n_bytes] until deadline_ns (clock_ns()): a JSON text of
 * judge_schema, malloc'ed; NULL if there is none in time. */
typedef char *judge_ask_fn(void *user, const char *text, size_t n_bytes, int64_t deadline_ns);

/* What the model is told, and what it may say: {"findings": [{"category", "quote"} ...], "sure"}.
 */
extern const char judge_instructions[];
json_t *judge_schema(void);

typedef struct judge judge;
calla_status judge_create(int32_t n_kept, judge **j, calla_error *err);
void judge_free(judge *j);

typedef enum judge_result {
    JUDGE_SURE,
    JUDGE_UNSURE, /* it says so, quotes what is not there, or gave no answer in time */
} judge_result;

/* Appends what the model finds in the text to `found`, in order and not overlapping. Several
 * threads may ask at once. */
judge_result judge_text(judge *j, judge_ask_fn *ask, void *user, const char *text, size_t n_bytes,
                        int64_t deadline_ns, finding_list *found);

#endif
