/* tools/kvtrace/placement_report.c - see placement_report.h. */
#include "tools/kvtrace/placement_report.h"

#include <string.h>

#include "base/json_text.h"

int report_parse_placements(struct report *report, const char *text, struct hill_why *why)
{
    bool all = strcmp(text, "all") == 0;
    memset(report->wanted, all, sizeof report->wanted);
    report->all = all;
    while (!all) {
        char name[16];
        enum placement_kind kind;
        size_t length = strcspn(text, ",");
        snprintf(name, sizeof name, "%.*s", (int)(length < 15 ? length : 15), text);
        if (length > 15 || placement_parse(name, &kind))
            return hill_fail(
                why, HILL_E_INVALID,
                "--placement %.*s: expected all or some of recency,bkp,paper,lru,lfu,score,belady",
                (int)(length < 100 ? length : 100), text);
        report->wanted[kind] = true;
        if (text[length] == '\0')
            break;
        text += length + 1;
    }
    return 0;
}

/* Where the selected entries were when the trace was made. */
static int count_recorded(struct report *report, struct hill_why *why)
{
    const struct placement_settings *s = &report->settings.placement;
    for (uint32_t i = 0; i < trace_file_count(report->file); i++) {
        const struct trace_record *r = trace_file_record(report->file, i);
        const uint32_t *words;
        const uint16_t *scores;
        if (report->settings.layer >= 0 && r->layer != report->settings.layer)
            continue;
        int rc = trace_file_read(report->file, i, &words, &scores, why);
        if (rc)
            return rc;
        report->without_scores = report->without_scores || !scores;
        uint32_t from = r->n_tokens > s->window ? r->n_tokens - s->window : 0;
        for (uint32_t j = 0; j < r->n_selected; j++) {
            uint32_t position = words[j] & TRACE_POSITION_MASK;
            if (position < s->sinks || position >= from)
                continue;
            if (words[j] & TRACE_GPU)
                report->gpu++;
            else if (words[j] & TRACE_COLD)
                report->cold++;
            else
                report->hot++;
        }
    }
    return 0;
}

int report_run(struct report *report, struct hill_why *why)
{
    int rc = count_recorded(report, why);
    if (report->all && report->without_scores)
        report->wanted[PLACEMENT_SCORE] = false;
    for (unsigned kind = 0; kind < PLACEMENT_COUNT && rc == 0; kind++)
        if (report->wanted[kind])
            rc = trace_replay_run(&report->results[kind], report->file, (enum placement_kind)kind,
                                  &report->settings, why);
    return rc;
}

/* ---- for people ---------------------------------------------------------------------------- */

static double per(uint64_t sum, uint64_t count)
{
    return count ? (double)sum / (double)count : 0;
}

void report_print(const struct report *report, FILE *to)
{
    const struct trace_settings *t = trace_file_settings(report->file);
    const struct trace_replay_settings *s = &report->settings;
    uint64_t entry = kv_entry_bytes(&t->geometry);
    fprintf(to, "%s: %s, %u layers, %u records, %llu bytes an entry, sinks %u, window %u\n",
            trace_file_path(report->file), t->model[0] ? t->model : "no model named",
            t->geometry.n_layers, trace_file_count(report->file), (unsigned long long)entry,
            s->placement.sinks, s->placement.window);
    fprintf(to, "unforced selected entries as recorded: %llu on the GPU, %llu hot, %llu cold\n",
            (unsigned long long)report->gpu, (unsigned long long)report->hot,
            (unsigned long long)report->cold);
    fprintf(to, "hot share %g, %u GPU slots; per decode step over %s:\n", s->hot, s->gpu_slots,
            s->layer < 0 ? "all layers" : "one layer");
    fprintf(to, "  %-9s %9s %9s %11s %11s %11s %11s %11s %9s\n", "placement", "hot hits", "near",
            "fetched", "promoted", "demoted", "written", "bounces", "copies");
    for (unsigned kind = 0; kind < PLACEMENT_COUNT; kind++) {
        const struct trace_replay_result *r = &report->results[kind];
        const struct placement_stats *p = &r->stats;
        if (report->wanted[kind])
            fprintf(to, "  %-9s %8.2f%% %8.2f%% %11.2f %11.2f %11.2f %11.2f %11.2f %8.2f%%\n",
                    placement_name((enum placement_kind)kind), 100 * trace_replay_hit_rate(r),
                    100 * trace_replay_near_rate(r), per(p->hits_cold, r->steps),
                    per(p->promoted, r->steps), per(p->demoted, r->steps),
                    per(r->written, r->steps), per(p->bounced, r->steps),
                    100 * per(r->copies, r->cold));
    }
}

/* ---- for programs --------------------------------------------------------------------------- */

static json_t *placement_json(const struct trace_replay_result *r, uint64_t entry)
{
    const struct placement_stats *p = &r->stats;
    json_t *rate = p->hits_hot + p->hits_cold ? json_real(trace_replay_hit_rate(r)) : json_null();
    return json_pack("{s:o, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:I, s:I, s:I}",
                     "hit_rate", rate, "near_rate", trace_replay_near_rate(r), "hits_gpu",
                     (json_int_t)r->gpu_hits, "hits_hot", (json_int_t)p->hits_hot, "hits_cold",
                     (json_int_t)p->hits_cold, "promoted", (json_int_t)p->promoted, "demoted",
                     (json_int_t)p->demoted, "bounced", (json_int_t)p->bounced, "placed_cold",
                     (json_int_t)p->placed_cold, "copies_share", per(r->copies, r->cold), "written",
                     (json_int_t)r->written, "given_away", (json_int_t)r->given_away, "moved_bytes",
                     (json_int_t)((p->promoted + p->demoted) * entry), "steps",
                     (json_int_t)r->steps);
}

json_t *report_json(const struct report *report)
{
    const struct trace_settings *t = trace_file_settings(report->file);
    const char *path = trace_file_path(report->file), *tail = trace_file_tail(report->file);
    uint64_t entry = kv_entry_bytes(&t->geometry);
    json_t *placements = json_object();
    for (unsigned kind = 0; kind < PLACEMENT_COUNT; kind++)
        if (report->wanted[kind])
            json_object_set_new(placements, placement_name((enum placement_kind)kind),
                                placement_json(&report->results[kind], entry));
    return json_pack("{s:o, s:o, s:I, s:I, s:f, s:I, s:b, s:{s:I, s:I, s:I}, s:o}", "file",
                     json_text(path, strlen(path)), "model", json_text(t->model, strlen(t->model)),
                     "records", (json_int_t)trace_file_count(report->file), "entry_bytes",
                     (json_int_t)entry, "hot_share", report->settings.hot, "gpu_slots",
                     (json_int_t)report->settings.gpu_slots, "cut_short", tail != NULL, "recorded",
                     "gpu", (json_int_t)report->gpu, "hot", (json_int_t)report->hot, "cold",
                     (json_int_t)report->cold, "placements", placements);
}
