/* calla eval: teacher-forced perplexity, and how two models, backends or kernels differ. */
#include "eval.h"
#include "cli.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: calla eval -m DIR (-f TEXT | --ids FILE) [OPTIONS]\n"
    "\n"
    "Perplexity of a text: it is cut into windows of --ctx tokens, each run from an empty\n"
    "context, and every token but the first of its window is predicted from those before it.\n"
    "With one of the --against options a reference is run beside it; the figures then are the\n"
    "change of perplexity, how often the most likely token is the same, and\n"
    "KL(reference || this).\n";
static const char notes[] =
    "--kv applies to -m only, and --ctx is the window here [2048, at most the model's].\n";

typedef struct eval_args {
    cli_engine_args engine;
    const char *file, *ids, *against, *against_backend, *against_isa;
    bool allow_control, decode, json;
    double margin; /* -1 = not given */
} eval_args;

static bool has_reference(const eval_args *args)
{
    return args->against || args->against_backend || args->against_isa;
}

/* -1 = go on, else the exit code. */
static int parse_options(int argc, char **argv, eval_args *a)
{
    const cli_option own[] = {
        {'f', "file", "FILE", cli_text(&a->file), "the text, - = standard input"},
        {0, "allow-control-tokens", NULL, cli_true(&a->allow_control),
         "control tokens written in it (as <|im_end|>) are such; else they are plain text"},
        {0, "ids", "FILE", cli_text(&a->ids), "token ids instead of text"},
        {0, "against", "DIR", cli_text(&a->against), "reference checkpoint [the same]"},
        {0, "against-backend", "NAME", cli_text(&a->against_backend), "its backend [the same]"},
        {0, "against-isa", "NAME", cli_text(&a->against_isa), "its kernels [the same]"},
        {0, "decode", NULL, cli_true(&a->decode),
         "run -m by decode steps (the reference: always by prefill)"},
        {0, "margin", "X", cli_real(&a->margin, 0, 1e6),
         "also count agreement where the reference's best token leads the second by more than X "
         "nats [0.2]"},
        {0, "json", NULL, cli_true(&a->json), "print one JSON object"},
    };
    cli_option engine[CLI_N_ENGINE_OPTIONS];
    cli_engine_options(&a->engine, engine);
    const cli_syntax syntax = {.usage = usage,
                               .notes = notes,
                               .groups = {CLI_GROUP(NULL, own), CLI_GROUP("engine", engine)}};
    int code = cli_parse(argc, argv, &syntax, NULL, NULL);
    if (code >= 0) return code;
    if (!a->engine.model) return cli_usage_error("which model? -m DIR is missing");
    if (!a->file == !a->ids) return cli_usage_error("give either -f FILE or --ids FILE");
    if (a->ids && a->allow_control) return cli_usage_error("--allow-control-tokens goes with -f");
    if (a->margin >= 0 && !has_reference(a))
        return cli_usage_error("--margin needs one of the --against options");
    if (a->margin < 0) a->margin = 0.2;
    return -1;
}

/* ---- the text ---- */

static bool encode_file(const eval_args *args, calla_tokens *tokens)
{
    calla_error err;
    calla_tokenizer *tokenizer;
    char *text;
    size_t n_bytes;
    if (!cli_read_input(args->file, &text, &n_bytes)) return false;
    calla_status status = calla_tokenizer_open(args->engine.model, &tokenizer, &err);
    if (status == CALLA_OK) {
        calla_range all = {0, n_bytes};
        status = calla_tokenizer_encode(tokenizer, text, n_bytes, &all, args->allow_control ? 0 : 1,
                                        tokens, &err);
        calla_tokenizer_close(tokenizer);
    }
    free(text);
    if (status != CALLA_OK) cli_fail(&err);
    return status == CALLA_OK;
}

/* ---- running ---- */

typedef struct eval_run {
    const eval_args *args;
    eval_text text;
    int64_t n_vocab, window;
    eval_reference *reference; /* or NULL */
    bool reference_failed;
    eval_totals totals;
} eval_run;

/* The rows of one piece of the current window: each but the last predicts the token after it. */
static int add_rows(void *user, int64_t first, int64_t n_rows, const float *logits)
{
    eval_run *r = user;
    const int32_t *tokens = r->text.tokens + r->window * r->text.n_window;
    int64_t n = eval_window_length(&r->text, r->window);
    for (int64_t i = 0; i < n_rows && first + i + 1 < n; i++) {
        const float *other = NULL;
        if (r->reference) {
            other = eval_reference_row(r->reference, r->window, first + i);
            if (!other) {
                r->reference_failed = true;
                return 1;
            }
        }
        eval_add(&r->totals, logits + i * r->n_vocab, other, r->n_vocab, tokens[first + i + 1],
                 r->args->margin);
    }
    cli_progress("eval", r->window * r->text.n_window + first + n_rows, r->text.n_tokens);
    return 0;
}

