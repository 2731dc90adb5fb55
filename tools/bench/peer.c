/* tools/bench/peer.c - see peer.h. */
#include "tools/bench/peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/bench/run_pipeline.h"

#define CONTEXT_SLACK 256u /* tokens that are generated fit in */

/* PEER_DIR cut at its colons, once: folders, the flags behind them, and both as they were given. */
static struct {
    bool read;
    uint32_t count;
    char *given[PEERS_MAX], *folder[PEERS_MAX], *flags[PEERS_MAX], *name[PEERS_MAX];
} peers;

/* The words between colons; the caller's for ever. How many. */
static uint32_t cut(const char *variable, char *words[PEERS_MAX])
{
    const char *given = getenv(variable);
    uint32_t n = 0;
    char *rest = given && *given ? strdup(given) : NULL;
    for (char *word = rest ? strsep(&rest, ":") : NULL; word; word = strsep(&rest, ":")) {
        if (n == PEERS_MAX)
            bench_fail("%s has more than %u words", variable, PEERS_MAX);
        words[n++] = word;
    }
    return n;
}

static void read_peers(void)
{
    char *names[PEERS_MAX], own[16];
    if (peers.read)
        return;
    peers.read = true;
    peers.count = cut("PEER_DIR", peers.given);
    uint32_t n_names = cut("PEER_NAMES", names);
    for (uint32_t i = 0; i < peers.count; i++) {
        char *word = strdup(peers.given[i]);
        peers.folder[i] = strsep(&word, " ");
        peers.flags[i] = word ? word : strdup("");
        snprintf(own, sizeof own, "peer %u", i + 1);
        peers.name[i] = i < n_names ? names[i] : strdup(own);
    }
}

uint32_t peer_count(void)
{
    read_peers();
    return peers.count;
}

bool peer_is_there(void)
{
    return peer_count() > 0;
}

const char *peer_name(uint32_t index)
{
    read_peers();
    return peers.name[index];
}

const char *peer_given(uint32_t index)
{
    read_peers();
    return peers.given[index];
}

const char *peer_version(uint32_t index)
{
    static char versions[PEERS_MAX][128];
    char *known = versions[index];
    read_peers();
    if (*known)
        return known;
    char *text = capture("for p in llama-cli llama-completion; do %s/$p --version 2>&1 </dev/null; "
                         "done; true",
                         peers.folder[index]);
    const char *line = text ? strstr(text, "version: ") : NULL;
    snprintf(known, sizeof versions[0], "%.*s", line ? (int)strcspn(line, "\n") : 16,
             line ? line : "version: unknown");
    free(text);
    return known;
}

void peer_print_versions(uint32_t n)
{
    for (uint32_t i = 0; i < n && i < peer_count(); i++)
        printf("%s%s, %s", i ? "; " : "\nPeers: ", peer_name(i), peer_version(i));
    if (n && peer_count())
        printf(".\n");
}

/* ---- llama-bench ---- */

/* A peer may print other lines into its JSON, so the one number is looked for. */
double peer_bench_of(uint32_t index, const char *model, const char *options, const char *flags)
{
    static const char key[] = "\"avg_ts\":";
    read_peers();
    char *text = capture("%s/llama-bench -m '%s' -t %u -r 1 -o json %s %s 2>/dev/null",
                         peers.folder[index], model, PIPELINE_THREADS, options, flags);
    const char *at = text ? strstr(text, key) : NULL;
    double value = at ? strtod(at + sizeof key - 1, NULL) : 0;
    if (!(value > 0))
        bench_fail("%s/llama-bench gave no speed for %s %s", peers.folder[index], options, flags);
    free(text);
    return value;
}

/* ---- the best flags ---- */

/* --help of a program of the peer's. The caller frees it. Some end with an error after it. */
static char *help_of(uint32_t index, const char *program)
{
    read_peers();
    char *text = capture("%s/%s --help 2>&1 || true", peers.folder[index], program);
    return text ? text : strdup("");
}

bool peer_bench_knows(uint32_t index, const char *words)
{
    char *help = help_of(index, "llama-bench");
    bool knows = strstr(help, words) != NULL;
    free(help);
    return knows;
}

uint32_t peer_flags(uint32_t index, char flags[PEER_FLAGS_MAX][128])
{
    uint32_t n = 0;
    read_peers();
    if (*peers.flags[index]) {
        snprintf(flags[0], 128, "%s", peers.flags[index]);
        return 1;
    }
    bool attention = peer_bench_knows(index, "-fa,"), repack = peer_bench_knows(index, "-rtr,");
    for (int fa = 0; fa <= attention; fa++)
        for (int rtr = 0; rtr <= repack; rtr++)
            snprintf(flags[n++], 128, "%s%s%s",
                     !attention ? ""
                     : fa       ? "-fa 1"
                                : "-fa 0",
                     attention && repack ? " " : "",
                     !repack ? ""
                     : rtr   ? "-rtr 1"
                             : "-rtr 0");
    return n;
}

