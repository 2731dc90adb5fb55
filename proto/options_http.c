/* proto/options_http.c - see options_http.h. */
#include "proto/options_http.h"

const struct option_spec hill_http_specs[] = {
    OPTION("host", STRING, "ADDRESS",
           "where to listen: an IPv4 or IPv6 address, localhost, or unix:PATH",
           .fallback = "127.0.0.1"),
    OPTION("port", INTEGER, "N", "0: one that is free, told in the log", .max = 65535,
           .fallback = "8080"),
    OPTION("api-key", STRING, "KEY",
           "requests need this key; the command line is everybody's to read: see --api-key-file"),
    OPTION("api-key-file", PATH, "FILE", "requests need one of the keys in it, one a line"),
    OPTION("insecure", FLAG, NULL,
           "listen beyond this machine without a key: whoever reaches the port may ask"),
    OPTION("cors", STRING, "ORIGIN",
           "pages of this origin (https://chat.example) may ask; *: of any",
           .unset_help = "no page of another origin may ask"),
    OPTION("max-body-mb", SIZE, "MiB", "the largest request body", .min = 0.001, .max = 60,
           .fallback = "16"),
    OPTION("connections", INTEGER, "N", "open at the same time; further ones wait to be taken",
           .min = 1, .max = 512, .fallback = "128"),
    OPTION("requests", INTEGER, "N",
           "answers under way at the same time, waiting ones included; the next one gets 429",
           .min = 1, .max = 256, .fallback = "64"),
    OPTION("idle-timeout", INTEGER, "SECONDS",
           "a connection that says nothing, reads nothing, or takes longer to send a request",
           .min = 1, .max = 3600, .fallback = "30"),
    OPTION("no-slots", FLAG, NULL, "/slots is not served"),
    OPTION("chat-template-file", PATH, "FILE",
           "the chat template (Jinja) in this file, in place of the model's",
           .unset_help = "the model's own"),
};
const unsigned hill_http_count = sizeof hill_http_specs / sizeof hill_http_specs[0];
