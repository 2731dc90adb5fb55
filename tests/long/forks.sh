#!/usr/bin/env bash
# tests/long/forks.sh - OPERATIONS (default 300) random requests on a few documents, while processes die: texts that fork
# from earlier ones or are cut short, answers that are gone on with (--after), cancelled requests, a worker or the
# coordinator killed with SIGKILL while idle or decoding. No answer differs from that of the same prompt computed whole, no
# request is lost, the store on the drive stays below its cap, and nothing is left at the end.
#
# usage: [SEED=N] [OPERATIONS=N] tests/long/forks.sh. The oracle: the same prompt with --no-prefix-cache, in a pipeline of
# its own without a store and without kills. About three seconds an operation on two CPUs. Exit codes: 0 all right, 1 not.
# shellcheck source=../integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"
unset HILL_NO_PREFIX_CACHE

operations=${OPERATIONS:-300} seed=${SEED:-$(date +%s)} cap_mb=6
RANDOM=$seed
echo "SEED=$seed OPERATIONS=$operations"
"$bin/hill-mkmodel" -o "$work/model.gguf" >/dev/null || fail "mkmodel"
options=(-m "$work/model.gguf" -c 4096 --alpha 0.2 --sinks 3 --window 17)
whole_run=$work/whole.run
"$hillinfer" up --detach --run-dir "$whole_run" --state-dir "$work/whole.state" "${options[@]}" --csd none ||
    fail "the oracle's pipeline"
stop_oracle() {
    "$hillinfer" down --run-dir "$whole_run" >/dev/null 2>&1
    cleanup
}
trap stop_oracle EXIT
up "${options[@]}" --hot-mb 12 --cold-mb 64 --beta 0.4 -np 2 --prefix-dir "$work/store" --prefix-mb $cap_mb || fail "up"

ask() { # RUN-DIR OUTPUT ARGUMENTS...
    local dir=$1 out=$2
    shift 2
    "$bin/hillctl" generate --temp 0.8 -s 9 --ignore-eos --json --run-dir "$dir" "$@" >"$out" 2>"$out.err"
}
answer() { field "$1" '"\(.tokens) \(.logits_hash) \(.prompt_tokens)"'; }
# a text: of an earlier one a beginning of any length, then something from anywhere
new_text() { # FILE
    local from=$work/text$((RANDOM % 6)) bytes
    [ -s "$from" ] || from=$text
    bytes=$((200 + RANDOM % 1500))
    { head -c $((RANDOM % bytes)) "$from" && tail -c +$((1 + RANDOM % 20000)) "$text" | head -c $((1 + bytes / 3)); } >"$1"
}
workers=(gpu_worker cpu_scorer csd_agent)
killed=0 reused=0 drive=0 afters=0 cancelled=0
kill_one() { # the next request finds it gone, or coming back
    killed=$((killed + 1))
    case $((RANDOM % 4)) in
    3) kill -KILL "$(coordinator_pid)" && wait_for 60 ready ;;
    *) kill_worker "${workers[RANDOM % 3]}" ;;
    esac || fail "operation $i: kill"
}
for ((i = 1; i <= operations && failures == 0; i++)); do
    file=$work/text$((RANDOM % 6)) n=$((4 + RANDOM % 24)) what=$((RANDOM % 10))
    new_text "$work/next" && mv "$work/next" "$file"
    case $what in
    0)
        ask "$run_dir" "$work/cut" -f "$file" -n 600 &
        pid=$!
        wait_for 30 decoding 1 || fail "operation $i: nothing decodes"
        [ $((RANDOM % 2)) = 0 ] || kill_one
        kill -INT "$(pgrep -P $pid)" 2>/dev/null
        wait $pid
        cancelled=$((cancelled + 1))
        continue
        ;;
    1)
        kill_one
        wait_for 60 ready || fail "operation $i: it does not come back"
        ;;
    2)
        ask "$run_dir" "$work/out" -f "$file" -n 80 &
        pid=$!
        wait_for 30 decoding 1 2 || true # it may be over already
        kill_one
        wait $pid || fail "operation $i: a request was lost: $(cat "$work/out.err")"
        ask "$whole_run" "$work/wanted" --no-prefix-cache -f "$file" -n 80 || fail "operation $i: the oracle"
        [ "$(answer "$work/out")" = "$(answer "$work/wanted")" ] || fail "operation $i, killed within: another answer"
        wait_for 60 ready || fail "operation $i: it does not come back"
        continue
        ;;
    esac
    ask "$run_dir" "$work/out" -f "$file" -n $n || fail "operation $i: $(cat "$work/out.err")"
    ask "$whole_run" "$work/wanted" --no-prefix-cache -f "$file" -n $n || fail "operation $i: the oracle"
    [ "$(answer "$work/out")" = "$(answer "$work/wanted")" ] || fail "operation $i: another answer"
    reused=$((reused + $(field "$work/out" .prefix.reused_tokens)))
    drive=$((drive + $(field "$work/out" .prefix.from_drive_tokens)))
    if [ "$what" -ge 8 ]; then # a fork of what has ended: its answer is there, and only what is new is computed
        id=$(field "$work/out" .request_id) there=$(field "$work/out" '.prompt_tokens + .predicted_tokens')
        ask "$run_dir" "$work/after" --after "$id" -p " And then?" -n 8 || fail "operation $i, --after: $(cat "$work/after.err")"
        expect "operation $i: behind an answer" "$(field "$work/after" '.prompt_tokens - .prefix.computed_tokens')" $((there - 1))
        afters=$((afters + 1))
    fi
    size=$(du -bc "$work/store"/chunks.* | tail -n 1 | cut -f1)
    [ "$size" -le $((cap_mb << 20)) ] || fail "operation $i: the store has $size bytes"
done
echo "$((i - 1)) operations: $killed kills, $cancelled cancelled, $afters behind an answer; $reused tokens taken, $drive of them from the drive"
wait_for 60 ready || fail "not ready at the end"
expect "requests left" "$(status | jq '.requests | length')" 0
down || fail "down"
expect_nothing_left
finish
