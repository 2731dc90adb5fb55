#!/usr/bin/env bash
# tests/run in a made-up tree, whose tests are shell scripts: from another folder; which programs a test starts; a configuration
# that is not built; --quick; the quarters of the scripts; a signal ends all that it started. And
# integration/lib.sh: a process that is left is found.
# shellcheck disable=SC2016  # the tests' own variables
set -u
cd "$(dirname "$0")/../.." || exit 1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset MAKEFLAGS MAKELEVEL HILL_BIN HILL_TEST_TIMEOUT HILL_TEST_QUARTER tsan_all
failed=0
expect() { # DESCRIPTION ACTUAL WANTED
    [ "$2" = "$3" ] || { echo "FAILED: $1: got '$2', wanted '$3'" && failed=1; }
}
wait_for() { # COMMAND...
    local limit=$((EPOCHSECONDS + 30))
    until "$@"; do
        [ "$EPOCHSECONDS" -lt "$limit" ] || { echo "FAILED: not within 30 s: $*${round:+ ($round)}" && failed=1 && return; }
        sleep 0.05
    done
}
program() { # FILE LINE...
    mkdir -p "$(dirname "$1")"
    printf '%s\n' '#!/bin/sh' "${@:2}" >"$1"
    chmod +x "$1"
}

# a process with the script's pid in its command line, as in its own pid or a port
expect "processes left" "$(bash -c '. tests/integration/lib.sh
    (exec -a "$run_dir of $$" sleep 30) & wait_for 10 eval "! none_left" && kill $!; echo $?' )" 0

mkdir "$folder/tests"
cp tests/run "$folder/tests"
cd "$folder" || exit 1
cat >Makefile <<'MAKE'
programs:
build/$(CONFIG)/tests/%: tests/%.c
	@[ ! -x build_first ] || ./build_first $(CONFIG)
	@mkdir -p $(@D) && cp $< $@
build/%:
	@mkdir -p $(@D) && : >$@
MAKE
# what a test of this tree says: the programs it starts, and whether it would end by SIGINT (the second lowest bit)
program tests/kv/test_x.c 'echo "bin: $HILL_BIN"' 'sed -n "s/^SigIgn:.*\(.\)$/ignored: \1/p" /proc/self/status'
log_of() { cat "build/test-logs/kv_test_x_[$1].log"; }

said=$(cd tests && ./run kv)
expect "in tests/: exit code" $? 0
expect "in tests/" "$(tail -n 1 <<<"$said")" "2 passed, 0 failed, 0 skipped"
expect "the plain test starts" "$(log_of release)" $'bin: \nignored: 0'
expect "the sanitized test starts" "$(log_of asan+ubsan)" "bin: $folder/build/asan+ubsan/bin"$'\nignored: 0'

# cmocka's words, with its exit code
program tests/kv/test_y.c 'echo "[  PASSED  ] 0 test(s)."' 'echo "[  SKIPPED ] 2 test(s), listed below:"'
program tests/kv/test_z.c 'echo "[  PASSED  ] 1 test(s)."' 'echo "[  SKIPPED ] 1 test(s), listed below:"'
said=$(tests/run kv)
expect "a program of skipped tests" "$(tail -n 1 <<<"$said")" "4 passed, 0 failed, 2 skipped"
expect "it says why" "$(grep -c 'skip  kv/test_y \[release\]: all of its tests were skipped' <<<"$said")" 1
rm tests/kv/test_[yz].c

# what is there is older than what cannot be built
other=csd_agent/test_other
program tests/$other.c "echo run >>$folder/runs"
program build/asan+ubsan/tests/$other "echo run >>$folder/runs"
program build_first '[ "$1" = release ]'
touch tests/$other.c tests/kv/test_x.c
said=$(tests/run kv csd_agent)
expect "not built: exit code" $? 1
expect "not built" "$(tail -n 1 <<<"$said")" "2 passed, 2 failed, 0 skipped"
expect "not built: what is there does not run" "$(wc -l <runs)" 1
rm -r build_first tests/csd_agent

for script in integration/test_ref_model integration/test_limits integration/test_other chaos/test_chaos chaos/test_sum; do
    program "tests/$script.sh" 'exit 0'
done
expect "--quick" "$(tests/run --quick | sed -n 's/^  ok *\([^ ]*\).*/\1/p' | sort | paste -sd' ')" \
    "chaos/test_sum integration/test_limits integration/test_ref_model kv/test_x"
# of the scripts that can have sanitized processes each quarter in turn, test_limits never
program tests/integration/test_other.sh 'echo "${HILL_BIN_DIR##*build/}"'
ran() { sed -n 's/^  ok *integration\/test_\([a-z_]*\( \[[^]]*\]\)*\) .*/\1/p' <<<"$1" | sort | paste -sd,; }
said=$(HILL_TEST_QUARTER=1 tests/run)
expect "the second quarter" "$(ran "$said")" "limits,other,ref_model [asan+ubsan]"
expect "its programs" "$(cat build/test-logs/integration_test_other.log)" ""
said=$(HILL_TEST_QUARTER=0 tests/run)
expect "the first quarter" "$(ran "$said")" "limits,other [asan+ubsan],ref_model"
expect "its programs" "$(cat 'build/test-logs/integration_test_other_[asan+ubsan].log')" asan+ubsan/bin
rm -r tests/integration tests/chaos

all_gone() { # what lasted, and the lanes of this tree
    local pid
    for pid in $(cat started) $(pgrep -f 'tests/run --lane'); do
        [ "$(readlink "/proc/$pid/cwd")" != "$folder" ] || return 1
    done
}
# a unit test, a script; a build that lasts: that of what is plain, or of what is sanitized
for round in INT=130:unit TERM=143:unit TERM=143:script {INT=130,TERM=143}:plain TERM=143:build; do
    rm -rf build build_first started tests/[a-z]*/
    program tests/kv/test_x.c 'exit 0'
    last="echo \$\$ >$folder/started; exec sleep 300"
    case $round in
    *unit) program tests/kv/test_y.c "$last" ;;
    *script) program tests/kv/test_y.sh "$last" ;;
    *plain) program build_first "$last" ;;
    *build) program build_first '[ "$1" = release ] && exit' "$last" ;;
    esac
    env --default-signal=INT tests/run >said 2>&1 &
    runner=$!
    wait_for test -s started
    kill -s "${round%=*}" $runner
    wait $runner
    expect "$round: exit code" $? "$(tr -cd '0-9' <<<"$round")"
    wait_for all_gone
done
exit $failed
