/*
 * coordinator/profile.h - what was measured of the two sides of a query, and where it is kept.
 *
 * What: the rates of coordinator/balance.h with their spread, and a cache of them: a JSON file in
 * the state folder with one entry for each fingerprint, which names everything that the rates
 * depend on: CPU, shape of the KV entries, context, threads, scoring path, drive and its model. Who
 * calls it: service_profile.c. Failure: HILL_E_DAMAGED with the file and the field; a file that is
 * damaged is as good as none and is written anew. Concurrency: one thread; a file is replaced as a
 * whole.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/balance.h"
#include "coordinator/settings.h"

#define PROFILE_FINGERPRINT_BYTES (HILL_PATH_BYTES + 2048)
#define PROFILE_ENTRIES_MAX       64u

struct profile {
    struct balance_rates rates,
        spread; /* spread: between the quartiles, as a share of the median */
    uint32_t rounds, hot_tokens, cold_tokens, fetch_tokens;
    double took_ms;
    bool cached; /* not measured by this process */
    /* Do digests of cold tokens pay in place of entries, as the last queries had it, in this run or
     * an earlier one (balance_digests_pay)? 1, -1: no, 0: no queries yet. */
    int digests;
    /* of several drives, which are measured at each start: each one's part of f_s and B_s */
    struct balance_drive drives[LAYOUT_DRIVES_MAX];
    uint32_t n_drives; /* 0: there is one */
};

/* Everything that rates depend on, in one line; cpu: its name. */
void profile_fingerprint(char out[PROFILE_FINGERPRINT_BYTES], const struct settings *settings,
                         const char *cpu);
/* The name of this machine's CPU; "unknown" where the system does not say. */
void profile_cpu_name(char *out, uint32_t bytes);

/* 0; HILL_E_WOULD_BLOCK: there is none of this fingerprint; HILL_E_DAMAGED: the file is damaged. */
int profile_cache_find(struct profile *out, const char *path, const char *fingerprint,
                       struct hill_why *why);
/* Add it, or replace that of the same fingerprint; with PROFILE_ENTRIES_MAX others there, one of
 * them goes. */
int profile_cache_store(const char *path, const char *fingerprint, const struct profile *profile,
                        struct hill_why *why);