static calla_status decode_window(eval_run *r, calla_session *session, float *row,
                                  const calla_control *control, calla_error *err)
{
    const int32_t *tokens = r->text.tokens + r->window * r->text.n_window;
    int64_t n = eval_window_length(&r->text, r->window);
    for (int64_t i = 0; i < n - 1; i++) {
        calla_status status = calla_session_append(session, tokens[i], control, row, err);
        if (status != CALLA_OK) return status;
        if (add_rows(r, i, 1, row) != 0) return CALLA_ERR_CANCELLED;
    }
    return CALLA_OK;
}

/* Each window by decode steps needs an empty timeline: a new session. */
static calla_status decode_all(eval_run *r, calla_engine *engine, const calla_control *control,
                               calla_error *err)
{
    calla_status status = CALLA_OK;
    float *row = malloc((size_t)r->n_vocab * sizeof *row);
    if (!row) {
        *err = (calla_error){CALLA_ERR_MEMORY, "no memory for a row of logits"};
        return CALLA_ERR_MEMORY;
    }
    for (r->window = 0; r->window < eval_n_windows(&r->text) && status == CALLA_OK; r->window++) {
        calla_session *session;
        status = calla_session_create(engine, &session, err);
        if (status != CALLA_OK) break;
        status = decode_window(r, session, row, control, err);
        calla_session_free(session);
    }
    free(row);
    return status;
}

static calla_status score_all(eval_run *r, calla_engine *engine, const calla_control *control,
                              calla_error *err)
{
    calla_session *session;
    calla_status status = calla_session_create(engine, &session, err);
    if (status != CALLA_OK) return status;
    for (r->window = 0; r->window < eval_n_windows(&r->text) && status == CALLA_OK; r->window++)
        status =
            calla_session_score(session, r->text.tokens + r->window * r->text.n_window,
                                eval_window_length(&r->text, r->window), add_rows, r, control, err);
    calla_session_free(session);
    return status;
}

/* Runs all windows; the reference, if there is a session for it, beside them. */
static calla_status run_windows(eval_run *r, calla_engine *engine, calla_session *reference,
                                calla_error *err)
{
    calla_control control = {.cancel = cli_cancel_flag()};
    if (reference) {
        r->reference = eval_reference_start(reference, &r->text, r->n_vocab, control.cancel);
        if (!r->reference) {
            *err = (calla_error){CALLA_ERR_MEMORY, "cannot start a thread"};
            return CALLA_ERR_MEMORY;
        }
    }
    calla_status status = r->args->decode ? decode_all(r, engine, &control, err)
                                          : score_all(r, engine, &control, err);
    if (r->reference) {
        calla_error other;
        calla_status reference_status = eval_reference_stop(r->reference, &other);
        if (r->reference_failed && reference_status != CALLA_OK) {
            *err = other;
            status = reference_status;
        }
    }
    return status;
}

/* ---- report ---- */

/* False after printing why. */
static bool print_json(const eval_run *r, const calla_engine_info *info)
{
    const eval_totals *t = &r->totals;
    double n = (double)t->n_scored;
    json_t *o = json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:f, s:f}", "backend", info->backend, "isa", info->isa,
        "method", r->args->decode ? "decode" : "prefill", "tokens", (json_int_t)r->text.n_tokens,
        "window", (json_int_t)r->text.n_window, "windows", (json_int_t)eval_n_windows(&r->text),
        "scored", (json_int_t)t->n_scored, "nll", t->nll / n, "perplexity", exp(t->nll / n));
    if (r->reference) {
        double change = expm1((t->nll - t->nll_reference) / n) * 100;
        json_t *against = json_pack(
            "{s:f, s:f, s:f, s:f, s:f, s:I, s:f, s:f, s:f}", "nll", t->nll_reference / n,
            "perplexity", exp(t->nll_reference / n), "perplexity_change_percent", change,
            "same_top_percent", 100 * (double)t->n_same / n, "margin", r->args->margin,
            "positions_beyond_margin", (json_int_t)t->n_clear, "same_top_beyond_margin_percent",
            t->n_clear ? 100 * (double)t->n_clear_same / (double)t->n_clear : 100.0, "mean_kl",
            t->kl / n, "max_kl", t->kl_max);
        json_object_set_new(o, "against", against);
    }
    char *text = o ? json_dumps(o, JSON_REAL_PRECISION(12)) : NULL;
    if (text)
        printf("%s\n", text);
    else
        cli_failf("the figures are not finite");
    bool good = text != NULL;
    free(text);
    json_decref(o);
    return good;
}

