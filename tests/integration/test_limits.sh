#!/usr/bin/env bash
# A file size limit, as a disk that is full, is an error with its line and exit code 111, not the end of a process by a signal:
# for the segments, for the cold pool, for a recording (the request goes on without one). So is a control group's memory
# limit: what cannot fit is refused, what is not asked for follows from it, and nobody is killed. Where the kernel kills a
# worker after all, in mid-request, because others fill the group, the request goes on.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

small_model "$work/random.gguf" --layers 5 -s 7
head -c 3000 LICENSE >"$work/prompt"
options=(-m "$work/random.gguf" -c 8192 --alpha 0.1 --beta 0.25)

# limited KIB OUTPUT ARGUMENTS...: hillinfer under a limit
limited() {
    local kib=$1 out=$2
    shift 2
    (
        ulimit -f "$kib"
        exec "$hillinfer" "$@" --run-dir "$run_dir" --state-dir "$state_dir" >"$out" 2>"$out.err"
    )
}
refused() { # WHAT CODE FILE TEXT
    expect "$1: exit code" "$2" 111
    expect "$1: lines" "$(grep -c . "$3")" 1
    grep -q -- "$4" "$3" || fail "$1: '$4' is not in $(cat "$3")"
}

limited 1000 "$work/out" run "${options[@]}" -f "$work/prompt" -n 5 --json
refused "segments beyond the limit" $? "$work/out.err" 'segment'
limited 20000 "$work/out" run "${options[@]}" --hot-mb 12 --cold-mb 64 -f "$work/prompt" -n 5 --json
refused "a cold pool beyond the limit" $? "$work/out.err" 'cold.pool'
few() { # -S (may be raised again) or -SH, ARGUMENTS...: hillinfer with 40 descriptors
    (
        ulimit "$1" -n 40
        exec "$hillinfer" run "${@:2}" --run-dir "$run_dir" --state-dir "$state_dir" >"$work/out" 2>"$work/out.err"
    )
}
few -SH "${options[@]}" -f "$work/prompt" -n 5 --json
refused "no descriptors" $? "$work/out.err" 'at most 40 files may be open'
few -S "${options[@]}" -c 4096 --csd none -f "$work/prompt" -n 1 --json
expect "few descriptors that may be more: exit code" $? 0
run=("${options[@]}" -c 4096 --csd none --hot-mb 8 -f "$work/prompt" -n 900 --temp 0 --ignore-eos --json)
run_json "$work/whole" "${run[@]}" || fail "run: $(cat "$work/whole.err")"
limited 9000 "$work/out" record "$work/rec" "${run[@]}"
expect "a recording beyond the limit: exit code" $? 0
expect "a recording beyond the limit: hashes" "$(field "$work/out" '"\(.selection_hash) \(.logits_hash)"')" "$(field "$work/whole" '"\(.selection_hash) \(.logits_hash)"')"
expect "a recording beyond the limit: restarts" "$(field "$work/out" .restarts.cpu_scorer)" 0
expect "a recording beyond the limit: it ends there" "$(stat -c %s "$work/rec")" $((9000 * 1024))
grep -q 'recording the rings failed' "$work/out.err" "$state_dir/hillinfer.log" 2>/dev/null || fail "nobody says that the recording is of no use: $(cat "$work/out.err")"
expect_nothing_left

# --- an answer of no named length takes the room that there is; a length that does not fit is refused
room=(-m "$work/random.gguf" -c 4096 --alpha 0.1 --csd none --hot-mb 1.5 -p "hello there" --temp 0 --ignore-eos)
run_json "$work/out" "${room[@]}" -n -1 || fail "as many tokens as fit: $(cat "$work/out.err")"
expect "as many tokens as fit: its end, and whole blocks of 64 tokens, fewer than the context" \
    "$(field "$work/out" '"\(.finish_reason) \((.prompt_tokens + .predicted_tokens) % 64) \(.prompt_tokens + .predicted_tokens < 4096)"')" "length 0 true"
run_json "$work/out" "${room[@]}" -n 4000
expect "more tokens than fit: exit code" $? 1
grep -q 'tokens do not fit' "$work/out.err" || fail "more tokens than fit: $(cat "$work/out.err")"
expect_nothing_left

