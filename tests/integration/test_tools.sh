#!/usr/bin/env bash
# Looking into the pipeline: perf by function name, logs, doctor, top, status, progress on a terminal, names of processes and threads.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

both=(--run-dir "$run_dir" --state-dir "$state_dir")

expect_match() { # DESCRIPTION FILE PATTERN
    if grep -qE -- "$3" "$2"; then pass "$1"; else fail "$1: no line matches '$3' in: $(head -c 2000 "$2")"; fi
}

# --- doctor: a line each, an exit code that says whether it can run
"$hillinfer" doctor "${both[@]}" >"$work/out" 2>"$work/err"
expect "doctor: exit code" $? 0
expect "doctor: nothing on stderr" "$(cat "$work/err")" ""
expect "doctor: lines of another form" "$(grep -vcE '^(ok|warn)  +[A-Za-z/]' "$work/out")" 1
expect_match "doctor: its verdict" "$work/out" '^the pipeline can run here$'
if /usr/bin/python3 -c 'import jinja2' 2>/dev/null; then jinja=ok; else jinja=warn; fi
expect_match "doctor: Jinja" "$work/out" "^$jinja +chat templates +Jinja"
"$hillinfer" doctor --json "${both[@]}" --state-dir "$work/new/state" >"$work/out" || fail "doctor --json"
expect "doctor --json" "$(jq -r '[.can_run, .checks.programs.level, .checks.opencl.level, (.checks | length > 10)] | join(" ")' "$work/out")" "true ok ok true"
expect "doctor leaves no file and no folder" "$(ls -d "$state_dir" "$work/new" 2>/dev/null)" ""
"$hillinfer" doctor --json "${both[@]}" --state-dir "$work/"$'caf\xe9' >"$work/out" || fail "doctor --json of a path that is no UTF-8"
expect "doctor --json of a path that is no UTF-8" "$(jq '.checks.state_dir.text | contains("/caf\ufffd")' "$work/out")" true
: >"$work/file"
"$hillinfer" doctor --run-dir "$run_dir" --state-dir "$work/file/state" >"$work/out"
expect "doctor without a state folder: exit code" $? 111
expect_match "doctor without a state folder" "$work/out" '^missing +state folder +.*--state-dir'
OCL_ICD_VENDORS=$work/none "$hillinfer" doctor "${both[@]}" >"$work/out"
expect "doctor without an OpenCL device: exit code" $? 111
expect_match "doctor without an OpenCL device" "$work/out" '^missing +OpenCL devices +no OpenCL device \(no OpenCL platform found.*apt install'
# a driver that hangs, also one that SIGTERM does not end: here it has one second instead of 15
mkdir "$work/it's played" "$work/soon"
cp "$bin/hillctl" "$work/it's played/"
# shellcheck disable=SC2016  # what that script expands
printf '#!/bin/sh\n[ "$1 $2 $3" = "-k 1 15" ] && shift 3\nexec %s -k 1 1 "$@"\n' "$(command -v timeout)" >"$work/soon/timeout"
for trap in ":" "trap '' TERM"; do
    printf '#!/bin/sh\n%s\necho "0.0 of a first driver"\nexec sleep 600\n' "$trap" >"$work/it's played/hill-gpu-worker"
    chmod +x "$work/soon/timeout" "$work/it's played/hill-gpu-worker"
    timeout 60 env PATH="$work/soon:$PATH" "$work/it's played/hillctl" doctor "${both[@]}" >"$work/out"
    expect "doctor with a driver that hangs ($trap): exit code" $? 111
    expect_match "doctor with a driver that hangs ($trap)" "$work/out" '^missing +OpenCL devices +no OpenCL device \(the driver did not answer within 15 s\)'
done

# --- each command of the script explains itself
for command in up serve run chat generate save restore status top attach detach csd-model profile restart down logs perf trace record replay \
    get-models doctor; do
    "$hillinfer" $command --help >"$work/out" 2>"$work/err" </dev/null
    expect "$command --help: exit code, first word" "$? $(head -n 1 "$work/out" | cut -d' ' -f1)" "0 usage:"
done
"$hillinfer" up --detach --help "${both[@]}" >"$work/out" 2>"$work/err"
expect "up --detach --help: exit code, first word" "$? $(head -n 1 "$work/out" | cut -d' ' -f1)" "0 usage:"
for command in up "up --detach" serve run chat; do
    # shellcheck disable=SC2086  # words
    "$hillinfer" $command "${both[@]}" --version >"$work/out" 2>"$work/err" </dev/null
    expect "$command --version: exit code, output" "$? $(cut -d' ' -f1 "$work/out") $(wc -c <"$work/err")" "0 hillctl 0"