static bool print_text(const eval_run *r, const calla_engine_info *info)
{
    const eval_totals *t = &r->totals;
    double n = (double)t->n_scored;
    printf("tokens        %lld in %lld windows of %lld, %lld scored by %s (%s, %s)\n",
           (long long)r->text.n_tokens, (long long)eval_n_windows(&r->text),
           (long long)r->text.n_window, (long long)t->n_scored,
           r->args->decode ? "decode" : "prefill", info->backend, info->isa);
    printf("nll           %.6f nats a token\n", t->nll / n);
    printf("perplexity    %.6f\n", exp(t->nll / n));
    if (!r->reference) return true;
    printf("reference     %.6f\n", exp(t->nll_reference / n));
    printf("change        %+.4f %%\n", expm1((t->nll - t->nll_reference) / n) * 100);
    printf("same top      %.4f %%\n", 100 * (double)t->n_same / n);
    printf("beyond %-6g %.4f %% of %lld with such a margin\n", r->args->margin,
           t->n_clear ? 100 * (double)t->n_clear_same / (double)t->n_clear : 100.0,
           (long long)t->n_clear);
    printf("KL            %.3e mean, %.3e largest\n", t->kl / n, t->kl_max);
    return true;
}

/* ---- command ---- */

/* The window: --ctx, else 2048 or what the model allows. */
static calla_status choose_window(const eval_args *args, int64_t *n_window, calla_error *err)
{
    if (args->engine.options.n_ctx) {
        *n_window = args->engine.options.n_ctx;
        return CALLA_OK;
    }
    calla_checkpoint_info info;
    calla_status status = calla_checkpoint_inspect(args->engine.model, &info, NULL, NULL, err);
    if (status == CALLA_OK) *n_window = info.max_positions < 2048 ? info.max_positions : 2048;
    return status;
}

static calla_status open_reference(const eval_args *args, int64_t n_window, int64_t n_vocab,
                                   calla_engine **engine, calla_session **session, calla_error *err)
{
    calla_engine_options o = args->engine.options;
    o.n_ctx = (int32_t)n_window;
    o.snapshot_bytes = -1;
    o.kv = CALLA_KV_AUTO;
    if (args->against_backend) o.backend = args->against_backend;
    if (args->against_isa) o.isa = args->against_isa;
    const char *dir = args->against ? args->against : args->engine.model;
    calla_status status = cli_engine_open(dir, &o, engine, err);
    if (status != CALLA_OK) return status;
    calla_engine_info info;
    calla_engine_get_info(*engine, &info);
    if (info.n_vocab != n_vocab) {
        err->code = CALLA_ERR_INPUT;
        snprintf(err->message, sizeof err->message, "%.400s has %d rows of logits, %.400s %lld",
                 dir, info.n_vocab, args->engine.model, (long long)n_vocab);
        return err->code;
    }
    return calla_session_create(*engine, session, err);
}

static const char *text_name(const eval_args *args)
{
    return cli_input_name(args->ids ? args->ids : args->file);
}

static bool check_ids(const eval_args *args, const calla_tokens *tokens, int32_t n_vocab)
{
    for (int64_t i = 0; i < tokens->n; i++) {
        if (tokens->ids[i] < n_vocab) continue;
        cli_failf("%s: token %lld is %d, outside 0 ... %d", text_name(args), (long long)i,
                  tokens->ids[i], n_vocab - 1);
        return false;
    }
    return true;
}

static int evaluate(const eval_args *args, const calla_tokens *tokens)
{
    calla_error err;
    calla_engine *engine = NULL, *other = NULL;
    calla_session *reference = NULL;
    calla_engine_info info;
    int code = EXIT_FAILED;
    eval_run run = {.args = args, .text = {tokens->ids, tokens->n, 0}};
    calla_status status = choose_window(args, &run.text.n_window, &err);
    if (status != CALLA_OK) goto done;
    if (run.text.n_window < 2 || tokens->n < 2)
        return cli_failf("%s: %lld tokens in windows of %lld leave nothing to predict",
                         text_name(args), (long long)tokens->n, (long long)run.text.n_window);
    calla_engine_options options = args->engine.options;
    options.n_ctx = (int32_t)run.text.n_window;
    options.snapshot_bytes = -1;
    status = cli_engine_open(args->engine.model, &options, &engine, &err);
    if (status != CALLA_OK) goto done;
    calla_engine_get_info(engine, &info);
    run.n_vocab = info.n_vocab;
    if (!check_ids(args, tokens, info.n_vocab)) goto done;
    if (has_reference(args))
        status = open_reference(args, run.text.n_window, run.n_vocab, &other, &reference, &err);
    if (status == CALLA_OK) status = run_windows(&run, engine, reference, &err);
    cli_progress_end();
    if (status == CALLA_OK && (args->json ? print_json : print_text)(&run, &info)) code = EXIT_OK;
done:
    calla_session_free(reference);
    calla_engine_close(other);
    calla_engine_close(engine);
    return status == CALLA_OK ? code : cli_fail(&err);
}

int cmd_eval(int argc, char **argv)
{
    eval_args args = {.margin = -1};
    int code = parse_options(argc, argv, &args);
    if (code >= 0) return code;
    calla_tokens tokens;
    if (args.ids ? !cli_read_ids(args.ids, &tokens) : !encode_file(&args, &tokens))
        return EXIT_FAILED;
    code = evaluate(&args, &tokens);
    calla_tokens_free(&tokens);
    return code;
}
