/* hillctl/short_command.c - see short_command.h. */
#include "hillctl/short_command.h"

#include <stdio.h>

#include "proto/options_http.h"

int short_command_begin(struct short_command *c, int argc, char **argv)
{
    c->client.signal_fd = -1;
    c->tables[0] = (struct option_table)HILL_COMMON_TABLE;
    c->tables[1] = (struct option_table){
        .specs = hill_pipeline_specs, .count = hill_pipeline_count, .foreign = true};
    c->tables[2] = (struct option_table){
        .specs = hill_request_specs, .count = hill_request_count, .foreign = true};
    c->tables[3] = (struct option_table)HILL_FOREIGN_HTTP_TABLE;
    c->tables[4] = c->own;
    c->program.tables = c->tables;
    c->program.n_tables = c->own.count ? 5 : 4;
    int started = options_start(&c->options, &c->program, argc, argv);
    if (started != 0)
        return 1 + (started == 1 ? 0 : hill_exit_code(started));
    char run_dir[HILL_PATH_BYTES];
    struct hill_why why;
    int code = 0;
    if (c->needs && options_positional_count(c->options) < c->program.positional_max)
        code = hill_fail(&why, HILL_E_INVALID, "%s", c->needs);
    if (code == 0)
        code = hill_run_dir(run_dir, c->options, &why);
    if (code == 0)
        code = client_open(&c->client, run_dir, &why);
    if (code != 0) {
        fprintf(stderr, "hillctl: %s\n", why.text);
        options_free(c->options);
        return 1 + hill_exit_code(code);
    }
    return 0;
}

int short_command_end(struct short_command *c, int code, const struct hill_why *why)
{
    if (code != 0)
        fprintf(stderr, "hillctl: %s\n", why->text);
    client_close(&c->client);
    options_free(c->options);
    return hill_exit_code(code);
}

int short_command_change(struct short_command *c, const Hill__Message *message, int64_t patience_ms,
                         struct hill_why *why)
{
    Hill__Message *answer = NULL;
    int code =
        client_call(&c->client, message, HILL__MESSAGE__BODY_REPLY, patience_ms, &answer, why);
    if (code == 0 && answer->reply->text[0])
        printf("%s\n", answer->reply->text);
    proto_free(answer);
    return code;
}
