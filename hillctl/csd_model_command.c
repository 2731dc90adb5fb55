/* hillctl/csd_model_command.c - `hillctl csd-model`: show the modelled drive, or change it. */
#include "hillctl/command_list.h"

#include <stdio.h>

#include "hillctl/report.h"
#include "hillctl/short_command.h"

static int show(struct short_command *c, struct hill_why *why)
{
    Hill__Message *answer;
    char text[CSD_MODEL_TEXT];
    int code = client_status(&c->client, CLIENT_ANSWER_MS, &answer, why);
    if (code != 0)
        return code;
    struct csd_model model = proto_csd_model(answer->status_reply->csd_model);
    printf("%s\n", csd_model_print(text, &model));
    proto_free(answer);
    return 0;
}

static int change(struct short_command *c, const char *text, struct hill_why *why)
{
    Hill__CsdModelChange body = HILL__CSD_MODEL_CHANGE__INIT;
    body.text = (char *)text;
    return short_command_change(c, &PROTO_MESSAGE(CSD_MODEL_CHANGE, csd_model_change, &body),
                                CLIENT_ANSWER_MS, why);
}

int command_csd_model(int argc, char **argv)
{
    struct short_command c = {
        .program = {.name = "hillctl csd-model",
                    .usage = "[KEY=VALUE,... | off] [--run-dir DIR]",
                    .summary =
                        "Show the modelled drive, or change it, also while a request runs: flash, "
                        "write, link,\ngpu_link, score, cpu and dram_read in GB/s (score, cpu: of "
                        "FP16 KV), dram (a size),\nlatency_us. What is not named stays.",
                    .example = "hillctl csd-model flash=1.0",
                    .notes = "A change holds for what starts afterwards; it changes times, never "
                             "results.\ngpu_link is the GPU's; cpu makes this host's scoring "
                             "that slow (0: as it is).\n",
                    .positional_max = 1}};
    int left = short_command_begin(&c, argc, argv);
    if (left != 0)
        return left - 1;
    struct hill_why why = {""};
    int code = options_positional_count(c.options)
                   ? change(&c, options_positional(c.options, 0), &why)
                   : show(&c, &why);
    return short_command_end(&c, code, &why);
}
