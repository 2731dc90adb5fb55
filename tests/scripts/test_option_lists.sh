#!/usr/bin/env bash
# scripts/hillinfer sorts options: run's and chat's into those of the request and of the pipeline, serve's into those of HTTP and of
# the pipeline. Each option that --help of the programs tells of reaches its program, however it is spelled. The programs that are
# asked for --help are those that are built already (HILL_BIN_DIR); those that are run are fakes that note their arguments.
set -u
cd "$(dirname "$0")/../.." || exit 1
bin=$(realpath "${HILL_BIN_DIR:-build/bin}")
work=$(mktemp -d /tmp/hill-test-XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0 n=0
cat >"$work/hillctl" <<'FAKE'
#!/bin/sh
case "$1 $* " in
"status "*) echo '{"model": "m"}' && exit ;;
"chat "*" --check ") exit ;; # a pipeline runs: it is asked next
esac
echo " $* " >"$NOTED"
exit 5
FAKE
# shellcheck disable=SC2016  # the fake's own
printf '#!/bin/sh\necho " $* " >"$NOTED"\nexit 5\n' >"$work/hill-gateway"
cp "$work/hill-gateway" "$work/hill-coordinator"
chmod +x "$work"/hill*
# options_of EXCEPT PROGRAM...: a line for each spelling, and "value" where it takes one
options_of() {
    local except=$1
    shift
    "$@" --help | sed -nE 's/^  (-[a-z]+), --/  \1\n  --/; s/^(  .*\n)?  (--[a-z-]+)( (.+))?$/\1  \2 \4/; /^  +-/p' |
        awk -v except=" $except " '
            /^  -[a-z]+$/ { letter = $1; next }
            { if (!index(except, " " $1 " ")) { value = NF > 1 ? "value" : ""; print $1, value; if (letter) print letter, value } letter = "" }'
}
reaches() { # COMMAND OPTION [VALUE]
    n=$((n + 1))
    : >"$work/noted"
    NOTED=$work/noted HILL_BIN_DIR=$work timeout 20 scripts/hillinfer "$@" >"$work/said" 2>&1 </dev/null
    grep -qF -e " ${*:2} " "$work/noted" || {
        echo "FAILED: hillinfer $*: the program has '$(cat "$work/noted")': $(head -n 1 "$work/said")"
        failed=1
    }
}
each() { # COMMAND EXCEPT PROGRAM...
    local option value
    while read -r option value; do
        if [ -z "$value" ]; then
            reaches "$1" "$option"
        else
            reaches "$1" "$option" 7
            [ "${option#--}" = "$option" ] || reaches "$1" "$option=7"
        fi
    done < <(options_of "${@:2}")
}
# general ones; run has --session-save for --save, and no finished request for --after; its selection is its pipeline's
general="--help --version --check --check-model"
each run "$general --save --after --policy --alpha --budget --importance --exact-below --granularity --sinks --window" "$bin/hillctl" generate
each chat "$general" "$bin/hillctl" chat
each serve "$general --ready-fd --run-dir" "$bin/hill-gateway"
[ "$n" -ge 80 ] || {
    echo "FAILED: only $n spellings were found"
    failed=1
}
[ $failed = 1 ] || echo "ok: $n spellings of options reach their program"
exit $failed
