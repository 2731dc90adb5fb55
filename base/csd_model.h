/*
 * base/csd_model.h - the figures of a modelled drive: what --csd-model and `hillctl csd-model` say.
 *
 * What: text like "flash=2.9,write=1.0,link=3.2,gpu_link=25,score=44.5,
 * dram=4G,dram_read=13.7,latency_us=42" to numbers and back; the only parser of it.
 * base/device_model.h makes times of them. `cpu` stands in for a slower host's scoring of digests
 * (not for policies that evaluate keys) and is 0 (and not printed) unless it is named. Keys that a
 * text does not name keep what is in force; with none in force, the figures of a SmartSSD below.
 * Who calls it: the options, the coordinator, hillctl; proto/validate.c checks ranges with it.
 * Concurrency: stateless. Failure: HILL_E_INVALID with the key at fault; nothing is changed then.
 */
#pragma once

#include <stdbool.h>

#include "base/error.h"

/* A Samsung SmartSSD, as others have measured it: its flash to its FPGA, programming, its PCIe
 * link, its card's DDR4 at a memory port. score is derived, and nobody has synthesised that kernel:
 * 64 bytes of INT8 digests a cycle at 250 MHz, 0.7 of the time, are 11.2 GB/s, each for 4096 / 1032
 * of FP16 K and V. gpu_link: the paper's setting. The text names each key with the same figures. */
#define CSD_MODEL_SMARTSSD                                                                         \
    {                                                                                              \
        .on = true, .flash = 2.9, .write = 1.0, .link = 3.2, .gpu_link = 25, .score = 44.5,        \
        .dram = 4294967296.0, .dram_read = 13.7, .latency_us = 42                                  \
    }

#define CSD_MODEL_SMARTSSD_TEXT                                                                    \
    "flash=2.9,write=1.0,link=3.2,gpu_link=25,score=44.5,dram=4G,dram_read=13.7,latency_us=42"

#define CSD_MODEL_RATE_MIN       0.001 /* GB/s */
#define CSD_MODEL_RATE_MAX       100000.0
#define CSD_MODEL_LATENCY_US_MAX 1000000.0
#define CSD_MODEL_DRAM_MAX       0x1p40
#define CSD_MODEL_TEXT           224 /* bytes of a printed model */

struct csd_model {
    bool on;             /* false: the drive takes the time it takes, and the rest means nothing */
    double flash, write; /* GB/s (10^9 bytes a second): flash read, flash written */
    double link;         /* GB/s in each direction between drive and host */
    double gpu_link;     /* GB/s from the host to the GPU */
    double score;        /* GB/s of the FP16 K and V that the scored tokens stand for */
    double latency_us;   /* of each command that moves or scores anything */
    double cpu;          /* GB/s of FP16 K and V that the CPU scores at most; 0: what it can */
    double dram;         /* bytes of digests that the drive keeps in its DRAM at most; 0: none */
    double dram_read;    /* GB/s of digests from there; 0: at once */
};

/* Change model as text says: "off", or keys with values. */
int csd_model_parse(struct csd_model *model, const char *text, struct hill_why *why);

/* Is every figure in range? Names the key that is not. An "off" is. */
int csd_model_check(const struct csd_model *model, struct hill_why *why);

bool csd_model_same(const struct csd_model *a, const struct csd_model *b);

/* "off", or all keys but cpu=0, so that csd_model_parse makes the same of it; returns out. */
const char *csd_model_print(char out[CSD_MODEL_TEXT], const struct csd_model *model);
