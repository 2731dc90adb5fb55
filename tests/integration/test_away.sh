#!/usr/bin/env bash
# --prefix-unimportant never: of a stored prefix the important tokens alone take part in an answer. With all of them important
# not a bit differs from a prefix that is read whole; with fewer the answer is the same every time, also over a worker's death;
# nothing is read behind the first token, and nothing is left to others.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
requests_last 5
unset HILL_NO_PREFIX_CACHE

"$bin/hill-mkmodel" -o "$work/model.gguf" || fail "mkmodel"
pass_key_prompt 423 600 >"$work/key" # the key begins with a run: of four tokens, which what asks for the first of them loads
{ head -c -30 "$work/key" && printf '\nAnother question is this.'; } >"$work/other"
options=(-m "$work/model.gguf" -c 2048 --alpha 0.2 --sinks 3 --window 17 --csd none -np 1 --prefix-dir "$work/store" --prefix-mb 20)
selects=(--prefix-attention select) never=(--prefix-attention select --prefix-unimportant never)

generate() { # OUTPUT ARGUMENTS...
    local out=$1
    shift
    "$bin/hillctl" generate -n 12 --temp 0 --ignore-eos --json --run-dir "$run_dir" "$@" >"$out" 2>"$out.err"
}
answer() { field "$1" '"\(.tokens) \(.selection_hash) \(.logits_hash) \(.prompt_tokens)"'; }
tokens() { field "$1" ".tokens[:${2:-12}]" | jq -c .; }
prefix() { field "$1" '.prefix | "\(.attention) \(.away_tokens) \(.reused_tokens) \(.computed_tokens) \(.loaded_later_bytes)"'; }

# --- what is read whole, and what the store has of it
up "${options[@]}" "${selects[@]}" || fail "up"
generate "$work/out" -f "$work/other" || fail "a first prompt: $(cat "$work/out.err")"
n=$((($(field "$work/out" .prompt_tokens) - 1) / 64 * 64)) # whole chunks
generate "$work/key.whole" -f "$work/key" --no-prefix-cache || fail "whole: $(cat "$work/key.whole.err")"
expect "whole: the key" "$(field "$work/key.whole" '.text[:8]')" " 7302941"
generate "$work/key.later" -f "$work/key" || fail "later: $(cat "$work/key.later.err")"
n_common=$(cmp "$work/key" "$work/other" | sed 's/.*byte \([0-9]*\),.*/\1/') # a token a byte, behind the one that begins a text
n=$((n_common / 64 * 64)) own=$(($(field "$work/key.whole" .prompt_tokens) - n))
down || fail "down"

# --- all of them important, loaded so nevertheless
up "${options[@]}" "${never[@]}" --prefix-share 1 || fail "up"
generate "$work/out" -f "$work/key" || fail "all are important: $(cat "$work/out.err")"
same "all are important: answer" "$(answer "$work/out")" "$(answer "$work/key.whole")"
expect "all are important: prefix" "$(prefix "$work/out")" "select 0 $n $own 0"
expect "all are important: loaded" "$(field "$work/out" .prefix.loaded_entries)" $((2 * n))
down || fail "down"

# --- half of them
up "${options[@]}" "${never[@]}" || fail "up"
generate "$work/half" -f "$work/key" || fail "half of them: $(cat "$work/half.err")"
expect "half of them: prefix" "$(prefix "$work/half")" "select 512 $n $own 0"
expect "half of them: loaded" "$(field "$work/half" .prefix.loaded_entries)" $((2 * (n - 512)))
expect "half of them: in DRAM" "$(field "$work/half" '.tiers.hot.tokens / 2')" $((n - 512 + own + 11))
expect "half of them: the key's first run" "$(field "$work/half" '.text[:4]')" " 730"
expect "half of them: nothing is left" "$(field "$work/half" .prefix.left_chunks)" 0
generate "$work/out" -f "$work/key" || fail "half of them again: $(cat "$work/out.err")"
same "half of them again: answer" "$(answer "$work/out")" "$(answer "$work/half")"
expect "half of them again: prefix" "$(prefix "$work/out")" "select 512 $n $own 0"
generate "$work/out" --after "$(field "$work/out" .request_id)" -p "x"
expect "--after such a one: exit code" $? 100
expect "--after such a one: lines" "$(grep -c 'is not kept' "$work/out.err") $(wc -l <"$work/out.err")" "1 1"

