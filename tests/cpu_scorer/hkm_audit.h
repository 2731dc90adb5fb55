/* tests/cpu_scorer/hkm_audit.h - holds every invariant of the hot tables, in O(everything). */
#pragma once

#include "cpu_scorer/hkm.h"

/* 0, or HILL_E_DAMAGED with what is wrong. */
int hkm_audit(const struct hkm *h, struct hill_why *why);
