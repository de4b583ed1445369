/* The options of commands that may ask a cloud. */
#include "cli.h"

#include <string.h>

void cli_cloud_options(hybrid_options *o, cli_option options[CLI_N_CLOUD_OPTIONS])
{
    const cli_option own[CLI_N_CLOUD_OPTIONS] = {
        {0, "cloud-url", "URL", cli_text(&o->url),
         "an OpenAI-compatible endpoint, up to and with /v1"},
        {0, "cloud-model", "NAME", cli_text(&o->model), "what its model is called there"},
        {0, "cloud-key-env", "VAR", cli_text(&o->key_env),
         "the environment's variable that holds its key"},
        {0, "cloud-ca", "FILE", cli_text(&o->ca_file),
         "certificates to trust in place of the system's"},
        {0, "policy", "FILE", cli_text(&o->policy),
         "what may leave this machine [what is sensitive stays or is asked about]"},
        {0, "audit", "FILE", cli_text(&o->audit),
         "log of what left and what was kept [~/.local/state/calla/audit.db]"},
    };
    memcpy(options, own, sizeof own);
}

int cli_cloud_check(const hybrid_options *o)
{
    const char *orphan = o->model     ? "--cloud-model"
                         : o->key_env ? "--cloud-key-env"
                         : o->ca_file ? "--cloud-ca"
                         : o->policy  ? "--policy"
                         : o->audit   ? "--audit"
                                      : NULL;
    if (!o->url && orphan) return cli_usage_error("%s has no use without --cloud-url", orphan);
    if (o->url && !o->model) return cli_usage_error("--cloud-url needs --cloud-model");
    return -1;
}
