#!/usr/bin/env bash
# hillctl trace: Chrome/Perfetto JSON of the stages of a running pipeline, while it decodes; the USDT probes of the same stages.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
requests_last 5

# check DESCRIPTION FILE JQ-EXPRESSION: it is true of the trace
check() { expect "$1" "$(jq "$3" "$2")" true; }

# --- probes: provider and names are in the binaries, begin and end of every stage
probes() { readelf -n "$bin/$1" | awk '/Provider: hillinfer$/ { getline; print $2 }' | sort -u; }
declare -A stages=([hill-gpu-worker]="prefill append query await_selection upload attend logits" [hill-cpu-scorer]="answer bounds score_hot score_cold merge select gather"
    [hill-csd-agent]="agent_score agent_fetch agent_demote agent_commit agent_release agent_trim")
if command -v readelf >/dev/null; then
    for program in "${!stages[@]}"; do
        wanted=$(for stage in ${stages[$program]}; do printf '%s_begin\n%s_end\n' "$stage" "$stage"; done | sort -u)
        expect "probes of $program" "$(probes "$program" | tr '\n' ' ')" "$(tr '\n' ' ' <<<"$wanted")"
    done
else
    echo "without readelf: the probes were not looked for"
fi

# --- what cannot be
expect_one_line "trace without a pipeline" 111 "$bin/hillctl" trace "$work/trace.json" --run-dir "$run_dir"
small_model "$work/random.gguf" -s 7
up -m "$work/random.gguf" -c 16384 --alpha 0.1 --beta 0.25 || fail "up"
expect_one_line "trace into a folder that is not there" 111 "$bin/hillctl" trace "$work/none/trace.json" --run-dir "$run_dir"
expect_one_line "trace without a file" 100 "$bin/hillctl" trace --run-dir "$run_dir"
expect_one_line "trace for no time" 100 "$bin/hillctl" trace "$work/trace.json" --seconds 0 --run-dir "$run_dir"
expect "no file of a trace that failed" "$(find "$work" -name 'trace.json*')" ""

# --- an idle pipeline: a whole file without spans
echo mine >"$work/mine"
ln -s mine "$work/idle.json.part" # as one who knows how the file beside is called might
"$bin/hillctl" trace "$work/idle.json" --seconds 0.3 --run-dir "$run_dir" 2>"$work/err" || fail "trace of an idle pipeline: $(cat "$work/err")"
expect "a trace is its owner's alone, under whatever umask" "$(stat -c %a "$work/idle.json")" 600
expect "a trace follows no link that lies beside it" "$(cat "$work/mine") $(readlink "$work/idle.json.part")" "mine mine"
rm "$work/idle.json.part"
expect "nothing stays beside a trace" "$(find "$work" -name 'idle.json*')" "$work/idle.json"
check "idle: nothing but names" "$work/idle.json" '[.traceEvents[] | select(.ph != "M")] | length == 0'
mkfifo "$work/pipe"
expect_one_line "trace into a pipe without a reader" 111 "$bin/hillctl" trace "$work/pipe" --run-dir "$run_dir"
"$bin/hillctl" trace /dev/stdout --seconds 0.3 --run-dir "$run_dir" 2>"$work/err" | cat >"$work/piped.json"
check "a trace through a pipe" "$work/piped.json" '.otherData.answers_missing == 0'
exec {both}<>"$work/pipe" # so that neither end waits for the other; the whole trace fits the pipe
exec {reader}<"$work/pipe"
exec {both}>&-
"$bin/hillctl" trace "$work/pipe" --seconds 0.3 --run-dir "$run_dir" 2>"$work/err" || fail "trace into a pipe: $(cat "$work/err")"
cat <&"$reader" >"$work/piped.json"
exec {reader}<&-
check "a pipe stays one" "$work/piped.json" '.otherData.answers_missing == 0'
check "idle: nobody is missing" "$work/idle.json" '.otherData | .answers_missing == 0 and (.processes | length == 3)'

