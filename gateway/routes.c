/* gateway/routes.c - see routes.h. */
#include "gateway/routes.h"

#include <string.h>

static const struct {
    const char *path;
    enum endpoint endpoint;
    bool post, open;
} served[] = {
    {"/", ENDPOINT_PAGE, false, true},
    {"/health", ENDPOINT_HEALTH, false, true},
    {"/v1/health", ENDPOINT_HEALTH, false, true},
    {"/v1/models", ENDPOINT_MODELS, false, false},
    {"/models", ENDPOINT_MODELS, false, false},
    {"/v1/chat/completions", ENDPOINT_CHAT, true, false},
    {"/chat/completions", ENDPOINT_CHAT, true, false},
    {"/v1/completions", ENDPOINT_COMPLETIONS, true, false},
    {"/tokenize", ENDPOINT_TOKENIZE, true, false},
    {"/detokenize", ENDPOINT_DETOKENIZE, true, false},
    {"/apply-template", ENDPOINT_APPLY_TEMPLATE, true, false},
    {"/props", ENDPOINT_PROPS, false, false},
    {"/slots", ENDPOINT_SLOTS, false, false},
    {"/metrics", ENDPOINT_METRICS, false, false},
};

/* Paths of llama-server and of OpenAI that are not served; a name that ends in / covers what is
 * below it. */
static const struct {
    const char *path;
    int status;
    const char *why;
} refused[] = {
    {"/v1/embeddings", 501, "this pipeline generates text; it makes no embeddings"},
    {"/embeddings", 501, "this pipeline generates text; it makes no embeddings"},
    {"/embedding", 501, "this pipeline generates text; it makes no embeddings"},
    {"/v1/rerank", 501, "this pipeline generates text; it ranks nothing"},
    {"/v1/reranking", 501, "this pipeline generates text; it ranks nothing"},
    {"/rerank", 501, "this pipeline generates text; it ranks nothing"},
    {"/reranking", 501, "this pipeline generates text; it ranks nothing"},
    {"/completion", 501, "llama-server's own form is not served: use /v1/completions"},
    {"/completions", 501, "llama-server's own form is not served: use /v1/completions"},
    {"/infill", 501, "filling in the middle is not served yet"},
    {"/v1/responses", 501, "the Responses API is not served: use /v1/chat/completions"},
    {"/v1/messages", 501, "the Messages API is not served: use /v1/chat/completions"},
    {"/api/", 501, "Ollama's API is not served: use /v1/"},
    {"/v1/audio/", 501, "this pipeline reads and writes text alone"},
    {"/v1/images/", 501, "this pipeline reads and writes text alone"},
    {"/v1/moderations", 501, "this pipeline moderates nothing"},
    {"/v1/files", 501, "this gateway stores no files"},
    {"/lora-adapters", 501, "adapters are not served"},
    {"/slots/", 501, "slots are saved by `hillinfer save`, not over HTTP"},
};

static bool covers(const char *name, const char *path)
{
    size_t length = strlen(name);
    return length > 1 && name[length - 1] == '/' ? strncmp(name, path, length) == 0
                                                 : strcmp(name, path) == 0;
}

static int refuse_path(const char *path, struct api_error *error)
{
    for (unsigned i = 0; i < sizeof refused / sizeof *refused; i++)
        if (covers(refused[i].path, path))
            return api_refuse(error, refused[i].status, "not_served", NULL, "%.60s: %s", path,
                              refused[i].why);
    return api_refuse(error, 404, "unknown_path", NULL, "there is no %.200s here", path);
}

/* HEAD is GET without the answer's body. */
static bool method_fits(const char *method, bool post)
{
    return post ? strcmp(method, "POST") == 0
                : strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
}

int route_find(struct route *out, const char *method, const char *path, struct api_error *error)
{
    static const char one_model[] = "/v1/models/";
    *out = (struct route){.endpoint = ENDPOINT_NONE};
    if (strncmp(path, one_model, strlen(one_model)) == 0 && path[strlen(one_model)]) {
        out->endpoint = ENDPOINT_MODEL;
        out->rest = path + strlen(one_model);
    }
    for (unsigned i = 0; !out->endpoint && i < sizeof served / sizeof *served; i++)
        if (strcmp(served[i].path, path) == 0)
            *out = (struct route){
                .endpoint = served[i].endpoint, .post = served[i].post, .open = served[i].open};
    if (!out->endpoint)
        return refuse_path(path, error);
    if (method_fits(method, out->post))
        return 0;
    out->allow = out->post ? "POST" : "GET, HEAD";
    return api_refuse(error, 405, "wrong_method", NULL, "%.60s takes %s, not %.20s", path,
                      out->allow, method);
}
