#!/usr/bin/env bash
# Each worker is killed while one request decodes and the prompt of another is computed, and in a prompt alone: who decodes goes
# on after the newest whole step, the prompt after its newest whole (layer, chunk) unit, with the tokens and hashes of an
# undisturbed run. What is damaged between the death and the new epoch is found: the request begins anew, with the same answer.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

model=$work/random.gguf
"$bin/hill-mkmodel" --random --layers 3 --heads 6 --kv-heads 2 --width 96 --head-dim 32 --ffn 160 \
    --vocab 512 --type f16 -s 7 -o "$model" || fail "mkmodel"
head -c 700 "$text" | tail -c 500 >"$work/prompt0"
head -c 5000 "$text" >"$work/prompt1" # some hundred units of some milliseconds
predict=(600 20)

ask() { # NUMBER OUTPUT
    local prompt=$work/prompt$1 out=$2
    "$hillinfer" generate --run-dir "$run_dir" -f "$prompt" -n "${predict[$1]}" --temp 0 --ignore-eos --json >"$out" 2>"$out.err"
}
answer() { jq -c '[.finish_reason, .tokens, .selection_hash, .logits_hash]' "$1" | md5sum; }
state_of() { status | jq -r '[.requests[] | "\(.predicted_tokens > 4) \(.predicted_tokens == 0 and .prefill_tokens_done > 40 and .prefill_tokens_done < 4000)"] | join(" ")'; }
in_answer() { [ "$(state_of)" = "true false" ]; }
in_prompt() { [ "$(state_of)" = "false true" ]; }
in_both() { [ "$(state_of)" = "true false false true" ]; }
attempts() { jq .recovery.attempts "$1"; }

# begun STATE NUMBERS COMMAND...: it is done while these requests are in that state; again, where an answer was there before
begun() {
    local state=$1 numbers=$2 try n requests once
    shift 2
    for try in 1 2 3 4 5; do
        requests=() once=""
        for n in $numbers; do
            [ ${#requests[@]} -eq 0 ] || until in_answer || ! kill -0 "${requests[0]}" 2>/dev/null; do :; done
            ask "$n" "$work/out$n" &
            requests+=($!)
        done
        until $state || ! kill -0 "${requests[@]}" 2>/dev/null; do :; done
        "$@"
        wait "${requests[@]}" || fail "$*: $(cat "$work"/out*.err)"
        for n in $numbers; do [ "$(attempts "$work/out$n")" != 1 ] || once=$n; done
        [ -n "$once" ] || return 0
        echo "again: an answer came before the death (try $try)"
    done
    fail "$*: every answer came before the death"
}

# went_on NAME NUMBER: the answer as undisturbed, at most a unit and a few steps were done again
went_on() {
    local out=$work/out$2
    expect "$1: answer $2" "$(answer "$out")" "${whole[$2]}"
    expect "$1: answer $2 went on" "$(jq -c '.recovery | [.attempts, .recoveries, .units_repeated <= '"$2"', .steps_repeated <= 8]' "$out")" "[2,1,true,true]"
}

# killed NAME WORKER: in mid-answer beside a prompt, and in a prompt alone
killed() {
    begun in_both "0 1" kill_worker "$2"
    went_on "$1, $2 killed" 0
    went_on "$1, $2 killed" 1
    begun in_prompt 1 kill_worker "$2"
    went_on "$1, $2 killed alone" 1
}

# damage FILE AT BYTES: other bytes there
damage() { head -c "$3" /dev/zero | tr '\0' '\245' | dd of="$1" bs=1 seek="$2" conv=notrunc status=none; }

# spoil_and_kill COMMAND...: the scorer is stopped, this is done, and it dies
spoil_and_kill() {
    local gpu_worker
    gpu_worker=$(worker_pid gpu_worker)
    signal_worker STOP gpu_worker # nothing of it is used meanwhile
    signal_worker STOP cpu_scorer
    "$@"
    kill_worker cpu_scorer
    kill -CONT "$gpu_worker" 2>/dev/null # it may have been killed as well
}

# spoilt NAME COMMAND...: this is done before the next epoch; the request begins anew
spoilt() {
    local name=$1
    shift
    begun in_answer 0 spoil_and_kill "$@"
    expect "$name: the answer" "$(answer "$work/out0")" "${whole[0]}"
    expect "$name: began anew" "$(jq -c '.recovery | [.attempts > 1, .units_repeated > 0]' "$work/out0")" "[true,true]"
}

hot_segment() { find /dev/shm -name "$(segments | tr ' ' '\n' | grep -- '-hot$')"; }
spoil_words() { # the first location words of each sequence: words of 3 layers of 8192 tokens come first
    for n in 0 1 2; do damage "$(hot_segment)" $((4096 + 192 + n * 3 * 8192 * 4)) 64; done
}
spoil_entries() { # the segment's end, where entries lie; a step under way would read them, and send its token
    local bytes
    kill -KILL "$gpu_worker" # of spoil_and_kill, which has stopped it
    bytes=$(($(stat -c %s "$(hot_segment)") * 3 / 4))
    head -c "$bytes" /dev/zero | dd of="$(hot_segment)" bs=1M oflag=seek_bytes seek=$((bytes / 3)) conv=notrunc status=none
}
spoil_pool() { damage "$work/pool" 64 4000; } # its superblock

for drive in none file; do
    options=(--csd none)
    workers="gpu_worker cpu_scorer"
    [ $drive = none ] || options=(--csd "file:$work/pool" --beta 0.25 --cold-mb 64)
    [ $drive = none ] || workers="$workers csd_agent"
    up -m "$model" -c 8192 -b 64 -np 3 --alpha 0.1 "${options[@]}" || fail "up $drive"
    for n in 0 1; do
        ask $n "$work/out" || fail "undisturbed: $(cat "$work/out.err")"
        whole[n]=$(answer "$work/out")
        expect "$drive: undisturbed" "$(jq -c '.recovery' "$work/out")" '{"attempts":1,"recoveries":0,"steps_repeated":0,"units_repeated":0}'
    done
    for worker in $workers; do killed $drive "$worker"; done
    if [ $drive = none ]; then
        spoilt "damaged words" spoil_words
        spoilt "damaged entries" spoil_entries
    else
        spoilt "damaged pool" spoil_pool
    fi
    down || fail "down $drive"
done
expect_nothing_left
finish
