#!/usr/bin/env bash
# --trace-kv: one record for each step and layer, true placement bits, nothing overwritten, and hill-kvtrace can replay it.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

n=24 layers=3
small_model "$work/random.gguf" --layers $layers -s 7
head -c 900 LICENSE >"$work/prompt"
pipeline=(-m "$work/random.gguf" -c 2048 --alpha 0.1 --beta 0.25 --placement bkp)
request=(-f "$work/prompt" -n "$n" --temp 0 --ignore-eos)
records=$(((n - 1) * layers)) # the first token comes out of the prefill

# replay FILE ARGUMENTS...: what it says about it into $work/replay
replay() {
    "$bin/hill-kvtrace" --json "$@" >"$work/replays" 2>"$work/replay.err"
    expect "hill-kvtrace $(basename "$1")" "$? $(cat "$work/replay.err")" "0 "
    jq '.[0]' "$work/replays" >"$work/replay"
}

# the replay's GPU has memory of its own; one that shares the host's reads hot entries in place and keeps only cold ones
export HILL_TEST_COPY_HOT=1

# --- one run: every query is there, and what it says about placement is what the run's statistics say
run_json "$work/plain" "${pipeline[@]}" "${request[@]}" || fail "run: $(cat "$work/plain.err")"
run_json "$work/out" "${pipeline[@]}" "${request[@]}" --trace-kv "$work/run.kvt" --trace-scores || fail "run: $(cat "$work/out.err")"
expect "a trace changes no selection" "$(field "$work/out" .selection_hash)" "$(field "$work/plain" .selection_hash)"
replay "$work/run.kvt"
expect "queries recorded" "$(field "$work/replay" .records)" $records
expect "each placement saw each step" "$(field "$work/replay" '[.placements[].steps] | unique | join(" ")')" $((n - 1))
expect "what the GPU kept, as replayed" "$(field "$work/replay" '.placements.bkp.hits_gpu == .recorded.gpu and .recorded.gpu > 0')" true
expect "placements" "$(field "$work/replay" '.placements | keys | sort | join(" ")')" "belady bkp lfu lru paper recency score"
expect "entries that came from the cold tier" "$(field "$work/replay" '.recorded.cold <= '"$(field "$work/out" .tiers.cold.hits)"' and .recorded.cold > 0')" true

# --- without scores; nothing is overwritten; a relative name is one of the caller's folder
sum=$(sha256sum <"$work/run.kvt")
(cd "$work" && "$hillinfer" run --run-dir "$run_dir" --state-dir "$state_dir" --json "${pipeline[@]}" "${request[@]}" --csd none --trace-kv run.kvt \
    >"$work/out" 2>"$work/out.err") || fail "run: $(cat "$work/out.err")"
expect "the first trace is untouched" "$(sha256sum <"$work/run.kvt")" "$sum"
replay "$work/run.kvt.2" --placement bkp
expect "queries recorded in the second" "$(field "$work/replay" .records)" $records
expect "hot only: cold entries recorded" "$(field "$work/replay" .recorded.cold)" 0
"$bin/hill-kvtrace" --json "$work/run.kvt.2" >"$work/replays" 2>"$work/err"
expect "without scores: exit code, placements" "$? $(jq -r '.[0].placements | keys | sort | join(" ")' "$work/replays")" "0 belady bkp lfu lru paper recency"
expect "and a line says that score is left out" "$(grep -c 'has no scores (--trace-scores)' "$work/err") of $(wc -l <"$work/err")" "1 of 1"
expect_one_line "score of a trace without scores" 100 "$bin/hill-kvtrace" "$work/run.kvt.2" --placement score

# --- a scorer that is killed: the requests before it stay readable, the new one writes a file of its own
up "${pipeline[@]}" --trace-kv "$work/up.kvt" || fail "up"
"$bin/hillctl" generate --run-dir "$run_dir" "${request[@]}" >/dev/null 2>"$work/err" || fail "generate: $(cat "$work/err")"
kill_worker cpu_scorer
"$bin/hillctl" generate --run-dir "$run_dir" "${request[@]}" >/dev/null 2>"$work/err" || fail "generate after a kill: $(cat "$work/err")"
down || fail "down"
for file in up.kvt up.kvt.2; do
    replay "$work/$file" --placement bkp
    expect "queries recorded in $file" "$(field "$work/replay" .records)" $records
done

# --- damaged, cut short, of another version: a line that names the file and where; whole records before a cut are of use
trace_says() { # WHAT EXIT-CODE WORDS: of $work/bad.kvt, with one line on stderr
    "$bin/hill-kvtrace" "$work/bad.kvt" --placement bkp >"$work/out" 2>"$work/err"
    expect "a trace $1: exit code, lines" "$? $(wc -l <"$work/err")" "$2 1"
    grep -q "bad.kvt: $3" "$work/err" || fail "a trace $1: $(cat "$work/err")"
}
bytes=$(stat -c %s "$work/run.kvt")
poke() { # OFFSET: a byte of a copy that is another one
    cp "$work/run.kvt" "$work/bad.kvt"
    byte=$(od -An -tu1 -j "$1" -N 1 "$work/bad.kvt")
    # shellcheck disable=SC2059  # the byte as an escape
    printf "\\x$(printf %02x $((byte ^ 64)))" | dd of="$work/bad.kvt" bs=1 seek="$1" conv=notrunc status=none
}
poke 8
trace_says "of another version" 1 "version 66, this program reads 2"
poke 40
trace_says "with a flipped bit in its header" 1 ""
poke $((bytes / 2))
trace_says "with a flipped bit in its middle" 1 "record .*checksum"
head -c 30 "$work/run.kvt" >"$work/bad.kvt"
trace_says "that is cut in its header" 1 "its 30 bytes hold no trace header"
head -c $((bytes - 5)) "$work/run.kvt" >"$work/bad.kvt"
trace_says "that is cut in its last record" 0 "cut short in record"

# --- what cannot be
run_json "$work/out" "${pipeline[@]}" "${request[@]}" --trace-scores
expect "--trace-scores alone: exit code" $? 100
run_json "$work/out" "${pipeline[@]}" "${request[@]}" --trace-kv "$work/none/run.kvt"
expect "a trace in a folder that is not there: exit code" $? 111
expect_nothing_left
finish
