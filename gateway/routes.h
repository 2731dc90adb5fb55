/*
 * gateway/routes.h - which path is what.
 *
 * What: one table of methods and paths; paths that other servers have and this one has not are
 * refused by name. Pure. Who calls it: http_server.c. Concurrency: stateless.
 */
#pragma once

#include <stdbool.h>

#include "gateway/api_error.h"

enum endpoint {
    ENDPOINT_NONE,
    ENDPOINT_PAGE,
    ENDPOINT_HEALTH,
    ENDPOINT_MODELS,
    ENDPOINT_MODEL, /* /v1/models/NAME */
    ENDPOINT_CHAT,
    ENDPOINT_COMPLETIONS,
    ENDPOINT_INFILL,
    ENDPOINT_TOKENIZE,
    ENDPOINT_DETOKENIZE,
    ENDPOINT_APPLY_TEMPLATE,
    ENDPOINT_PROPS,
    ENDPOINT_SLOTS,
    ENDPOINT_METRICS,
};

struct route {
    enum endpoint endpoint;
    bool post;         /* it has a body */
    bool open;         /* needs no key */
    const char *rest;  /* what follows the path of ENDPOINT_MODEL */
    const char *allow; /* of a 405: the method that the path has */
};

/* 0, or -1 with *error: 404, 405 (out->allow), 501. */
int route_find(struct route *out, const char *method, const char *path, struct api_error *error);