# --- while a request decodes: it goes on, with the same result
head -c 4000 LICENSE >"$work/prompt"
request=(-f "$work/prompt" -n 400 --temp 0 --ignore-eos --json --run-dir "$run_dir")
"$bin/hillctl" generate "${request[@]}" >"$work/plain" 2>"$work/err" || fail "generate: $(cat "$work/err")"
request[3]=6000
"$bin/hillctl" generate "${request[@]}" >"$work/traced" 2>"$work/err" &
generate=$!
wait_for 60 decoding 1 5 || fail "the request does not decode"
trace=$work/trace.json
traced() { # with enough steps, whatever else the machine did
    "$bin/hillctl" trace "$trace" --seconds 1.5 --run-dir "$run_dir" 2>"$work/trace.err" || fail "trace: $(cat "$work/trace.err")"
    jq -e '[.traceEvents[] | select(.ph == "X" and .name == "logits")] | length > 20' "$trace" >/dev/null
}
wait_for 60 traced || fail "no 20 steps in a trace"
expect "it says what it wrote" "$(grep -cE '^hillctl: [1-9][0-9]* spans of [0-9.]+ s in ' "$work/trace.err")" 1
refused_beside() { # the first, which is begun again where the second one was there before it
    kill -0 "${first:-}" 2>/dev/null || {
        "$bin/hillctl" trace "$work/cut.json" --seconds 600 --run-dir "$run_dir" 2>"$work/cut.err" &
        first=$!
    }
    asked "$first"
    ! "$bin/hillctl" trace "$work/second.json" --seconds 0.1 --run-dir "$run_dir" >"$work/out" 2>"$work/err"
}
first=""
wait_for 60 refused_beside || fail "a second trace beside the first"
expect_one_line "a second trace beside the first" 100 "$bin/hillctl" trace "$work/second.json" --seconds 1 --run-dir "$run_dir"
made=$(status | jq '.requests[0].predicted_tokens')
wait_for 60 decoding 1 $((made + 20)) || fail "no 20 tokens are made beside a trace"
kill -INT "$first"
wait "$first"
expect "Ctrl-C ends a trace: exit code" $? 130
check "Ctrl-C: the file is whole" "$work/cut.json" '[.traceEvents[] | select(.ph == "X")] | length > 100'
kill -0 "$generate" 2>/dev/null || fail "the request was over before it could be traced"
kill -INT "$generate"
wait "$generate"
"$bin/hillctl" generate "${request[@]:0:3}" 400 "${request[@]:4}" >"$work/after" 2>"$work/err" || fail "generate: $(cat "$work/err")"
expect "tracing changes no result" "$(field "$work/after" '"\(.selection_hash) \(.logits_hash)"')" "$(field "$work/plain" '"\(.selection_hash) \(.logits_hash)"')"

# --- the file: every track is named, spans are whole and in order, flows are balanced, nothing is lost silently
check "spans: start, duration, arguments" "$trace" '[.traceEvents[] | select(.ph == "X") | (.ts > 0 and .dur >= 0 and (.args | [.sequence, .step, .layer, .bytes] | all(type == "number")))] | all and length > 100'
check "spans: of this request, by the number that its JSON has" "$trace" "[.traceEvents[] | select(.ph == \"X\") | .args.request] | unique == [$(field "$work/traced" .request_id)]"
check "spans: in order of their starts" "$trace" '[.traceEvents[] | select(.ph == "X") | .ts] | . == sort'
check "no other events" "$trace" '[.traceEvents[].ph] | unique == ["M", "X", "f", "s", "t"]'
check "processes are named" "$trace" '[.traceEvents[] | select(.name == "process_name") | .args.name] | sort == ["cpu_scorer", "csd_agent", "gpu_worker"]'
# shellcheck disable=SC2016  # jq's variable
check "tracks are named as their spans" "$trace" '([.traceEvents[] | select(.name == "thread_name") | {key: "\(.pid) \(.tid)", value: .args.name}] | from_entries) as $names
    | [.traceEvents[] | select(.ph == "X") | $names["\(.pid) \(.tid)"] == .name] | all'
