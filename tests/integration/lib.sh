# tests/integration/lib.sh - what the integration tests share; sourced, not run.
#
# Each test gets a folder of its own ($work) with run and state folders, and on exit everything of it is stopped and
# checked for leaks: no process, no segment, no file. `skip REASON` ends with 77.
# shellcheck shell=bash
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
bin=${HILL_BIN_DIR:-$PWD/build/bin}
hillinfer=$PWD/scripts/hillinfer
models=${HILL_MODELS:-$PWD/../shared/models}
text=/usr/share/common-licenses/GPL-3 # some English
[ -r "$text" ] || text=$PWD/LICENSE
work=$(mktemp -d /tmp/hill-test-XXXXXX)
run_dir=$work/run
state_dir=$work/state
export HILL_EXACT_BELOW=0 # short contexts are selected from, too: test_exact.sh has the default
export HILL_PLACEMENT=${HILL_PLACEMENT:-bkp} # entries also come up: a test of another placement names it
export HILL_HANG_MS=${HILL_HANG_MS:-6000} # a worker from which others have taken the CPU for long does not hang
export HILL_NO_PREFIX_CACHE=true # a prompt that comes again is computed again: test_prefix.sh has the default
export HILL_LOG_LEVEL=${HILL_LOG_LEVEL:-warn}
export POCL_CACHE_DIR=${POCL_CACHE_DIR:-$PWD/build/pocl-cache} # built kernels, apart from the user's
mkdir -p "$POCL_CACHE_DIR"
# tests/run --sanitized: reports go to files of their own, since a pipeline's logs may be gone with its folder. UBSan's text goes to
# stderr where ASan is linked, too: it aborts, and ASan reports from where.
[ -z "${HILL_REPORTS:-}" ] || export ASAN_OPTIONS="${ASAN_OPTIONS:-}:handle_abort=1:log_path=$HILL_REPORTS" \
    UBSAN_OPTIONS="${UBSAN_OPTIONS:-}:abort_on_error=1:log_path=$HILL_REPORTS"
failures=0

# model_file FILE: a model's path, in $HILL_MODELS, the folder of `hillinfer get-models` or the reference models'; 1: nowhere.
model_file() {
    local folder
    for folder in "${HILL_MODELS:-}" "${XDG_CACHE_HOME:-$HOME/.cache}/hillinfer/models" "$models"; do
        [ -z "$folder" ] || [ ! -r "$folder/$1" ] || { echo "$folder/$1" && return 0; }
    done
    return 1
}

