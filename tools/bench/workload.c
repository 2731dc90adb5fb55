/* tools/bench/workload.c - see workload.h. */
#include "tools/bench/workload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/hparams.h"
#include "model/tokenizer.h"
#include "session/session.h"
#include "tools/bench/run_pipeline.h"

#define FOLDER          "build/bench/sessions"
#define BYTES_PER_TOKEN 12u /* of a text, at most, whichever it is */
#define ROOM            64u /* tokens of context beyond a prompt */
/* it may be read beside others, niced */
#define PATIENT "--hang-ms 60000 --stall-ms 600000"

static const struct {
    const char *word, *file;
} models[] = {{"hill-ref", "models/hill-ref.gguf"},
              {"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"},
              {"qwen0.5b", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"},
              {"qwen1.5b", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"}};
#define MODELS (sizeof models / sizeof *models)

static const struct {
    const char *word, *file; /* of $BENCH_DATA, or of this repository */
    bool ours;
    const char *command; /* prints the text; %s: the file */
} texts[] = {{"moby", "mobydick.txt", false, "cat '%s'"},
             {"lines", "lines_600.jsonl.gz", false, "gzip -dc '%s' | jq -j .prompt"},
             {"code", "cpu_scorer", true, "cat '%s'/*.c coordinator/*.c gpu_worker/*.c"},
             {"heldout", "models/heldout.txt", true, "cat '%s'"}};
#define TEXTS (sizeof texts / sizeof *texts)

/* The model's shape and what tells its file from another. */
static void read_model(struct workload *w)
{
    struct gguf_file *file = NULL;
    struct model_hparams h;
    struct hill_why why;
    if (gguf_open(&file, w->model, &why) || model_hparams_read(&h, file, &why))
        bench_fail("%s", why.text);
    w->geometry = (struct kv_geometry){h.n_layers, h.n_heads, h.n_kv_heads, h.head_dim};
    w->model_bytes = gguf_file_bytes(file);
    w->model_identity = gguf_identity(file);
    gguf_close(file);
}

void workload_open(struct workload *w, const char *name)
{
    size_t m = 0, t = 0;
    int after = 0;
    *w = (struct workload){.tokens = 0};
    snprintf(w->name, sizeof w->name, "%s", name);
    const char *length = NULL;
    for (; m < MODELS; m++) {
        size_t n = strlen(models[m].word);
        if (strncmp(name, models[m].word, n) == 0 && name[n] == '-') {
            length = name + n + 1;
            break;
        }
    }
    if (!length || sscanf(length, "%u-%15[a-z]%n", &w->tokens, w->text, &after) != 2 ||
        length[after] || !w->tokens)
        bench_fail("'%s' is no real KV: MODEL-TOKENS-TEXT, as qwen0.5b-16384-moby", name);
    while (t < TEXTS && strcmp(w->text, texts[t].word) != 0)
        t++;
    if (t == TEXTS)
        bench_fail("'%s': there is no text '%s', but moby, lines, code, heldout", name, w->text);
    if (pipeline_find_model(models[m].file, w->model))
        read_model(w);
    else
        snprintf(w->missing, sizeof w->missing, "%s is not there", w->model);
}

/* ---- the session ---- */

static bool is_h2o(const char *policy)
{
    return strcmp(policy, "h2o") == 0;
}

void workload_session_file(const struct workload *w, const char *policy, char path[256])
{
    const char *given = getenv("BENCH_SESSIONS");
    snprintf(path, 256, "%s/%s%s.session", given && *given ? given : FOLDER, w->name,
             is_h2o(policy) ? "-h2o" : "");
}

bool workload_has_session(const struct workload *w, const char *policy)
{
    char path[256];
    struct session_file file;
    struct hill_why why;
    workload_session_file(w, policy, path);
    bool whole = session_open(&file, path, &why) == 0;
    const struct session_header *h = &file.header;
    bool same = whole && h->terms.model_bytes == w->model_bytes &&
                h->terms.model_identity == w->model_identity && h->n_prompt == w->tokens &&
                h->n_tokens == w->tokens + 1 && session_has_masses(&h->terms) == is_h2o(policy);
    session_close(&file);
    return same;
}

/* As many bytes of the text as the tokens can need; NULL: it is not there. */
static char *read_text(struct workload *w)
{
    char path[512], command[1024];
    size_t t = 0;
    while (strcmp(w->text, texts[t].word) != 0)
        t++;
    if (texts[t].ours)
        snprintf(path, sizeof path, "%s", texts[t].file);
    else
        bench_data_file(texts[t].file, path);
    if (access(path, R_OK) != 0) {
        snprintf(w->missing, sizeof w->missing, "%s is not there", path);
        return NULL;
    }
    snprintf(command, sizeof command, texts[t].command, path);
    char *text = capture("{ %s; } 2>/dev/null | head -c %u", command, w->tokens * BYTES_PER_TOKEN);
    if (!text)
        bench_fail("cannot read %s", path);
    return text;
}

/* The text's first tokens: their bytes, or numbers as --token-ids wants them. */
static bool write_tokens(struct workload *w, const char *path, bool bytes)
{
    struct gguf_file *file = NULL;
    struct tokenizer *tokenizer = NULL;
    struct hill_why why;
    uint32_t *tokens = NULL;
    uint64_t n = 0;
    char *text = *w->missing ? NULL : read_text(w);
    if (!text)
        return false;
    if (gguf_open(&file, w->model, &why) || tokenizer_open(&tokenizer, file, &why))
        bench_fail("%s", why.text);
    if (tokenizer_encode(tokenizer, text, strlen(text), true, &tokens, &n))
        bench_fail("the text %s cannot be made tokens", w->text);
    FILE *out = n < w->tokens ? NULL : fopen(path, "w");
    if (n < w->tokens)
        snprintf(w->missing, sizeof w->missing, "the text %s has %llu tokens, %u are wanted",
                 w->text, (unsigned long long)n, w->tokens);
    else if (!out)
        bench_fail("cannot write %s", path);
    for (uint32_t i = 0; out && i < w->tokens; i++) {
        struct gguf_string piece = tokenizer_piece(tokenizer, tokens[i]);
        if (bytes)
            fwrite(piece.data, 1, piece.length, out);
        else
            fprintf(out, "%u\n", tokens[i]);
    }
    if (out && fclose(out))
        bench_fail("cannot write %s", path);
    free(tokens);
    free(text);
    tokenizer_close(tokenizer);
    gguf_close(file);
    return !*w->missing;
}

bool workload_write_text(struct workload *w, const char *path)
{
    return write_tokens(w, path, true);
}

bool workload_make_session(struct workload *w, const char *policy)
{
    char session[256], prompt[4200], options[128];
    if (*w->missing)
        return false;
    if (workload_has_session(w, policy))
        return true;
    workload_session_file(w, policy, session);
    snprintf(prompt, sizeof prompt, "%s/prompt.ids", pipeline_folder);
    if (!write_tokens(w, prompt, false))
        return false;
    fprintf(stderr, "  reading the prompt of %s%s\n", w->name, is_h2o(policy) ? " for h2o" : "");
    mkdir(FOLDER, 0777); /* that it is there is noticed when the session is written */
    snprintf(options, sizeof options, "--csd none --gpu-kv-mb 4096 -c %u " PATIENT "%s",
             w->tokens + ROOM, is_h2o(policy) ? " --policy h2o" : "");
    pipeline_start_with(w->model, options);
    run_or_fail("hillinfer generate --save",
                capture("HILL_RUN_DIR=%s/run scripts/hillinfer generate --token-ids -f %s -n 1 "
                        "--temp 0 --ignore-eos --json --save \"%s%s\"",
                        pipeline_folder, prompt, pipeline_before(session), session));
    pipeline_stop();
    return true;
}