down || fail "down"

# --- out of the caches, the device's, too
up "${options[@]}" "${never[@]}" --prefix-cache-mb 1 --prefix-gpu-cache-mb 1 || fail "up"
for from in drive caches; do
    generate "$work/out" -f "$work/key" || fail "from the $from: $(cat "$work/out.err")"
    same "from the $from: answer" "$(answer "$work/out")" "$(answer "$work/half")"
    expect "from the $from: prefix" "$(prefix "$work/out")" "select 512 $n $own 0"
done
expect "from the caches: some of the device's" "$(field "$work/out" '.prefix.cached_gpu_bytes > 0')" true
down || fail "down"
up "${options[@]}" "${never[@]}" || fail "up"

# --- a death in its answer, and one before its first token, for which a modelled drive waits
generate "$work/long.whole" -f "$work/key" -n 400 || fail "a long answer: $(cat "$work/long.whole.err")"
same "a long answer begins as a short one" "$(tokens "$work/long.whole")" "$(tokens "$work/half")"
for worker in gpu_worker cpu_scorer; do
    generate "$work/long" -f "$work/key" -n 400 &
    pid=$!
    wait_for 30 decoding 1 3 || fail "nothing decodes"
    kill_worker $worker
    wait $pid || fail "$worker killed: $(cat "$work/long.err")"
    same "$worker killed: answer" "$(answer "$work/long")" "$(answer "$work/long.whole")"
    expect "$worker killed: it went on" "$(field "$work/long" '"\(.prefix.attention) \(.prefix.away_tokens) \(.recovery.recoveries)"')" "select 512 1"
done
generate "$work/long" -f "$work/key" -n 400 &
pid=$!
wait_for 30 decoding 1 3 || fail "nothing decodes"
kill -KILL "$(coordinator_pid)"
wait $pid || fail "coordinator killed: $(cat "$work/long.err")"
expect "coordinator killed: in time" "$(field "$work/long" .restarts.coordinator)" 1
same "coordinator killed: answer" "$(answer "$work/long")" "$(answer "$work/long.whole")"
hillctl csd-model flash=0.001 >/dev/null || fail "a slow drive"
generate "$work/out" -f "$work/key" &
pid=$!
asked $pid
kill_worker gpu_worker
hillctl csd-model off >/dev/null || fail "no slow drive"
wait $pid || fail "killed before its first token: $(cat "$work/out.err")"
expect "killed before its first token: in time" "$(field "$work/out" '.recovery.attempts > 1')" true
same "killed before its first token: answer" "$(answer "$work/out")" "$(answer "$work/half")"

# --- a session of it: taken when it is over, by reading the rest; not in its middle
generate "$work/long" -f "$work/key" -n 900 &
pid=$!
wait_for 30 decoding 1 3 || fail "nothing decodes"
hillctl save "$(status | jq '.requests[0].request')" "$work/no.session" >"$work/out" 2>&1
expect "saved in its middle: exit code" $? 100
expect "saved in its middle: said" "$(grep -c 'tokens that stay away' "$work/out") $(wc -l <"$work/out")" "1 1"
wait $pid || fail "saved in its middle: $(cat "$work/long.err")"
generate "$work/out" -f "$work/key" --save "$work/key.session" || fail "--save: $(cat "$work/out.err")"
expect "--save: the rest is read" "$(field "$work/out" '"\(.prefix.attention) \(.prefix.away_tokens) \(.prefix.loaded_later_bytes > 0)"')" "select 0 true"
same "--save: tokens" "$(tokens "$work/out")" "$(tokens "$work/key.later")"
generate "$work/out" -f "$work/key" || fail "where the tiers have it: $(cat "$work/out.err")"
same "where the tiers have it: answer" "$(answer "$work/out")" "$(answer "$work/key.whole")"
down || fail "down"

