/*
 * proto/options_http.h - the options of HTTP, one table for all programs.
 *
 * What: they are the gateway's. The coordinator and hillctl read the same INI file (--config), in
 * which they accept and ignore them. Who calls it: hill-gateway, hill-coordinator, hillctl.
 * Concurrency: constant.
 */
#pragma once

#include "base/options.h"

extern const struct option_spec hill_http_specs[];
extern const unsigned hill_http_count;

/* Where they are another program's. */
#define HILL_FOREIGN_HTTP_TABLE                                                                    \
    {                                                                                              \
        .specs = hill_http_specs, .count = hill_http_count, .foreign = true                        \
    }
