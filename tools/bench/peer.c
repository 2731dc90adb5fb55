/* tools/bench/peer.c - see peer.h. */
#include "tools/bench/peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/run_pipeline.h"

#define CONTEXT_SLACK 256u /* tokens that are generated fit in */

/* NULL: there is none. */
static const char *peer_folder(void)
{
    const char *given = getenv("PEER_DIR");
    return given && *given ? given : NULL;
}

bool peer_is_there(void)
{
    return peer_folder() != NULL;
}

double peer_bench(const char *options)
{
    json_t *root = json_of(capture("%s/llama-bench -m %s/model.gguf -t %u -r 1 -o json %s "
                                   "2>/dev/null",
                                   peer_folder(), pipeline_folder, PIPELINE_THREADS, options),
                           "llama-bench");
    double value = json_at(json_array_get(root, 0), "avg_ts", NULL, NULL);
    json_decref(root);
    return value;
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