cleanup() {
    local pids
    # what UBSan has said in the logs that are there: its words, beside the reports
    [ -z "${HILL_REPORTS:-}" ] || grep -rahE 'runtime error: |(ERROR|WARNING): [A-Za-z]+Sanitizer' "$work" >"$HILL_REPORTS.logs"
    pids=$(pgrep -f -- "--run-dir $work/" || true) # also in run folders of its own, which a part of the test has
    # shellcheck disable=SC2086  # a list of numbers
    [ -z "$pids" ] || kill -KILL $pids 2>/dev/null
    for run_dir in "$work/run" "$work"/*/run; do
        # shellcheck disable=SC2046  # names without spaces
        (cd /dev/shm && rm -f -- $(segments)) # of a pipeline that was killed, as when the test ran out of time
    done
    rm -rf "$work" ${pools:+"$pools"}
    [ -z "${HILL_REPORTS:-}" ] || [ -z "$(cat "$HILL_REPORTS".*)" ] || cat "$HILL_REPORTS".* >"$HILL_REPORTS"
}
trap cleanup EXIT

# pools_in_memory: makes $pools, a folder in memory. For tests in which the speed of this machine's disk must not decide which entries
# are moved
pools_in_memory() {
    pools=$(mktemp -d /dev/shm/hill-test-pools-XXXXXX) || fail "no folder in /dev/shm"
}

skip() {
    echo "skipped: $*"
    exit 77
}

fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

pass() {
    echo "ok: $*"
}

finish() {
    [ "$failures" -eq 0 ] || {
        echo "$failures checks failed"
        exit 1
    }
    exit 0
}

# expect DESCRIPTION ACTUAL WANTED
expect() {
    if [ "$2" = "$3" ]; then pass "$1: $2"; else fail "$1: got '$2', wanted '$3'"; fi
}

# same DESCRIPTION ACTUAL WANTED: long ones
same() {
    if [ "$2" = "$3" ]; then pass "$1"; else fail "$1: got ${2:0:200}, wanted ${3:0:200}"; fi
}

# expect_one_line DESCRIPTION WANTED-CODE COMMAND...: it fails with this code, says why in one line on stderr, nothing on stdout
expect_one_line() {
    local description=$1 wanted=$2
    shift 2
    "$@" >"$work/out" 2>"$work/err" </dev/null
    expect "$description: exit code" $? "$wanted"
    expect "$description: lines" "$(wc -l <"$work/err") $(wc -c <"$work/out")" "1 0"
}

need_models() {
    [ -r "$models/stories260K.gguf" ] || skip "the reference models are not in $models (set HILL_MODELS)"
}

# small_model FILE [ARGUMENTS...]: random weights in the shape that scripts share, whose kernels are built once
small_model() {
    local file=$1
    shift
    "$bin/hill-mkmodel" --random --layers 3 --heads 6 --kv-heads 2 --width 96 --head-dim 32 --ffn 160 --vocab 512 --type f16 -s 11 "$@" -o "$file" 2>/dev/null ||
        fail "mkmodel"
}

# run_json OUTPUT ARGUMENTS...: hillinfer run --json, its own folders; errors go to OUTPUT.err
run_json() {
    local out=$1
    shift
    "$hillinfer" run --run-dir "$run_dir" --state-dir "$state_dir" --json "$@" >"$out" 2>"$out.err"
}

field() { # FILE JQ-FILTER
    jq -r "$2" "$1"
}

hashes() { # FILE
    field "$1" '"\(.selection_hash) \(.logits_hash)"'
}

# pass_key_prompt BEFORE AFTER: that many bytes of text before and after a pass key (7302941), then the question for it
pass_key_prompt() {
    head -c "$1" "$text"
    printf '\nThe pass key is 7302941. Remember it.\n'
    head -c $(($1 + $2)) "$text" | tail -c "$2"
    printf '\nThe pass key is'
}

processes_left() { pgrep -af -- "$run_dir" | awk -v own=$$ '$1 != own'; } # the run folder's name begins with hill-, too
none_left() { [ -z "$(processes_left)" ]; }

# Nothing of this test is left: processes (the supervisor ends a moment after the pipeline that it has seen to its end), segments,
# the run folder.
expect_nothing_left() {
    wait_for 10 none_left
    expect "processes left" "$(processes_left)" ""
    expect "run folder left" "$([ -e "$run_dir" ] && ls -A "$run_dir")" ""
    expect "segments left" "$(segments)" ""
}

# The segments of this run folder: their names begin with the hash of its path (shm/segment.h).
segments() {
    local own
    own=hill-$(printf %s "$(realpath -m "$run_dir")" | xxhsum -H64 | cut -d' ' -f1)-
    find /dev/shm -maxdepth 1 -name "$own*" -printf '%f ' 2>/dev/null | sed 's/ *$//'
}

wait_for() { # SECONDS COMMAND...
    local limit=$((EPOCHSECONDS + $1))
    shift
    until "$@"; do
        [ "$EPOCHSECONDS" -lt "$limit" ] || return 1
        sleep 0.1
    done
}

# Its program, or the shell that it is, sleeps: a client that has asked waits for the answer; one that is only being started,
# however long that takes on a loaded machine, runs. One that is gone has its answer already; what it was is the caller's to look at.
waits() { # PID
    local pid states
    kill -0 "$1" 2>/dev/null || return 0
    pid=$(pgrep -P "$1" | head -n 1)
    states=$(ps -L -o stat= -p "${pid:-$1}")
    [[ -n $states && $states != *[RDZ]* ]]
}

asked() { # PID: of a client in the background: it has asked, and what it asked for has arrived
    wait_for 30 waits "$1" || fail "a client does not come to its question"
    sleep 0.3 # of a request status shows the arrival, of a trace, a profile and a save nothing does
}

up() { # ARGUMENTS...
    "$hillinfer" up --detach --run-dir "$run_dir" --state-dir "$state_dir" "$@" 2>"$work/up.err" || {
        cat "$work/up.err"
        return 1
    }
}

down() {
    "$hillinfer" down --run-dir "$run_dir"
}

# requests_last MS: pipelines that come up from here on are slow: a decode step, or a unit of a prompt, takes MS milliseconds at
# least, so that a request is still there when the script does something beside it, however fast the machine is.
requests_last() {
    export HILL_TEST_TURN_MS=$1
}

hillctl() { # COMMAND ARGUMENTS...
    "$bin/hillctl" "$@" --run-dir "$run_dir"
}

status() {
    hillctl status --json
}

worker_pid() { # gpu_worker...
    status | jq -r ".workers.$1.pid"
}

# What the agent of the pipeline that is up scores on: host, or an OpenCL device.
scores_on() {
    status | jq -r '.workers.csd_agent.device | if . == "" then "nothing" elif contains("the host'"'"'s CPU") then "host" else "OpenCL" end'
}

# status_is JQ-CONDITION: a pipeline is there and says so. (Of no status at all jq -e says yes.)
status_is() {
    [ "$(status 2>/dev/null | jq "$1")" = true ]
}

# What is asked again and again while a test waits is read without jq, which takes longer to start than the answer to come: a line
# has a key, and its depth says of what.
ready() {
    [[ $(status 2>/dev/null) == *$'\n  "ready": true,\n'* ]]
}

decoding() { # REQUESTS [TOKENS]: so many requests have more than TOKENS (0) tokens each
    local line n=0
    while IFS= read -r line; do
        [[ $line =~ ^' '{6}'"predicted_tokens": '([0-9]+) ]] && [ "${BASH_REMATCH[1]}" -gt "${2:-0}" ] && n=$((n + 1))
    done < <(status 2>/dev/null)
    [ "$n" -ge "$1" ]
}

# A worker that is away has the pid 0: a signal to that is one to this test and all its processes.
signal_worker() { # STOP csd_agent...
    local pid
    pid=$(worker_pid "$2")
    if [ "${pid:-0}" -gt 0 ]; then kill -s "$1" "$pid"; else fail "there is no $2 for SIG$1"; fi
}

kill_worker() { # csd_agent...
    signal_worker KILL "$1"
}

coordinator_pid() {
    pgrep -f -- "hill-coordinator .*--run-dir $run_dir" | head -n 1
}

# slow_veth SPACE DEVICE DELAY_MS LOSS_PERCENT: a link into that network namespace, each way so slow; 1: the kernel has no veth or
# no netem
slow_veth() {
    local link_netem=(root netem delay "$3ms" loss "$4%")
    ip link add "$2" type veth peer name "$2" netns "$1" 2>/dev/null || return 1
    tc qdisc add dev "$2" "${link_netem[@]}" 2>/dev/null && ip netns exec "$1" tc qdisc add dev "$2" "${link_netem[@]}" 2>/dev/null && return 0
    ip link del "$2"
    return 1
}

# link_addresses SPACE DEVICE HERE THERE: the ends of a link have these, and are up
link_addresses() {
    ip addr add "$3/30" dev "$2" && ip link set "$2" up &&
        ip -n "$1" addr add "$4/30" dev "$2" && ip -n "$1" link set "$2" up && ip -n "$1" link set lo up
}