done
expect "--help and --version start nothing, and leave the log" "$(ls "$run_dir" "$state_dir/hillinfer.log" 2>/dev/null)" ""
expect "chat --help has no option that chat refuses" "$("$hillinfer" chat --help | grep -c -e '--check' -e '--json')" 0
expect "a prompt that is --help is a prompt" "$("$hillinfer" run "${both[@]}" -p --help 2>&1 >/dev/null | grep -c model)" 1
expect "a prompt that says --help is a prompt" "$("$hillinfer" run -p "what does --help do" 2>&1 >/dev/null | grep -c usage)" 0

# --- wrong use, and nothing to look into
"$hillinfer" down --run-dir "$run_dir" 2>"$work/err"
expect "down with nothing up: exit code, line" "$? $(grep -c 'nothing to stop' "$work/err")" "0 1"
mkdir -m 0 "$work/locked" && chmod 755 "$work"
as_user=() # to root no folder is locked
[ "$(id -u)" -ne 0 ] || as_user=(setpriv --reuid 65534 --clear-groups)
if "${as_user[@]}" test -x "$bin/hillctl" 2>/dev/null; then
    expect_one_line "down with a run folder that may not be entered" 111 "${as_user[@]}" "$hillinfer" down --run-dir "$work/locked/run"
    expect_match "and it says so" "$work/err" 'locked/run may not be entered'
else
    echo "without the locked run folder: the build is not readable to other users"
fi
expect_one_line "down with an unknown option" 100 "$hillinfer" down --now --run-dir "$run_dir"
expect_one_line "logs without a log" 111 "$hillinfer" logs "${both[@]}"
expect_one_line "perf without a pipeline" 111 "$hillinfer" perf gpu_worker "${both[@]}"
for command in save trace "save 0"; do
    # shellcheck disable=SC2086  # words
    expect_one_line "$command without its arguments" 100 "$hillinfer" $command --run-dir "$run_dir"
    expect_match "it names where to look" "$work/err" "hillctl ${command%% *} --help"
done
expect_one_line "top without a pipeline" 111 "$hillinfer" top --run-dir "$run_dir"
expect_one_line "perf of nothing" 100 "$hillinfer" perf
expect_one_line "perf of an unknown stage" 100 "$hillinfer" perf gpu "${both[@]}"
for seconds in 0 -1 1.5 5x "" 99999999999999999999; do
    expect_one_line "perf --seconds '$seconds'" 100 "$hillinfer" perf gpu_worker --seconds "$seconds" "${both[@]}"
done
expect_one_line "perf with an unknown option" 100 "$hillinfer" perf gpu_worker --hz 5
expect_one_line "logs with an unknown option" 100 "$hillinfer" logs --tail "${both[@]}"
expect_one_line "top -n x" 100 "$hillinfer" top -n x --run-dir "$run_dir"
expect_one_line "doctor with a leftover argument" 100 "$hillinfer" doctor now
for command in "up --detach -m $work/none.gguf" chat logs "perf gpu_worker" "replay $work/none csd_agent" "get-models smollm2"; do
    # shellcheck disable=SC2086  # words
    expect_one_line "$command without HOME" 100 env -i PATH="$PATH" timeout 20 "$hillinfer" $command
    expect_match "$command names HOME" "$work/err" 'nor HOME is set'
done
for command in "run -p x" "up --detach" "up --http=127.0.0.1:0"; do
    # shellcheck disable=SC2086  # words
    expect_one_line "$command without a temporary folder" 111 env TMPDIR="$work/none" timeout 20 "$hillinfer" $command -m "$work/none.gguf" "${both[@]}"
    expect_match "$command names TMPDIR" "$work/err" 'TMPDIR'
done

# --- a running pipeline: names, log, status, top
model=$work/$'caf\xe9.gguf'
"$bin/hill-mkmodel" -o "$model" 2>/dev/null || fail "mkmodel"
HILL_LOG_LEVEL=info up -m "$model" -c 32768 --budget 512 --beta 0.25 -t 2 || fail "up"
head -c 4000 "$text" >"$work/prompt"
names=$(for pid in $(coordinator_pid) $(worker_pid gpu_worker) $(worker_pid cpu_scorer) $(worker_pid csd_agent); do ps -L -o comm= -p "$pid"; done)
for name in hill-coord hill-gpu-worker hill-cpu-scorer hill-csd-agent control score/0; do
    expect "ps -L shows $name" "$(grep -cxF "$name" <<<"$names" | grep -c '[1-9]')" 1