uint32_t peer_best_flags(uint32_t index, const char *model, const char *options, uint32_t runs,
                         double speeds[PEER_FLAGS_MAX])
{
    char flags[PEER_FLAGS_MAX][128];
    struct bench_samples samples[PEER_FLAGS_MAX] = {{.count = 0}};
    uint32_t n = peer_flags(index, flags), best = 0;
    for (uint32_t run = 0; run < runs; run++)
        for (uint32_t i = 0; i < n; i++)
            bench_sample(&samples[i], peer_bench_of(index, model, options, flags[i]));
    for (uint32_t i = 0; i < n; i++) {
        speeds[i] = bench_median(&samples[i]);
        best = speeds[i] > speeds[best] ? i : best;
    }
    return best;
}

/* ---- deep in a text ---- */

/* As llama.cpp says it, or ik_llama.cpp. */
void peer_depth_options(uint32_t index, uint32_t depth, uint32_t steps, char out[64])
{
    snprintf(out, 64, peer_bench_knows(index, "-gp <") ? "-p 0 -n 0 -gp %u,%u" : "-p 0 -d %u -n %u",
             depth, steps);
}

/* llama-bench's flags as llama-completion and llama-cli take them: there -rtr has no value. */
static void program_flags(const char *flags, char *out, size_t room)
{
    char words[128], *rest = words;
    size_t used = 0;
    snprintf(words, sizeof words, "%s", flags);
    *out = 0;
    for (char *word = strsep(&rest, " "); word && used < room; word = strsep(&rest, " ")) {
        if (strcmp(word, "-rtr") != 0) {
            used += (size_t)snprintf(out + used, room - used, " %s", word);
            continue;
        }
        const char *value = strsep(&rest, " ");
        if (value && strcmp(value, "1") == 0)
            used += (size_t)snprintf(out + used, room - used, " -rtr");
    }
}

/* It reports its decode as "eval time = X ms / N runs". */
static double eval_speed(const char *text, const char *program)
{
    double ms = 0;
    unsigned runs = 0;
    const char *line = text ? strstr(text, "       eval time =") : NULL;
    if (!line || sscanf(line, " eval time = %lf ms / %u runs", &ms, &runs) != 2 || !runs)
        bench_fail("%s gave no decode time", program);
    return runs * 1e3 / ms;
}

double peer_decode_of(uint32_t index, const char *model, const char *flags, const char *prompt,
                      const char *state, uint32_t depth, uint32_t steps)
{
    char program[4200], words[160];
    read_peers();
    snprintf(program, sizeof program, "%s/llama-completion", peers.folder[index]);
    bool newer = access(program, X_OK) == 0;
    if (!newer)
        snprintf(program, sizeof program, "%s/llama-cli", peers.folder[index]);
    program_flags(flags, words, sizeof words);
    char *help = help_of(index, newer ? "llama-completion" : "llama-cli");
    char *text = capture("%s -m '%s' -t %u -c %u -f '%s' -n %u %s %s --temp 0 --ignore-eos "
                         "--no-warmup --prompt-cache '%s'%s 2>&1 </dev/null",
                         program, model, PIPELINE_THREADS, depth + CONTEXT_SLACK, prompt, steps + 1,
                         strstr(help, "-no-cnv") ? "-no-cnv" : "",
                         strstr(help, "--perf") ? "--perf" : "", state, words);
    double speed = eval_speed(text, program);
    free(text);
    free(help);
    return speed;
}

uint32_t peer_fastest(const struct bench_samples *speeds)
{
    uint32_t best = 0;
    for (uint32_t p = 1; p < peer_count(); p++)
        if (bench_median(&speeds[p]) > bench_median(&speeds[best]))
            best = p;
    return best;
}

/* ---- the first peer on the figure's model ---- */

static void first_model(char model[4200])
{
    snprintf(model, 4200, "%s/model.gguf", pipeline_folder);
}

void peer_first_flags(const char *options, uint32_t runs, char flags[128])
{
    char model[4200], sets[PEER_FLAGS_MAX][128];
    double speeds[PEER_FLAGS_MAX];
    uint32_t best = 0;
    first_model(model);
    if (peer_flags(0, sets) > 1)
        best = peer_best_flags(0, model, options, runs, speeds);
    memcpy(flags, sets[best], sizeof sets[best]);
}

double peer_first_bench(const char *options, const char *flags)
{
    char model[4200];
    first_model(model);
    return peer_bench_of(0, model, options, flags);
}
