#!/usr/bin/env bash
# What a running pipeline shows to others, and what its processes have given up: modes of files, sockets, seccomp and Landlock;
# another user reads nothing of it (needs root to become one).
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

"$bin/hill-mkmodel" -o "$work/model.gguf" 2>/dev/null || fail "mkmodel"
chmod 755 "$work" # what is below has to stand for itself
umask 022
up -m "$work/model.gguf" -c 4096 --beta 0.5 --csd-device 0 --log-level debug || fail "up"
expect "the agent holds an OpenCL driver, too" "$(scores_on)" OpenCL
printf 'The pass key is 7302941. The pass key is' >"$work/prompt"
"$hillinfer" generate -f "$work/prompt" -n 8 --temp 0 --json --run-dir "$run_dir" >"$work/answer" 2>"$work/err" || fail "generate: $(cat "$work/err")"

pids=()
for worker in gpu_worker cpu_scorer csd_agent; do pids+=("$(worker_pid $worker)"); done
coordinator=$(coordinator_pid)

# --- modes
expect "run folder and state folder" "$(stat -c '%a %U' "$run_dir" "$state_dir" | sort -u)" "700 $(id -un)"
expect "what others may in them" "$(find "$run_dir" "$state_dir" -perm /077 -printf '%m %p\n')" ""
expect "segments" "$(find /dev/shm -maxdepth 1 -name "$(segments | cut -d- -f1,2)-*" -perm /077)" ""
[ -n "$(segments)" ] || fail "no segments: nothing was looked at"

# --- a run folder that others could have made
mkdir -m 755 "$work/theirs" && : >"$work/theirs/control.sock"
expect_one_line "a client and a run folder that is open to others" 100 "$bin/hillctl" status --run-dir "$work/theirs"
expect_one_line "a prompt for it" 100 "$bin/hillctl" generate -p private --run-dir "$work/theirs"

# --- what each process has given up
for pid in "${pids[@]}" "$coordinator"; do
    expect "no new privileges, process $pid" "$(awk '/^NoNewPrivs/ {print $2}' "/proc/$pid/status")" 1
    expect "core files, process $pid" "$(awk '/^Max core file size/ {print $5}' "/proc/$pid/limits")" "$([ "$(ulimit -Hc)" = 0 ] && echo 0 || echo 1)"
    expect "memory in a core, process $pid" "$(cat "/proc/$pid/coredump_filter")" 00000000
done
for pid in "${pids[@]}"; do
    expect "descriptors, no more of them, process $pid" \
        "$(awk '/^Max open files/ {print ($4 <= 4096) " " ($5 == $4)}' "/proc/$pid/limits")" "1 1"
done
# what the kernel has is asked without the product's own code
seccomp=no\ seccomp landlock=$(perl -e 'print syscall(444, 0, 0, 1)') # its version (landlock_create_ruleset); -1: none
if [ -r /proc/sys/kernel/seccomp/actions_avail ]; then
    seccomp=seccomp
    for pid in "${pids[@]}"; do expect "seccomp, process $pid" "$(awk '/^Seccomp:/ {print $2}' "/proc/$pid/status")" 2; done
else
    echo "left out: seccomp (this kernel has none)"
fi
[ "$landlock" -ge 4 ] || echo "left out: Landlock $([ "$landlock" -ge 1 ] && echo "of TCP ")(this kernel has none)"
confined() { # PROGRAM LEAST: the version of Landlock from which on it has rules
    expect "$1 is confined by" "$(sed -n "s/.*$1: debug: confined by: //p" "$state_dir/hillinfer.log")" \
        "$seccomp, $([ "$landlock" -ge "$2" ] || echo "no ")Landlock"
}
confined hill-cpu-scorer 1
confined hill-gpu-worker 4 # who opens any file has rules of TCP alone
confined hill-csd-agent 4
# the agent makes its ring before it gives up to make one
if "$bin/hillctl" doctor --json --state-dir "$state_dir" | jq -e '.checks | (.io_uring.level == "ok" and .o_direct.level == "ok")' >/dev/null; then
    expect "the agent's file" "$(status | jq -r .workers.csd_agent.device | grep -o 'io_uring, O_DIRECT')" "io_uring, O_DIRECT"
