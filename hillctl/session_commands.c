/*
 * hillctl/session_commands.c - `hillctl save`: a running request's session into a file. Waits until
 * the file is there; the request goes on. (`hillctl restore` is in generate.c: it streams an
 * answer.)
 */
#include "hillctl/command_list.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "hillctl/session_path.h"
#include "hillctl/short_command.h"

#define PING_MS 2000

int session_path(char out[HILL_PATH_BYTES], const char *given, struct hill_why *why)
{
    char folder[HILL_PATH_BYTES] = "";
    if (given[0] != '/' && !getcwd(folder, sizeof folder))
        return hill_fail(why, hill_from_errno(errno), "cannot tell where %.200s is: %s", given,
                         strerror(errno));
    int used = given[0] == '/' ? snprintf(out, HILL_PATH_BYTES, "%s", given)
                               : snprintf(out, HILL_PATH_BYTES, "%s/%s", folder, given);
    if (!given[0] || used < 0 || used >= (int)HILL_PATH_BYTES)
        return hill_fail(why, HILL_E_INVALID, "'%.200s' is no path for a session", given);
    return 0;
}

int session_path_to_write(char out[HILL_PATH_BYTES], const char *given, struct hill_why *why)
{
    char folder[HILL_PATH_BYTES], real[PATH_MAX];
    struct stat there;
    int code = session_path(out, given, why);
    if (code)
        return code;
    if (lstat(out, &there) == 0 && S_ISLNK(there.st_mode) && realpath(out, real))
        snprintf(out, HILL_PATH_BYTES, "%s", real); /* the link stays: /dev/stdout is one */
    bool exists = lstat(out, &there) == 0, is_folder = exists && S_ISDIR(there.st_mode);
    if (exists && !is_folder && !S_ISREG(there.st_mode))
        return hill_fail(why, HILL_E_INVALID,
                         "no session can be saved in %.300s: it is not a regular file", out);
    snprintf(folder, sizeof folder, "%s", out);
    strrchr(folder, '/')[1] = '\0'; /* absolute: there is one */
    if (!is_folder && access(folder, W_OK | X_OK) == 0)
        return 0;
    int err = is_folder ? EISDIR : errno;
    return hill_fail(why, hill_from_errno(err), "no session can be saved in %.300s: %s", out,
                     strerror(err));
}

/* A prompt may have to be computed first: as long as the coordinator lives. losses: of the
 * connection before the order was sent; another coordinator knows nothing of the order. */
static int await_reply(struct client *client, uint32_t losses, struct hill_why *why)
{
    int64_t heard_ns = clock_now_ns();
    for (;;) {
        Hill__Message *message = NULL;
        int code = client_receive(client, clock_deadline_ms(PING_MS), &message, why);
        if (code == 0) {
            heard_ns = clock_now_ns();
            bool reply = message->body_case == HILL__MESSAGE__BODY_REPLY;
            if (reply && message->reply->code)
                code = hill_fail(why, message->reply->code, "%s", message->reply->text);
            else if (reply)
                printf("%s\n", message->reply->text);
            proto_free(message);
            if (reply)
                return code;
        } else if (code == HILL_E_CANCELLED) {
            return hill_fail(why, code, "cancelled; the session is still being saved");
        } else if (code != HILL_E_TIMEOUT) {
            return code;
        } else if (client->losses != losses) {
            return hill_fail(why, HILL_E_PEER_GONE,
                             "the coordinator in %s was lost before the session was saved; "
                             "ask again",
                             client->run_dir);
        } else if (clock_now_ns() - heard_ns > CLOCK_MS(CLIENT_ANSWER_MS)) {
            return hill_fail(why, HILL_E_PEER_GONE, "the pipeline in %s stopped answering",
                             client->run_dir);
        } else if ((code = client_ping(client, why))) {
            return code;
        }
    }
}

int command_save(int argc, char **argv)
{
    struct short_command c = {
        .program = {.name = "hillctl save",
                    .usage = "REQUEST FILE [--run-dir DIR]",
                    .summary = "Save a running request's session; the request goes on. REQUEST is "
                               "its number in hillctl status; 0: the only one that runs.",
                    .example = "hillctl save 3 /var/tmp/report.session",
                    .positional_max = 2},
        .needs = "save needs REQUEST and FILE; try hillctl save --help"};
    int left = short_command_begin(&c, argc, argv);
    if (left != 0)
        return left - 1;
    char path[HILL_PATH_BYTES];
    struct hill_why why = {""};
    int64_t id = 0;
    Hill__SaveSession save = HILL__SAVE_SESSION__INIT;
    int code = 0;
    if (options_read_integer(options_positional(c.options, 0), &id) || id < 0)
        code = hill_fail(&why, HILL_E_INVALID, "'%.100s' is no request's number",
                         options_positional(c.options, 0));
    if (!code)
        code = session_path_to_write(path, options_positional(c.options, 1), &why);
    save.request_id = (uint64_t)id;
    save.path = path;
    client_look(&c.client);
    uint32_t losses = c.client.losses;
    if (!code)
        code = client_send(&c.client, &PROTO_MESSAGE(SAVE_SESSION, save_session, &save), &why);
    if (!code)
        code = await_reply(&c.client, losses, &why);
    return short_command_end(&c, code, &why);
}