for stage in query await_selection upload attend logits answer score_hot score_cold merge select gather agent_score agent_fetch; do
    check "stage $stage is there" "$trace" "[.traceEvents[] | select(.ph == \"X\" and .name == \"$stage\")] | length > 10"
done
check "spans of a track do not overlap" "$trace" '[.traceEvents[] | select(.ph == "X")] | group_by(.tid)
    | map([.[:-1], .[1:]] | transpose | map(.[0].ts + .[0].dur <= .[1].ts + 0.01) | all) | all'
check "flows: one start, one end, each" "$trace" '[.traceEvents[] | select(.cat == "flow")] | group_by(.id)
    | map((map(select(.ph == "s")) | length) == 1 and (map(select(.ph == "f")) | length) == 1 and .[0].ph == "s" and .[-1].ph == "f") | all and length > 10'
check "flows: across processes" "$trace" '[.traceEvents[] | select(.cat == "flow")] | group_by(.id) | map([.[].pid] | unique | length) | max == 3'
check "a query is within its answer" "$trace" '[.traceEvents[] | select(.ph == "X" and (.name == "answer" or .name == "select")) | {n: .name, k: "\(.args.sequence) \(.args.step) \(.args.layer)", ts, end: (.ts + .dur)}]
    | group_by(.k) | map(select(length == 2) | sort_by(.n) | .[0].ts <= .[1].ts and .[0].end + 0.01 >= .[1].end) | all and length > 10'
# --- a prompt that is read: its chunks, layer after layer, each given on before the next is waited for
chunks='[.traceEvents[] | select(.ph == "X" and (.name == "prefill" or .name == "append")) | {n: .name, l: .args.layer, s: .args.step}]'
prompt_traced() { # a whole one: a trace that begins within a prompt lacks some of its first layer
    "$bin/hillctl" trace "$work/prompt.json" --seconds 600 --run-dir "$run_dir" 2>/dev/null &
    first=$!
    asked "$first" # a SIGINT before it is ready for one is ignored
    "$bin/hillctl" generate -f "$work/prompt" -n 1 --temp 0 --run-dir "$run_dir" >"$work/read" 2>&1 || fail "generate: $(cat "$work/read")"
    kill -INT "$first"
    wait "$first"
    jq -e "$chunks"' | group_by([.n, .l]) | length == 6 and (map(length) | unique | length) == 1' "$work/prompt.json" >/dev/null 2>&1
}
wait_for 60 prompt_traced || fail "no whole prompt was traced"
# shellcheck disable=SC2016  # jq's variables
check "a prompt's chunks: layer after layer, each computed, then given on" "$work/prompt.json" "$chunks"' as $all
    | ([$all[].l] | . == sort) and ([$all[].s] | unique == [0])
      and ([range(0; $all | length)] | all(. as $i | $all[$i].n == (if $i % 2 == 0 then "prefill" else "append" end)))'

check "a prompt's chunks: of its request, whose number is another one" "$work/prompt.json" \
    "[.traceEvents[] | select(.name == \"prefill\") | .args.request] | unique | length == 1 and .[0] > $(field "$work/after" .request_id)"

check "counts" "$trace" '(.otherData.events == ([.traceEvents[] | select(.ph == "X")] | length)) and .otherData.events == ([.otherData.processes[].events] | add)
    and .otherData.events_lost == 0 and .otherData.events_dropped == 0 and .otherData.answers_missing == 0'

# --- a worker that is started again meanwhile is another process of the same trace
"$bin/hillctl" trace "$work/restart.json" --seconds 8 --run-dir "$run_dir" 2>"$work/err" &
first=$!
asked $first
kill_worker cpu_scorer
wait "$first" || fail "trace over the death of a worker: $(cat "$work/err")"
check "a worker died: the file is whole" "$work/restart.json" '.otherData.rounds > 5 and ([.otherData.processes[].role] | sort == ["cpu_scorer", "cpu_scorer", "csd_agent", "gpu_worker"])'
down || fail "down"
expect_nothing_left
finish