# --- a control group with a limit, of version 1 or 2
group="" limit=memory.limit_in_bytes
for folder in /sys/fs/cgroup /sys/fs/cgroup/memory; do
    [ -n "$group" ] || ! mkdir "$folder/hill-test-$$" 2>/dev/null || group=$folder/hill-test-$$
    [ -z "$group" ] || [ -e "$group/memory.max" ] || [ -e "$group/$limit" ] || { rmdir "$group" && group=""; }
done
version=1
[ ! -e "$group/memory.max" ] || { version=2 && limit=memory.max; }
if [ -z "$group" ] || ! echo 300M >"$group/$limit" 2>/dev/null; then
    [ -z "$group" ] || rmdir "$group"
    echo "skipped: a control group's memory limit: none can be made here (root, and a memory controller)"
    finish
fi
trap 'cleanup; rmdir "$group" 2>/dev/null' EXIT
echo "control groups of version $version: $group"
in_group() { # ARGUMENTS...: hillinfer run
    (
        echo 0 >"$group/cgroup.procs"
        exec "$hillinfer" run "$@" --run-dir "$run_dir" --state-dir "$state_dir" >"$work/out" 2>"$work/out.err"
    )
}
in_group "${options[@]}" --hot-mb 400 -f "$work/prompt" -n 5 --json
refused "beyond a group's limit" $? "$work/out.err" 'memory limit of .*hill-test'
in_group "${run[@]}"
expect "within a group's limit: exit code" $? 0
expect "within a group's limit: hashes" "$(hashes "$work/out")" "$(hashes "$work/whole")"
expect "within a group's limit: nobody was killed" "$(field "$work/out" '.restarts | add // 0')" 0
expect_nothing_left

# --- others fill the group while a request decodes: the kernel kills a worker for want of memory
echo 0 2>/dev/null >"$group/memory.swappiness"
echo 0 2>/dev/null >"$group/memory.swap.max"
oom_kills() { cat "$group/memory.events" "$group/memory.oom_control" 2>/dev/null | awk '$1 == "oom_kill" {print $2}'; }
ask() { # OUTPUT
    "$bin/hillctl" generate --run-dir "$run_dir" -p "one fish two fish" -n 1200 --temp 0 --ignore-eos --json >"$1" 2>"$1.err"
}
decoding() { status_is '.requests | any(.predicted_tokens > 20)'; }
slow() { hillctl csd-model "$1" >/dev/null || fail "csd-model $1"; }
# fill_until_killed PID: the group, until this process is gone, which is to be killed before all others; who fills it may be next
fill_until_killed() {
    (
        echo 0 >"$group/cgroup.procs"
        block=$(head -c 1000000 /dev/zero | tr '\0' x) filled=()
        while [ ${#filled[@]} -lt 400 ] && kill -0 "$1"; do filled+=("$block"); done
    ) 2>/dev/null &
    wait $! 2>/dev/null
}
(
    echo 0 >"$group/cgroup.procs"
    up "${options[@]}" -c 4096 --hot-mb 8 --cold-mb 32
) || fail "up in the group: $(cat "$work/up.err")"
ask "$work/whole" || fail "undisturbed: $(cat "$work/whole.err")"
for worker in gpu_worker cpu_scorer; do
    before=$(oom_kills)
    victim=$(worker_pid $worker)
    echo 1000 2>/dev/null >"/proc/$victim/oom_score_adj" || {
        echo "skipped: a worker killed for want of memory: who is killed first cannot be said here"
        break
    }
    slow latency_us=5000 # the request takes a minute, unless the kill comes first
    ask "$work/out" &
    asked=$!
    wait_for 30 decoding || fail "no token"
    fill_until_killed "$victim"
    slow off
    wait $asked || fail "$worker killed: $(cat "$work/out.err")"
    expect "$worker killed for want of memory: by the kernel" "$(($(oom_kills) > before))" 1
    expect "$worker killed for want of memory: the undisturbed answer" "$(hashes "$work/out")" "$(hashes "$work/whole")"
    expect "$worker killed for want of memory: it went on" "$(field "$work/out" ".recovery.recoveries, .restarts.$worker" | xargs)" "1 1"
done
down || fail "down"
expect_nothing_left
wait_for 30 rmdir "$group" || fail "processes stay in the group"
finish
