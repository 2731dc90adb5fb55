/* tests/cpu_scorer/hkm_audit.h - holds every invariant of the hot tables, in O(everything). */
#ifndef HILL_TESTS_CPU_SCORER_HKM_AUDIT_H
#define HILL_TESTS_CPU_SCORER_HKM_AUDIT_H

#include "cpu_scorer/hkm.h"

/* 0, or HILL_E_DAMAGED with what is wrong. */
int hkm_audit(const struct hkm *h, struct hill_why *why);

#endif
