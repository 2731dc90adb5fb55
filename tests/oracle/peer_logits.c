/*
 * tests/oracle/peer_logits.c - logits of llama.cpp on the CPU, through its library, for
 * tests/oracle/parity.py. Not built by make: docs/parity.md has the command.
 *
 *     peer_logits MODEL tokens FILE             ids of each line of FILE, a line each, to stdout
 *     peer_logits MODEL greedy IDS N OUT        after each line of ids its N most probable next
 *                                               ones, to stdout
 *     peer_logits MODEL step|batch IDS N [OUT]  the last N ids of each line are given: their
 *                                               log-probabilities to stdout
 *
 * greedy and step decode one token at a time after the first ids; batch takes a line at once. OUT
 * gets the logits, float [line][N][n_vocab]. No flash attention, KV in F16, 1 thread.
 * PEER_PLAIN=1: weights are used as they lie, not packed anew.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llama.h"

#define IDS_MAX 8192

static struct llama_model *model;
static struct llama_context *context;
static int n_vocab;

static void die(const char *what)
{
    fprintf(stderr, "peer_logits: %s\n", what);
    exit(1);
}

static void quiet(enum ggml_log_level level, const char *text, void *data)
{
    (void)data;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

static void load(const char *path)
{
    struct llama_model_params m = llama_model_default_params();
    struct llama_context_params c = llama_context_default_params();
    m.n_gpu_layers = 0;
    m.use_extra_bufts = getenv("PEER_PLAIN") == NULL;
    c.n_ctx = c.n_batch = IDS_MAX;
    c.n_ubatch = 512;
    c.n_threads = c.n_threads_batch = 1;
    c.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    llama_log_set(quiet, NULL);
    llama_backend_init();
    model = llama_model_load_from_file(path, m);
    context = model ? llama_init_from_model(model, c) : NULL;
    if (!context)
        die("cannot load the model");
    n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
}

/* Decodes ids [n] at position first; logits of all of them, or of the last one. */
static void decode(const llama_token *ids, int n, int first, bool all)
{
    struct llama_batch batch = llama_batch_init(n, 0, 1);
    for (int i = 0; i < n; i++) {
        batch.token[i] = ids[i];
        batch.pos[i] = first + i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = all || i == n - 1;
    }
    batch.n_tokens = n;
    if (llama_decode(context, batch))
        die("llama_decode failed");
    llama_batch_free(batch);
}

static void forget(void)
{
    llama_memory_clear(llama_get_memory(context), true);
}

static void keep(FILE *out, const float *logits)
{
    if (out && fwrite(logits, sizeof *logits, n_vocab, out) != (size_t)n_vocab)
        die("cannot write");
}

static double logprob(const float *logits, llama_token id)
{
    double largest = -INFINITY, sum = 0;
    for (int i = 0; i < n_vocab; i++)
        largest = fmax(largest, logits[i]);
    for (int i = 0; i < n_vocab; i++)
        sum += exp(logits[i] - largest);
    return logits[id] - largest - log(sum);
}

static llama_token best(const float *logits)
{
    llama_token id = 0;
    for (int i = 1; i < n_vocab; i++)
        if (logits[i] > logits[id])
            id = i;
    return id;
}

static void greedy(llama_token *ids, int given, int n, FILE *out)
{
    decode(ids, given, 0, false);
    for (int i = 0; i < n; i++) {
        const float *logits = llama_get_logits_ith(context, -1);
        keep(out, logits);
        ids[given + i] = best(logits);
        printf("%d%c", ids[given + i], i + 1 < n ? ' ' : '\n');
        decode(&ids[given + i], 1, given + i, false);
    }
}

static void forced(const llama_token *ids, int count, int n, bool batch, FILE *out)
{
    int given = count - n;
    decode(ids, batch ? count : given, 0, batch);
    for (int i = 0; i < n; i++) {
        const float *logits = llama_get_logits_ith(context, batch ? given - 1 + i : -1);
        keep(out, logits);
        printf("%.6f%c", logprob(logits, ids[given + i]), i + 1 < n ? ' ' : '\n');
        if (!batch)
            decode(ids + given + i, 1, given + i, false);
    }
}

static int parse(char *line, llama_token *ids)
{
    int n = 0;
    for (char *word = strtok(line, " \n"); word && n < IDS_MAX; word = strtok(NULL, " \n"))
        ids[n++] = atoi(word);
    return n;
}

static void tokens(char *line)
{
    llama_token ids[IDS_MAX];
    line[strcspn(line, "\n")] = 0;
    int n = llama_tokenize(llama_model_get_vocab(model), line, (int)strlen(line), ids, IDS_MAX,
                           true, false);
    if (n < 0)
        die("a line of too many tokens");
    for (int i = 0; i < n; i++)
        printf("%d%c", ids[i], i + 1 < n ? ' ' : '\n');
}

int main(int argc, char **argv)
{
    if (argc < 4)
        die("usage: peer_logits MODEL tokens|greedy|step|batch FILE [N [OUT]]");
    FILE *in = fopen(argv[3], "r"), *out = argc > 5 ? fopen(argv[5], "wb") : NULL;
    int n = argc > 4 ? atoi(argv[4]) : 0;
    char *line = NULL;
    size_t room = 0;
    if (!in || (argc > 5 && !out))
        die("cannot open the files");
    load(argv[1]);
    while (getline(&line, &room, in) > 0) {
        static llama_token ids[2 * IDS_MAX];
        if (strcmp(argv[2], "tokens") == 0) {
            tokens(line);
            continue;
        }
        int count = parse(line, ids);
        forget();
        if (strcmp(argv[2], "greedy") == 0)
            greedy(ids, count, n, out);
        else if (n > 0 && n < count)
            forced(ids, count, n, strcmp(argv[2], "batch") == 0, out);
        else
            die("a line of too few ids");
    }
    if (out && fclose(out))
        die("cannot write");
    return 0;
}
