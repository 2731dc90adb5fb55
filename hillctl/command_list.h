/*
 * hillctl/command_list.h - one function a command; each returns the process's exit code
 * (docs/interface.md, "Exit codes") and has said what failed, in one line on stderr.
 */
#pragma once

/* argv[0] is the command's own name. */
int command_generate(int argc, char **argv);
int command_chat(int argc, char **argv);
int command_save(int argc, char **argv);
int command_restore(int argc, char **argv);
int command_status(int argc, char **argv);
int command_top(int argc, char **argv);
int command_doctor(int argc, char **argv);
int command_attach(int argc, char **argv);
int command_detach(int argc, char **argv);
int command_csd_model(int argc, char **argv);
int command_keygen(int argc, char **argv);
int command_trace(int argc, char **argv);
int command_profile(int argc, char **argv);
int command_stop(int argc, char **argv);
