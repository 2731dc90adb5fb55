/*
 * tools/bench/bench_speculation.c - figure "speculation": what guessing the next layer's queries
 * gains in time and costs in what is selected.
 *
 * What: the running pipeline on the random-weight model after a prompt of DEPTH tokens with
 * --speculate off, on and verify: everything hot; four fifths cold; the same with the paper's
 * modelled drive and with one whose flash is slow. Of each the speed, and the share of the decode
 * in which the GPU waited. Then recall: of what the exact queries of a layer choose (sinks and
 * window not counted) the share that the guesses chose, of the random-weight model, of
 * models/hill-ref.gguf and, where HILL_MODELS has it, of stories260K; and for hill-ref how many
 * greedy tokens are the same as without guesses, with 1, 2 and 3 exact layers. Checked: verify
 * selects what off does, on the same with every placement. Three rounds at most: each run prefills
 * its prompt. Failure: bench_fail. Concurrency: one thread; the pipeline is processes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/bench/dense_model.h"
#include "tools/bench/picture.h"
#include "tools/bench/run_pipeline.h"

#define STEPS      64u
#define ALPHA      0.1
#define ROUNDS_MAX 3u
#define LAYERS_MAX 64u
#define PIECES     3u    /* of the held-out text */
#define PIECE      3000u /* bytes */
#define GREEDY     48u   /* tokens */

enum mode { OFF, ON, VERIFY, MODES };
static const char *const mode_names[MODES] = {"off", "on", "verify"};

static const struct scene {
    const char *name, *options;
} scenes[] = {
    {"everything hot", "--csd none"},
    {"four fifths cold, this drive", "--beta 0.25"},
    {"four fifths cold, a modelled SmartSSD without DRAM", "--beta 0.25 --csd-model dram=0"},
    {"four fifths cold, the same with flash 1 GB/s", "--beta 0.25 --csd-model flash=1.0,dram=0"}};
enum { SCENES = sizeof scenes / sizeof *scenes };

static struct bench_samples speeds[SCENES][MODES], idles[SCENES][MODES];

/* Recall of a model, the mean of its runs. */
struct recall {
    const char *name;
    uint32_t n_layers, n;
    double sum[LAYERS_MAX];
};
static struct recall recalls[3];
static uint32_t n_recalls;

static json_t *ask(const char *file, uint32_t predict)
{
    json_t *root = json_of(capture("HILL_RUN_DIR=%s/run scripts/hillinfer generate -f %s -n %u "
                                   "--temp 0 --ignore-eos --json",
                                   pipeline_folder, file, predict),
                           "hillinfer generate");
    if (json_array_size(json_object_get(root, "tokens")) != predict)
        bench_fail("the pipeline gave no whole answer to %s", file);
    return root;
}

static void note_recall(struct recall *r, const json_t *answer)
{
    const json_t *list =
        json_object_get(json_object_get(answer, "speculation"), "recall_per_layer");
    r->n_layers = (uint32_t)json_array_size(list);
    if (r->n_layers == 0 || r->n_layers > LAYERS_MAX)
        bench_fail("%u layers of recall", r->n_layers);
    for (uint32_t i = 0; i < r->n_layers; i++) /* null: exact */
        r->sum[i] += json_number_value(json_array_get(list, i));
    r->n++;
}

/* ---- speed ---- */

static char off_hash[17], on_hash[17];

/* The selection of a mode is one, whatever the scene; verify's is that of off. */
static void check_hash(enum mode mode, const json_t *answer)
{
    char *known = mode == ON ? on_hash : off_hash;
    const char *hash = json_string_value(json_object_get(answer, "selection_hash"));
    if (!hash || strlen(hash) != 16)
        bench_fail("an answer without selection_hash");
    if (*known && strcmp(known, hash) != 0)
        bench_fail("--speculate %s selected %s, not %s", mode_names[mode], hash, known);
    strcpy(known, hash);
}

static void measure(uint32_t scene, enum mode mode, uint32_t depth)
{
    char model[4200], prompt[4200], options[256];
    snprintf(model, sizeof model, "%s/model.gguf", pipeline_folder);
    snprintf(prompt, sizeof prompt, "%s/deep.txt", pipeline_folder);
    snprintf(options, sizeof options, "-c %u --alpha %g --speculate %s --exact-layers 1 %s",
             depth + 256, ALPHA, mode_names[mode], scenes[scene].options);
    pipeline_start_with(model, options);
    json_t *a = ask(prompt, STEPS + 1);
    pipeline_stop();
    double busy = json_at(a, "stages", "gpu_busy_ms", NULL),
           idle = json_at(a, "stages", "gpu_idle_ms", NULL);
    bench_sample(&speeds[scene][mode], STEPS * 1e3 / json_at(a, "predicted_ms", NULL, NULL));
    bench_sample(&idles[scene][mode], idle / (busy + idle));
    check_hash(mode, a);
    if (mode == VERIFY)
        note_recall(&recalls[0], a);
    json_decref(a);
}

