/*
 * hill-gateway - HTTP for a running pipeline, in OpenAI's and llama-server's forms.
 *
 * SYNOPSIS
 *     hill-gateway [--host ADDRESS] [--port N] [--run-dir DIR] [OPTIONS]
 * DESCRIPTION
 *     A client of the coordinator like hillctl: owns nothing of the pipeline, and when it dies only
 *     its connections are lost. May be started before the pipeline: until that is there requests
 *     get 503. Ends with the pipeline, when that ends in order. Usually started by
 *     `scripts/hillinfer serve`. What it serves: docs/http.md.
 * DIAGNOSTICS
 *     One line on stderr. Exit codes: 0 ended in order; 100 wrong use; 111 the environment failed:
 *     the port is taken.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/harden.h"
#include "base/log.h"
#include "base/process.h"
#include "gateway/gateway_loop.h"
#include "gateway/listening.h"
#include "proto/options_hill.h"
#include "proto/options_http.h"

#define DESCRIPTORS 4096

static const struct option_spec own_specs[] = {
    OPTION("ready-fd", INTEGER, "FD", "the address it listens on is written there, once it does",
           .min = 3, .max = 1023),
};

static void raise_descriptors(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) || files.rlim_cur >= DESCRIPTORS)
        return;
    files.rlim_cur = files.rlim_max < DESCRIPTORS ? files.rlim_max : DESCRIPTORS;
    setrlimit(RLIMIT_NOFILE, &files);
}

/* What is left: it connects to Unix sockets, takes connections, starts the helper of templates. */
static void confine(const struct gateway_settings *settings, const char *program)
{
    char text[HARDEN_TEXT_BYTES], folder[4096] = "", beside[4200] = "";
    bool local = gateway_is_unix(settings->host); /* its name is removed at the end */
    const char *slash = local ? strrchr(settings->host, '/') : NULL;
    if (slash) /* of one in / the name stays: all files could be removed */
        snprintf(folder, sizeof folder, "%.*s", (int)(slash - settings->host - 5),
                 settings->host + 5);
    else if (local)
        strcpy(folder, ".");
    ssize_t length = readlink("/proc/self/exe", beside, sizeof beside - 32);
    beside[length > 0 ? length : 0] = '\0';
    char *end = strrchr(beside, '/'), scripts[4300], share[4300];
    if (end)
        *end = '\0';
    snprintf(scripts, sizeof scripts, "%s/../../scripts", beside);
    snprintf(share, sizeof share, "%s/../share/hillinfer", beside); /* chat/chat_helper.c */
    const char *reads[] = {"/proc", "/sys",         "/etc", "/usr",  "/lib", "/lib64",
                           "/bin",  "/dev/urandom", beside, scripts, share,  NULL},
               *writes[] = {"/dev/null", NULL}, *removes[] = {folder[0] ? folder : NULL, NULL};
    const struct harden_needs needs = {
        .programs = true, .reads = reads, .writes = writes, .removes = removes, .accepts = true};
    harden_confine(&needs, text);
    log_debug("%s is confined by %s", program, text);
}

static void tell_address(const struct gateway_settings *settings, uint16_t port, int ready_fd)
{
    char address[256];
    if (gateway_is_unix(settings->host))
        snprintf(address, sizeof address, "%s", settings->host);
    else
        snprintf(address, sizeof address,
                 strchr(settings->host, ':') ? "http://[%s]:%u" : "http://%s:%u", settings->host,
                 port);
    log_info("listening on %s%s", address, settings->keys.n ? "" : " (no key is needed)");
    if (ready_fd < 0)
        return;
    if (dprintf(ready_fd, "%s\n", address) < 0)
        log_warn("nobody reads the address that was asked for by --ready-fd");
    close(ready_fd);
}

static int serve(const struct options *options, struct hill_why *why)
{
    struct gateway_settings settings = {0};
    char run_dir[HILL_PATH_BYTES];
    uint16_t port = 0;
    /* a file of keys may be a fifo, whose writer is waited for: a signal still ends that */
    int code = gateway_settings_read(&settings, options, why);
    int listen_fd, signal_fd = process_signals(true), /* before ZeroMQ starts its threads */
        ready_fd =
            options_is_set(options, "ready-fd") ? (int)options_integer(options, "ready-fd") : -1;
    if (!code && signal_fd < 0)
        code =
            hill_fail(why, hill_from_errno(errno), "cannot open a signalfd: %s", strerror(errno));
    if (ready_fd >= 0)
        fcntl(ready_fd, F_SETFD, FD_CLOEXEC);
    if (!code)
        code = hill_run_dir(run_dir, options, why);
    if (!code)
        code = gateway_listen(&listen_fd, &port, &settings, why);
    if (!code) {
        raise_descriptors();
        confine(&settings, "hill-gateway");
        tell_address(&settings, port, ready_fd);
        code = gateway_serve(&settings, run_dir, listen_fd, signal_fd, why);
        gateway_unlisten(&settings);
    }
    gateway_settings_finish(&settings);
    if (signal_fd >= 0)
        close(signal_fd);
    return code;
}

int main(int argc, char **argv)
{
    const struct option_table tables[] = {
        {.title = "HTTP", .specs = hill_http_specs, .count = hill_http_count},
        HILL_COMMON_TABLE,
        {.title = "supervision", .specs = own_specs, .count = 1},
        {.specs = hill_request_specs, .count = hill_request_count, .foreign = true},
        {.specs = hill_pipeline_specs, .count = hill_pipeline_count, .foreign = true},
    };
    const struct option_program program = {
        .name = "hill-gateway",
        .usage = "[OPTIONS]",
        .summary = "HTTP for a running pipeline: /v1/chat/completions and what clients of OpenAI "
                   "and llama-server use.\nUsually started by `hillinfer serve`.",
        .example = "hill-gateway --port 8080 --api-key-file keys",
        .exit_codes = "  0    ended in order\n"
                      "  100  wrong use or configuration\n"
                      "  111  the environment failed (address, port, permission): worth a retry\n",
        .tables = tables,
        .n_tables = sizeof tables / sizeof tables[0],
    };
    struct options *options;
    struct hill_why why = {{0}};
    int code = options_start(&options, &program, argc, argv);
    if (code)
        return code > 0 ? 0 : hill_exit_code(code);
    hill_log_init("hill-gateway", hill_log_option(options));
    umask(077);
    signal(SIGPIPE, SIG_IGN);
    code = serve(options, &why);
    if (code)
        log_error("%s", why.text);
    options_free(options);
    return hill_exit_code(code);
}
