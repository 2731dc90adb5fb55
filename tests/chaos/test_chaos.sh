#!/usr/bin/env bash
# Ten rounds of chaos with the wired model, five with one request and five with eight: make chaos does more, with SmolLM2 too.
exec env ROUNDS=5 MODELS=wired SEQUENCES="1 8" SEED="${HILL_TEST_SEED:-$(date +%s)}" "$(dirname "$0")/run"