static void measure_speed(const struct bench_options *o, uint32_t depth)
{
    uint32_t rounds = o->rounds < ROUNDS_MAX ? o->rounds : ROUNDS_MAX;
    recalls[n_recalls++].name = "random weights, 134 M";
    pipeline_prompt("deep", depth, 0);
    for (uint32_t round = 0; round < rounds; round++) {
        bench_progress(round + 1, rounds, "speed");
        for (uint32_t scene = 0; scene < SCENES; scene++)
            for (enum mode mode = 0; mode < MODES; mode++)
                measure(scene, mode, depth);
    }
}

/* Bars of the shares in which the GPU waited, around each scene. */
static void draw_idle(void)
{
    static struct picture p;
    static const char *const names[SCENES] = {"hot", "cold", "paper's model", "slow flash"};
    p = (struct picture){.name = "speculation-idle",
                         .title = "GPU idle with queries guessed ahead and not",
                         .x_label = "KV entries",
                         .y_label = "share of the decode, %",
                         .y_max = 100,
                         .n_categories = SCENES};
    for (uint32_t scene = 0; scene < SCENES; scene++)
        p.categories[scene] = names[scene];
    for (enum mode m = 0; m < MODES; m++) {
        struct picture_series *s = picture_add(&p, mode_names[m], false);
        for (uint32_t scene = 0; scene < SCENES; scene++)
            picture_point(s, scene, 100 * bench_median(&idles[scene][m]));
    }
    picture_show(&p);
}

static void print_speed(uint32_t depth)
{
    printf("## Speculation\n\nTokens a second over %u steps after a prompt of %u tokens, --alpha "
           "%g, --exact-layers 1; 134 M parameters in F16 (random weights), %u threads for all "
           "processes together, %u round%s, modes in turn. In brackets the share of the decode in "
           "which the GPU waited for a selection. verify selected what off did, and each mode "
           "the same in every row.\n\n",
           STEPS, depth, ALPHA, PIPELINE_THREADS, speeds[0][0].count,
           speeds[0][0].count > 1 ? "s" : "");
    printf("| KV entries | off | on | verify | on / off | verify / off |\n"
           "|---|---:|---:|---:|---:|---:|\n");
    for (uint32_t s = 0; s < SCENES; s++) {
        double off = bench_median(&speeds[s][OFF]);
        printf("| %s |", scenes[s].name);
        for (enum mode m = 0; m < MODES; m++)
            printf(" %.1f (%.0f %%) |", bench_median(&speeds[s][m]),
                   100 * bench_median(&idles[s][m]));
        printf(" %.2f | %.2f |\n", bench_median(&speeds[s][ON]) / off,
               bench_median(&speeds[s][VERIFY]) / off);
    }
    draw_idle();
}

/* ---- trained models ---- */

/* Pieces of a text, spread evenly, as piece.N.txt. */
static void cut_pieces(const char *text, uint32_t bytes, uint32_t n)
{
    run_or_fail("cutting the text",
                capture("size=$(stat -c %%s %s) && for i in $(seq 0 %u); do tail -c +$((1 + i * "
                        "(size - %u) / %u)) %s | head -c %u >%s/piece.$i.txt; done",
                        text, n - 1, bytes, n, text, bytes, pipeline_folder));
}

static json_t *ask_piece(uint32_t piece)
{
    char file[4200];
    snprintf(file, sizeof file, "%s/piece.%u.txt", pipeline_folder, piece);
    return ask(file, GREEDY);
}

static void measure_recall(const char *name, const char *model, const char *options, uint32_t n)
{
    struct recall *r = &recalls[n_recalls++];
    r->name = name;
    pipeline_start_with(model, options);
    for (uint32_t i = 0; i < n; i++) {
        json_t *a = ask_piece(i);
        note_recall(r, a);
        json_decref(a);
    }
    pipeline_stop();
}

