/* gateway/gateway_settings.c - see gateway_settings.h. */
#include "gateway/gateway_settings.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

const struct option_spec gateway_specs[] = {
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
const unsigned gateway_spec_count = sizeof gateway_specs / sizeof gateway_specs[0];

#define PATIENCE_S 10

bool gateway_is_unix(const char *host)
{
    return strncmp(host, "unix:", 5) == 0;
}

bool gateway_is_loopback(const char *host)
{
    struct in_addr four;
    struct in6_addr six;
    if (gateway_is_unix(host) || strcmp(host, "localhost") == 0)
        return true;
    if (inet_pton(AF_INET, host, &four) == 1)
        return ntohl(four.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, host, &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

static int read_keys(struct gateway_settings *out, const struct options *options,
                     struct hill_why *why)
{
    const char *key = options_text(options, "api-key"),
               *file = options_text(options, "api-key-file");
    int code = 0;
    if (key)
        code = api_keys_add(&out->keys, key, strlen(key), "--api-key", why);
    if (code == 0 && file)
        code = api_keys_read(&out->keys, file, why);
    if (code == 0 && !out->keys.n && !gateway_is_loopback(out->host) &&
        !options_flag(options, "insecure"))
        code = hill_fail(why, HILL_E_INVALID,
                         "--host %.100s is beyond this machine and there is no key: give "
                         "--api-key-file, or --insecure if whoever reaches the port may ask",
                         out->host);
    return code;
}

int gateway_settings_read(struct gateway_settings *out, const struct options *options,
                          struct hill_why *why)
{
    *out = (struct gateway_settings){
        .host = options_text(options, "host"),
        .port = (uint16_t)options_integer(options, "port"),
        .cors = options_text(options, "cors"),
        .body_bytes = options_bytes(options, "max-body-mb"),
        .connections = (unsigned)options_integer(options, "connections"),
        .requests = (unsigned)options_integer(options, "requests"),
        .idle_s = (unsigned)options_integer(options, "idle-timeout"),
        .patience_s = PATIENCE_S,
        .slots = !options_flag(options, "no-slots"),
    };
    const char *file = options_text(options, "chat-template-file");
    int code = read_keys(out, options, why);
    return code || !file ? code : chat_prompt_read_template(&out->template, file, why);
}

void gateway_settings_finish(struct gateway_settings *settings)
{
    api_keys_finish(&settings->keys);
    free(settings->template.data);
}
