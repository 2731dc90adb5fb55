/* tools/bench/peer.c - see peer.h. */
#include "tools/bench/peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/run_pipeline.h"

#define CONTEXT_SLACK 256u /* tokens that are generated fit in */

#define PEERS_MAX 8u

/* PEER_DIR cut at its colons, once: folders, the options behind them, and both as they were given. */
static struct {
    bool read;
    uint32_t count;
    char *given[PEERS_MAX], *folder[PEERS_MAX], *options[PEERS_MAX];
} peers;

static void read_peers(void)
{
    const char *given = getenv("PEER_DIR");
    if (peers.read)
        return;
    peers.read = true;
    char *rest = given && *given ? strdup(given) : NULL;
    for (char *word = rest ? strsep(&rest, ":") : NULL; word; word = strsep(&rest, ":")) {
        uint32_t i = peers.count++;
        if (i == PEERS_MAX)
            bench_fail("PEER_DIR has more than %u folders", PEERS_MAX);
        peers.given[i] = strdup(word);
        peers.folder[i] = strsep(&word, " ");
        peers.options[i] = word ? word : strdup("");
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
    return peers.given[index];
}

static const char *peer_folder(void)
{
    read_peers();
    return peers.folder[0];
}

/* A peer may print other lines into its JSON, so the one number is looked for. */
double peer_bench_of(uint32_t index, const char *model, const char *options)
{
    static const char key[] = "\"avg_ts\":";
    read_peers();
    char *text =
        capture("%s/llama-bench -m '%s' -t %u -r 1 -o json %s %s 2>/dev/null", peers.folder[index],
                model, PIPELINE_THREADS, options, peers.options[index]);
    const char *at = text ? strstr(text, key) : NULL;
    double value = at ? strtod(at + sizeof key - 1, NULL) : 0;
    if (!(value > 0))
        bench_fail("%s/llama-bench gave no speed for %s", peers.folder[index], options);
    free(text);
    return value;
}

double peer_bench(const char *options)
{
    char model[512];
    snprintf(model, sizeof model, "%s/model.gguf", pipeline_folder);
    return peer_bench_of(0, model, options);
}

/* It reports its decode as "eval time = X ms / N runs". */
double peer_decode(const char *prompt, uint32_t depth, uint32_t steps)
{
    char *text =
        capture("%s/llama-cli -m %s/model.gguf -t %u -c %u -f %s/%s.txt -n %u -no-cnv --temp 0 "
                "--ignore-eos --no-warmup --prompt-cache %s/peer.state 2>&1 </dev/null",
                peer_folder(), pipeline_folder, PIPELINE_THREADS, depth + CONTEXT_SLACK,
                pipeline_folder, prompt, steps + 1, pipeline_folder);
    double ms = 0;
    unsigned runs = 0;
    char *line = text ? strstr(text, "       eval time =") : NULL;
    if (!line || sscanf(line, " eval time = %lf ms / %u runs", &ms, &runs) != 2 || !runs)
        bench_fail("%s/llama-cli gave no decode time", peer_folder());
    free(text);
    return runs * 1e3 / ms;
}
