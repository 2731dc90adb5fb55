/*
 * tests/fuzz/session_seed.h - what byte 0 of an input of fuzz_session, fuzz_trace, fuzz_recording
 * and fuzz_token_log says; shared by the harnesses and the seed maker.
 */
#pragma once

#define FUZZ_SESSION_HEADER 1u /* its checksum is made right */
#define FUZZ_SESSION_TOKENS 2u
#define FUZZ_SESSION_LAYERS 4u
#define FUZZ_SESSION_LENGTH 8u /* the header's length is the file's */

#define FUZZ_SEAL_HEADER 1u
#define FUZZ_SEAL_PARTS  2u /* records of a trace or of a token log; frames of a recording */

#define FUZZ_LOG_RUN_ID 77u