# --- a damaged entry of its first chunk: it begins again, over all of its prefix
printf '\377\377' | dd of="$work/store/chunks.data" bs=1 seek=66000 conv=notrunc 2>/dev/null
up "${options[@]}" "${never[@]}" || fail "up"
generate "$work/out" -f "$work/key" || fail "damaged: $(cat "$work/out.err")"
same "damaged: answer" "$(answer "$work/out")" "$(answer "$work/key.whole")"
expect "damaged: in one attempt" "$(field "$work/out" .recovery.attempts)" 1
expect "damaged: nothing stays away" "$(field "$work/out" '"\(.prefix.away_tokens) \(.prefix.reused_tokens)"')" "0 0"
expect "damaged: named" "$(cat "$state_dir"/*.log | grep -c 'the entries of chunk 0 are not right, or not there: all of the prefix is read first')" 1
down || fail "down"

# --- the tiers were thought to have more than half of it, which has given its room to others
rm -r "$work/store"
tail -c 1700 "$text" >"$work/big"
up "${options[@]}" "${never[@]}" -np 2 --hot-mb 7 --hang-ms 600000 || fail "up"
generate "$work/out" -f "$work/other" || fail "a prompt that stays: $(cat "$work/out.err")"
generate "$work/out" -f "$work/big" -n 300 || fail "a prompt that takes its room: $(cat "$work/out.err")"
generate "$work/out" -f "$work/key" || fail "what was to stay is gone: $(cat "$work/out.err")"
expect "what was to stay is gone: prefix" "$(prefix "$work/out")" "select 512 $n $own 0"
same "what was to stay is gone: answer" "$(answer "$work/out")" "$(answer "$work/half")"

# --- to be saved before it has begun: refused once it is known what stays away
hillctl csd-model flash=0.001 >/dev/null || fail "a slow drive"
generate "$work/out" -f "$work/key" -n 400 & # so that it is there when the second has come
before=$!
asked $before
signal_worker STOP gpu_worker # so that it has not begun when the save comes
generate "$work/late" -f "$work/key" &
pid=$!
asked $pid
wait_for 30 status_is '.requests | length == 2' || fail "two requests"
id=$(status | jq '[.requests[].request] | max')
hillctl save "$id" "$work/no.session" >"$work/saved" 2>&1 &
saver=$!
asked $saver
signal_worker CONT gpu_worker
hillctl csd-model off >/dev/null || fail "no slow drive"
wait $saver
expect "to be saved before it has begun: exit code" $? 100
expect "to be saved before it has begun: said" "$(grep -c 'tokens that stay away' "$work/saved") $(wc -l <"$work/saved")" "1 1"
wait $before || fail "one before it: $(cat "$work/out.err")"
wait $pid || fail "to be saved before it has begun: $(cat "$work/late.err")"
same "to be saved before it has begun: answer" "$(answer "$work/late")" "$(answer "$work/half")"
down || fail "down"

expect_one_line "never, of all" 100 "$bin/hill-coordinator" "${options[@]}" --prefix-unimportant never --run-dir "$work/second"
grep -q -- '--prefix-unimportant needs --prefix-attention select' "$work/err" || fail "never, of all: $(cat "$work/err")"
expect_one_line "never, of no store" 100 "$bin/hill-coordinator" -m "$work/model.gguf" "${never[@]}" --run-dir "$work/second"
expect_one_line "neither later nor never" 100 "$bin/hill-coordinator" "${options[@]}" "${selects[@]}" --prefix-unimportant now --run-dir "$work/second"
expect_nothing_left
finish
