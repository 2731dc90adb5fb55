/*
 * kv/mass_paths.h - the tables of kv/mass_lanes.h's paths; mass.c and the paths alone include it.
 * A path may be used where kv_score_has_avx2 or kv_score_has_avx512 (and F16C) say so.
 */
#pragma once

#include "kv/mass.h"

extern const struct kv_mass_ops kv_mass_plain, kv_mass_avx2, kv_mass_avx512;