fi

# --- sockets: none of the internet, and who listens does so in the run folder
for pid in "${pids[@]}" "$coordinator"; do
    for fd in "/proc/$pid/fd"/*; do
        inode=$(readlink "$fd" | sed -n 's/^socket:\[\(.*\)\]$/\1/p')
        [ -n "$inode" ] || continue
        awk -v i="$inode" '$10 == i {exit 1}' /proc/net/tcp /proc/net/tcp6 /proc/net/udp /proc/net/udp6 2>/dev/null || fail "process $pid has an internet socket"
        awk -v i="$inode" -v d="$run_dir/" '$7 == i && $4 == "00010000" && index($8, d) != 1 {exit 1}' /proc/net/unix || fail "process $pid listens outside the run folder"
    done
done
pass "sockets of ${#pids[@]} workers and the coordinator"

# --- what is no message, from who can reach the sockets: the pipeline goes on
head -c 300000 /dev/urandom >"$work/garbage"
if command -v curl >/dev/null; then
    for socket in control worker heartbeat; do
        for data in "$work/garbage" "$work/model.gguf"; do
            curl -s -m 2 --unix-socket "$run_dir/$socket.sock" --data-binary "@$data" http://x/ >/dev/null 2>&1
            [ $? -ne 7 ] || fail "garbage: nobody listens on $socket.sock"
        done
    done
else
    echo "without garbage on the sockets: no curl"
fi
"$hillinfer" generate -f "$work/prompt" -n 8 --temp 0 --json --run-dir "$run_dir" >"$work/again" 2>"$work/err" || fail "after garbage: $(cat "$work/err")"
expect "after garbage: the same answer, nobody was started again" "$(jq -c '[.tokens, (.restarts | add // 0)]' "$work/again")" "$(jq -c '[.tokens, 0]' "$work/answer")"

# --- another user
if [ "$(id -u)" -ne 0 ] || ! setpriv --reuid=65534 --regid=65534 --clear-groups true 2>/dev/null; then
    down || fail "down"
    expect_nothing_left
    [ "$failures" -eq 0 ] || finish
    skip "without root there is no second user"
fi
nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
unreadable() { # WHAT FILE
    [ -e "$2" ] || fail "$1: $2 is not there"
    # a socket is never opened, and of mem the first byte is no page: that it is seen, or opened, is enough
    # shellcheck disable=SC2016  # what that shell expands
    if [ -S "$2" ]; then set -- "$1" "$2" '[ -e "$1" ]'; else set -- "$1" "$2" ': <"$1"'; fi
    if nobody sh -c "$3" sh "$2" 2>/dev/null; then fail "another user reads $1"; else pass "another user does not read $1"; fi
}
nobody ls "$work" >/dev/null || fail "the folder above is closed: nothing was tried"
if nobody ls "$run_dir" >/dev/null 2>&1; then fail "another user lists the run folder"; fi
for file in lock pids worker.sock heartbeat.sock control.sock; do unreadable "$file" "$run_dir/$file"; done
for segment in $(segments); do unreadable "segment ${segment##*-}" "/dev/shm/$segment"; done
unreadable "the cold pool" "$state_dir/cold.pool"
unreadable "the log" "$state_dir/hillinfer.log"
for pid in "${pids[@]}" "$coordinator"; do
    for file in environ maps mem; do unreadable "$file of $pid" "/proc/$pid/$file"; done
done
nobody "$bin/hillctl" status --run-dir "$run_dir" >"$work/out" 2>"$work/err" </dev/null
expect "another user's hillctl" "$? $(wc -c <"$work/out")" "111 0"
nobody "$bin/hill-coordinator" -m "$work/model.gguf" --run-dir "$run_dir" --state-dir /nonexistent >"$work/out" 2>"$work/err" </dev/null && fail "another user's pipeline in this run folder"
expect "another user's pipeline: lines" "$(wc -l <"$work/err")" 1
down || fail "down"
expect_nothing_left
finish