static void print_recall(void)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n_recalls; i++)
        most = recalls[i].n_layers > most ? recalls[i].n_layers : most;
    printf("\nRecall (verify, --exact-layers 1): of what a layer's exact queries chose, sinks and "
           "window not counted, the share that the guesses had chosen.\n\n| model |");
    for (uint32_t layer = 1; layer < most; layer++)
        printf(" layer %u |", layer);
    printf("\n|---|");
    for (uint32_t layer = 1; layer < most; layer++)
        printf("---:|");
    for (uint32_t i = 0; i < n_recalls; i++) {
        printf("\n| %s |", recalls[i].name);
        for (uint32_t layer = 1; layer < most; layer++)
            if (layer < recalls[i].n_layers)
                printf(" %.2f |", recalls[i].sum[layer] / recalls[i].n);
            else
                printf(" |");
    }
    printf("\n");
}

static void draw_recall(void)
{
    static struct picture p;
    p = (struct picture){.name = "speculation-recall",
                         .title = "Of the exact selection, what guesses found",
                         .x_label = "layer",
                         .y_label = "recall",
                         .y_max = 1};
    for (uint32_t i = 0; i < n_recalls; i++) {
        struct picture_series *s = picture_add(&p, recalls[i].name, false);
        for (uint32_t layer = 1; layer < recalls[i].n_layers && layer <= PICTURE_POINTS_MAX;
             layer++)
            picture_point(s, layer, recalls[i].sum[layer] / recalls[i].n);
    }
    picture_show(&p);
}

/* How many tokens are the same before the first other one. */
static uint32_t same_tokens(const json_t *a, const json_t *b)
{
    const json_t *x = json_object_get(a, "tokens"), *y = json_object_get(b, "tokens");
    uint32_t n = 0;
    while (n < GREEDY && json_equal(json_array_get(x, n), json_array_get(y, n)))
        n++;
    return n;
}

static void measure_text(const char *model, uint32_t n)
{
    json_t *off[PIECES];
    char options[256];
    printf("\nGreedy text of hill-ref, --alpha %g, after %u pieces of held-out text of %u bytes: "
           "tokens of %u before the first that differs from --speculate off.\n\n| --speculate on, "
           "exact layers |",
           ALPHA, n, PIECE, GREEDY);
    for (uint32_t i = 0; i < n; i++)
        printf(" piece %u |", i + 1);
    printf("\n|---|");
    for (uint32_t i = 0; i < n; i++)
        printf("---:|");
    printf("\n");
    for (uint32_t exact = 0; exact <= 3; exact++) {
        snprintf(options, sizeof options,
                 "-c 4096 --csd none --alpha %g --speculate %s --exact-layers %u", ALPHA,
                 exact ? "on" : "off", exact ? exact : 1);
        pipeline_start_with(model, options);
        if (exact)
            printf("%s| %u |", exact > 1 ? "\n" : "", exact);
        for (uint32_t i = 0; i < n; i++) {
            json_t *a = ask_piece(i);
            if (exact) {
                printf(" %u |", same_tokens(a, off[i]));
                json_decref(a);
            } else {
                off[i] = a;
            }
        }
        pipeline_stop();
    }
    printf("\n");
    for (uint32_t i = 0; i < n; i++)
        json_decref(off[i]);
}

int main(int argc, char **argv)
{
    struct bench_options o = bench_start("speculation", argc, argv);
    uint32_t depth = o.quick ? 512 : 2048, pieces = o.quick ? 1 : PIECES;
    static const char ref[] = "models/hill-ref.gguf";
    const char *models = getenv("HILL_MODELS") ? getenv("HILL_MODELS") : "../shared/models";
    char stories[4200], options[128];
    snprintf(options, sizeof options,
             "-c 4096 --csd none --alpha %g --speculate verify "
             "--exact-layers 1",
             ALPHA);
    snprintf(stories, sizeof stories, "%s/stories260K.gguf", models);
    dense_model_prepare(&o);
    measure_speed(&o, depth);
    cut_pieces("models/heldout.txt", PIECE, pieces);
    measure_recall("hill-ref, trained, 2.8 M", ref, options, pieces);
    print_speed(depth);
    measure_text(ref, pieces);
    if (access(stories, R_OK) == 0) {
        cut_pieces("models/heldout.txt", 450, pieces);
        snprintf(options, sizeof options,
                 "-c 512 --csd none --alpha %g --speculate verify "
                 "--exact-layers 1 --sinks 2 --window 8",
                 ALPHA);
        measure_recall("stories260K, trained", stories, options, pieces);
    }
    print_recall();
    draw_recall();
    return 0;
}
