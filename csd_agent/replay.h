/*
 * csd_agent/replay.h - the agent alone, driven by a recording of its rings (proto/recording.h).
 *
 * What: `hill-csd-agent --replay FILE URL` opens an empty cold pool at URL ("file:PATH") with the
 * recording's geometry and cap, gives the recorded commands one after the other at full speed, and
 * checks the answers: Score Blocks byte for byte and in order; completions by their tag, without
 * the time and the flash bytes they took; keys of committed slots that came into windows. (Commands
 * of the two input rings overtook each other then as time would have it; here they come in the
 * order in which the scorer sent them.) Staging slots have the generation that each FETCH names,
 * and what it puts there is part of the printed hash. No device model. Who calls it: agent's
 * main.c. Failure: a damaged recording or a pool that cannot be opened is refused; an answer that
 * differs is HILL_E_DAMAGED with the event's number, exit code 1.
 */
#ifndef HILL_CSD_AGENT_REPLAY_H
#define HILL_CSD_AGENT_REPLAY_H

/* argv[1] is "--replay". Returns the process's exit code. */
int replay_main(int argc, char **argv);

#endif