done
"$hillinfer" logs "${both[@]}" >"$work/out" || fail "logs"
expect_match "logs" "$work/out" '^[0-9:]{8} hill-coordinator: info: ready: '
"$hillinfer" logs -f "${both[@]}" >"$work/out" &
follower=$!
wait_for 20 grep -qE '^[0-9:]{8} hill-coordinator: info: ready: ' "$work/out" || fail "logs -f does not show what is there"
echo "a line that is added" >>"$state_dir/hillinfer.log"
wait_for 60 grep -qxF "a line that is added" "$work/out" || fail "logs -f does not go on"
kill "$follower" || fail "logs -f has ended by itself"
wait "$follower"
expect_one_line "up while up" 100 "$hillinfer" up --detach -m "$model" "${both[@]}"
expect_match "up while up names the ways on" "$work/err" 'hillinfer status .*hillinfer down .*--run-dir'
"$hillinfer" top --run-dir "$run_dir" >"$work/out" || fail "top, idle"
expect_match "top, idle: no request" "$work/out" '^request +none'
expect_match "top: the scorer's line" "$work/out" '^cpu_scorer +[0-9]+ ready '
for command in status --help; do
    "$bin/hillctl" $command --run-dir "$run_dir" >/dev/full 2>"$work/err"
    expect "$command to a full device: exit code and lines" "$? $(grep -c 'writing to stdout failed: No space' "$work/err")" "111 1"
done
expect "status: nothing runs" "$("$hillinfer" status --json --run-dir "$run_dir" | jq -c '[.running, .live]')" "[null,null]"
expect "status --json of a model whose path is no UTF-8" "$("$hillinfer" status --json --run-dir "$run_dir" | jq -r .model)" "$work/caf"$'\xef\xbf\xbd.gguf'

# --- progress: on a terminal only
ask=(-f "$work/prompt" -n 4 --temp 0 --ignore-eos --run-dir "$run_dir")
if command -v script >/dev/null; then
    printf -v line '%q ' "$hillinfer" generate "${ask[@]}"
    script -qec "$line" /dev/null >"$work/out" 2>&1 </dev/null || fail "generate on a terminal"
    expect_match "prefill progress on a terminal" "$work/out" 'prefill [0-9]+ / 4[0-9]+ tokens, [0-9]+ tokens/s, [0-9]+ s left'
    shown() { grep -q '^cpu_scorer' "$work/out"; }
    (wait_for 20 shown && printf q) | script -qec "$hillinfer top --run-dir $run_dir" /dev/null >"$work/out" 2>&1
    expect "q ends top on a terminal: exit code" $? 0
    expect "top gives the screen back" "$(grep -c $'\033\\[?1049l' "$work/out")" 1
    script -qec "stty cols 60 rows 40; $hillinfer top -n 1 --run-dir $run_dir" /dev/null >"$work/out" 2>&1 </dev/null
    expect "top in 60 columns: the longest line" "$(sed 's/\x1b\[[?0-9;]*[A-Za-z]//g; s/\r//g' "$work/out" | awk 'length > 60' | head -n 1)" ""
    expect "and the tiers are there" "$(grep -c 'cap MiB' "$work/out" | sed 's/[1-9].*/yes/')" yes
else
    echo "without script(1): progress and top on a terminal were not tried"
fi
"$hillinfer" generate "${ask[@]}" >"$work/out" 2>"$work/err" || fail "generate"
expect "no progress when stderr is no terminal" "$(cat "$work/err")" ""
ended_live() { # a heartbeat carries them, twice a second
    status_is '.running == null and .live.request == null and .live.tiers.cold.tokens > 0 and
        .live.queries > 0'
}
if wait_for 20 ended_live; then pass "status: the last request's tiers"; else fail "status: the last request's tiers"; fi

# --- under load
"$hillinfer" generate -f "$work/prompt" -n 18000 --temp 0 --ignore-eos --run-dir "$run_dir" >"$work/text" 2>"$work/generate.err" &
request=$!
wait_for 60 decoding 1 20 || fail "the request does not decode"
"$hillinfer" top -n 2 --run-dir "$run_dir" >"$work/out" || fail "top -n 2"
expect "top -n 2: snapshots" "$(grep -c '^hillinfer  ready' "$work/out")" 2
expect "top -n 2: no escape sequences" "$(grep -c $'\033' "$work/out")" 0
expect_match "top: the request" "$work/out" '^request +[0-9]+ decode .* / 18000 tokens, [0-9.]+ tokens/s'
expect_match "top: the hot tier" "$work/out" '^hot +[1-9][0-9]* '
expect_match "top: the cold tier" "$work/out" '^cold +[1-9][0-9]* .* [1-9][0-9]* +[0-9.]+ %$'
# number_of LABEL WORD SNAPSHOT: the number before WORD in that line of that snapshot
number_of() { grep "^$1 " "$work/out" | sed -n "$3p" | grep -oE "[0-9]+ +$2" | grep -oE '^[0-9]+'; }
expect_match "top: the moves" "$work/out" '^moves +[0-9]+ demoted, [0-9]+ promoted, [0-9]+ bounced'
expect_match "top: CPU and memory" "$work/out" '^gpu_worker +[0-9]+ ready +[1-9][0-9.]* +[1-9][0-9.]* '
hits() { grep "^$1 " "$work/out" | sed -n "$2p" | sed -E 's/.* ([0-9]+) +[0-9.]+ %$/\1/'; }
goes_on() { # between two snapshots all that has to grow while the request runs has grown
    "$hillinfer" top -n 2 --run-dir "$run_dir" >"$work/out" || return 1
    [ "$(number_of moves demoted 2)" -gt "$(number_of moves demoted 1)" ] &&
        [ "$(hits hot 2)" -gt "$(hits hot 1)" ] && [ "$(hits cold 2)" -gt "$(hits cold 1)" ]
}
if wait_for 60 goes_on; then pass "top, live: tokens go down, and are hit"; else fail "top, live: nothing goes on: $(cat "$work/out")"; fi
for word in promoted bounced; do
    expect "top, live: $word is counted on" "$(($(number_of moves $word 2) >= $(number_of moves $word 1)))" 1
