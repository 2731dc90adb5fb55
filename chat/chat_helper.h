/*
 * chat/chat_helper.h - chat templates that model/ does not know, rendered by Jinja itself.
 *
 * What: runs scripts/chat-template-helper.py on Debian's python3-jinja2 as a process of its own: a
 * template is a program that came with a file from somewhere. The process has one JSON object on
 * stdin, one on stdout and nothing else: limits of CPU time, memory and file size, namespaces
 * without a network where the kernel gives them to a user, no environment, and, once it has read
 * its input, a system call filter that leaves reading, writing to open files and memory.
 * The one part of HillInfer that runs Python at a user's; nothing else needs it.
 * Who calls it: chat_prompt.c. Failure: HILL_E_UNSUPPORTED and one line: Python or its Jinja is
 * not there, the template failed, took too long or too much memory, or a person's words did not
 * come through it untouched; HILL_E_CANCELLED. Concurrency: any number of threads, a process each;
 * SIGINT does not reach the helper.
 */
#pragma once

#include <stdbool.h>

#include "model/chat_template.h"

#define CHAT_HELPER_CPU_S    5   /* seconds of CPU time */
#define CHAT_HELPER_WALL_S   20  /* seconds until it is killed */
#define CHAT_HELPER_MEM_MIB  512 /* of address space */
#define CHAT_HELPER_TEXT_MAX (64u << 20)

/* no_think: the template's variable enable_thinking is false; else it is not set. stop_fd: as soon
 * as something can be read there, the helper is killed; -1: none. */
int chat_helper_render(struct chat_prompt *out, const char *text, uint64_t bytes,
                       const struct chat_vocabulary *vocabulary, bool no_think,
                       const struct chat_message *messages, unsigned count, int stop_fd,
                       struct hill_why *why);
