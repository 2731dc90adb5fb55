#!/usr/bin/env bash
# fail_sweep.sh - tests/faults/test_fail_nth.sh over every N from FROM (default 1) to TO (default 200): needs make FAULTS=1.
#
# usage: tests/long/fail_sweep.sh        environment: FROM, TO, PROCESSES, KINDS as there. A round takes one to three seconds.
exec env FROM="${FROM:-1}" TO="${TO:-200}" "$(dirname "$0")/../faults/test_fail_nth.sh"