done
status=$("$hillinfer" status --json --run-dir "$run_dir")
expect "status, live" "$(jq -c '[.running.prompt_tokens > 3900, .running.request == .live.request, .live.tiers.gpu.hits > 0, .workers.cpu_scorer.rss_bytes > 1000000, .coordinator.pid]' <<<"$status")" \
    "[true,true,true,true,$(coordinator_pid)]"

# --- perf that is missing, or that may not: one line, and how to get it
mkdir "$work/tools" "$work/broken"
for tool in bash env readlink dirname id jq mkdir; do ln -s "$(command -v $tool)" "$work/tools/$tool"; done
expect_one_line "perf that is not installed" 111 env PATH="$work/tools" "$hillinfer" perf gpu_worker "${both[@]}"
expect_match "perf that is not installed" "$work/err" 'apt install linux-perf'
printf '#!/bin/sh\necho "Error: no permission to watch" >&2\nexit 255\n' >"$work/broken/perf"
chmod +x "$work/broken/perf"
expect_one_line "perf that may not" 111 env PATH="$work/broken:$PATH" "$hillinfer" perf gpu_worker "${both[@]}"
expect_match "perf that may not says so itself" "$work/err" 'no permission to watch'
printf '#!/bin/sh\n' >"$work/broken/perf"
expect_one_line "perf that samples nothing" 1 env PATH="$work/broken:$PATH" "$hillinfer" perf gpu_worker "${both[@]}"
printf '#!/bin/sh\nexec sleep 60\n' >"$work/broken/perf"
PATH="$work/broken:$PATH" "$hillinfer" perf gpu_worker "${both[@]}" 2>"$work/err" &
watcher=$!
wait_for 20 pgrep -P "$watcher" -x sleep >/dev/null || fail "perf does not record"
kill -TERM "$watcher"
wait "$watcher"
expect "SIGTERM to perf: exit code; what it and the others leave" "$? $(find "$state_dir" -name 'perf-*')" "130 "

# --- perf: each stage's functions by name
perf_works=""
if command -v perf >/dev/null && perf record -q -F 99 -o "$work/perf.data" -- true >/dev/null 2>&1; then
    perf_works=yes
    pairs=('gpu_worker:(decode_layers|add_product|attend)[a-z_]* .*(OpenCL kernel|decode_layers)'
        'cpu_scorer:(kv_score|kv_select|cold_map|query_pump)[a-z0-9_]* .*hill-cpu-scorer'
        'csd_agent:(kv_score|pool|cold_pool)_[a-z0-9_]+ +hill-csd-agent'
        'coordinator:\[[k.]\] [a-z_]{3,}')
    watchers=()
    for pair in "${pairs[@]}"; do
        stage=${pair%%:*}
        "$hillinfer" perf "$stage" --seconds 3 "${both[@]}" >"$work/out.$stage" 2>"$work/err.$stage" &
        watchers+=($!)
    done
    for pair in "${pairs[@]}"; do
        stage=${pair%%:*}
        wait "${watchers[0]}" || fail "perf $stage: $(cat "$work/err.$stage")"
        watchers=("${watchers[@]:1}")
        expect_match "perf $stage: functions by name" "$work/out.$stage" "${pair#*:}"
    done
else
    expect_one_line "perf where it cannot be used" 111 "$hillinfer" perf gpu_worker --seconds 1 "${both[@]}"
fi

kill -INT "$(pgrep -f "hillctl generate.*--run-dir $run_dir")"
wait "$request"
"$hillinfer" detach --run-dir "$run_dir" >/dev/null || fail "detach"
if [ -n "$perf_works" ]; then
    expect_one_line "perf of a stage that does not run" 1 "$hillinfer" perf csd_agent --seconds 1 "${both[@]}"
fi
down || fail "down"
expect_nothing_left
[ "$failures" -gt 0 ] || [ -n "$perf_works" ] || skip "perf cannot be used here; everything else passed"
finish
