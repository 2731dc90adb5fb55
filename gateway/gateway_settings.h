/*
 * gateway/gateway_settings.h - the gateway's options, and who may ask.
 *
 * What: where it listens, keys, bounds. Listening beyond this machine without a key is refused
 * unless --insecure says so. Who calls it: main.c; the rest reads it. Concurrency: read-only.
 */
#pragma once

#include <stdint.h>

#include "base/options.h"
#include "chat/chat_prompt.h"
#include "gateway/api_keys.h"

struct gateway_settings {
    const char *host; /* an address, "localhost", or "unix:PATH" */
    uint16_t port;    /* 0: any that is free */
    const char *cors; /* an origin or "*"; NULL: off */
    struct api_keys keys;
    uint64_t body_bytes;          /* the largest body */
    unsigned connections;         /* at the same time */
    unsigned requests;            /* generations at the same time, waiting ones included */
    unsigned idle_s;              /* a connection that says nothing, and a body's whole time */
    unsigned patience_s;          /* until the coordinator has answered */
    bool slots;                   /* /slots is served */
    ProtobufCBinaryData template; /* in place of models' own; len 0: none */
};

/* Of hill_http_specs (proto/options_http.h). HILL_E_INVALID; HILL_E_IO: the key file; as
 * chat_prompt_read_template. */
int gateway_settings_read(struct gateway_settings *out, const struct options *options,
                          struct hill_why *why);
void gateway_settings_finish(struct gateway_settings *settings);

bool gateway_is_unix(const char *host);
bool gateway_is_loopback(const char *host);
