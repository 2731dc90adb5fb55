#!/usr/bin/env bash
# Each worker is killed while requests decode: they go on after their newest whole step, with the
# tokens and hashes of an undisturbed run, and no prompt is computed again. What is damaged between
# the death and the new epoch is found: the request begins anew, with the same answer.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

model=$work/random.gguf
"$bin/hill-mkmodel" --random --layers 3 --heads 6 --kv-heads 2 --width 96 --head-dim 32 --ffn 160 \
    --vocab 512 --type f16 -s 7 -o "$model" || fail "mkmodel"
for i in 0 1 2; do head -c $((700 + i * 90)) "$text" | tail -c $((500 + i * 90)) >"$work/prompt$i"; done

ask() { # NUMBER OUTPUT ARGUMENTS...
    local prompt=$work/prompt$1 out=$2
    shift 2
    "$hillinfer" generate --run-dir "$run_dir" -f "$prompt" -n 1200 --temp 0 --ignore-eos --json "$@" >"$out" 2>"$out.err"
}
answer() { jq -c '[.finish_reason, .tokens, .selection_hash, .logits_hash]' "$1" | md5sum; }
decoding() { status | jq -e "[.requests[] | select(.predicted_tokens > $2)] | length >= $1" >/dev/null; }

# begun COMMAND...: it is done while a request decodes; again, where the answer was there before
begun() {
    local try request
    for try in 1 2 3 4 5; do
        ask 0 "$work/out" &
        request=$!
        until decoding 1 4 || ! kill -0 "$request" 2>/dev/null; do :; done
        "$@"
        wait "$request" || fail "$*: $(cat "$work/out.err")"
        [ "$(jq .recovery.attempts "$work/out")" = 1 ] || return 0
        echo "again: the answer came before the death (try $try)"
    done
    fail "$*: every answer came before the death"
}

kill_worker() { kill -KILL "$(worker_pid "$1")"; }

# killed NAME WORKER: in mid-answer; the answer as undisturbed
killed() {
    begun kill_worker "$2"
    expect "$1, $2 killed: the answer" "$(answer "$work/out")" "$whole"
    expect "$1, $2 killed: went on" "$(jq -c '.recovery | [.attempts, .recoveries, .units_repeated]' "$work/out")" "[2,1,0]"
    [ "$(jq .recovery.steps_repeated "$work/out")" -le 8 ] || fail "$1, $2 killed: $(jq -c .recovery "$work/out")"
}

# damage FILE AT BYTES: other bytes there
damage() { head -c "$3" /dev/zero | tr '\0' '\245' | dd of="$1" bs=1 seek="$2" conv=notrunc status=none; }

# spoil_and_kill COMMAND...: the scorer is stopped, this is done, and it dies
spoil_and_kill() {
    local gpu_worker scorer
    gpu_worker=$(worker_pid gpu_worker) scorer=$(worker_pid cpu_scorer)
    kill -STOP "$gpu_worker" "$scorer" # nothing of it is used meanwhile
    "$@"
    kill -KILL "$scorer"
    kill -CONT "$gpu_worker"
}

# spoilt NAME COMMAND...: this is done before the next epoch; the request begins anew
spoilt() {
    local name=$1
    shift
    begun spoil_and_kill "$@"
    expect "$name: the answer" "$(answer "$work/out")" "$whole"
    expect "$name: began anew" "$(jq -c '.recovery | [.attempts > 1, .units_repeated > 0]' "$work/out")" "[true,true]"
}

hot_segment() { find /dev/shm -name "$(segments | tr ' ' '\n' | grep -- '-hot$')"; }
spoil_words() { damage "$(hot_segment)" $((4096 + 192)) 64; } # the first location words
spoil_entries() { # the last megabyte of the segment, where entries lie, as far as they are there
    local bytes
    bytes=$(stat -c %s "$(hot_segment)")
    head -c $((bytes / 2)) /dev/zero | dd of="$(hot_segment)" bs=1M oflag=seek_bytes seek=$((bytes - bytes / 2)) conv=notrunc status=none
}
spoil_pool() { damage "$work/pool" 64 4000; } # its superblock

for drive in none file; do
    options=(--csd none)
    workers="gpu_worker cpu_scorer"
    [ $drive = none ] || options=(--csd "file:$work/pool" --beta 0.25 --cold-mb 64)
    [ $drive = none ] || workers="$workers csd_agent"
    up -m "$model" -c 2048 -np 3 --alpha 0.1 "${options[@]}" || fail "up $drive"
    ask 0 "$work/out" || fail "undisturbed: $(cat "$work/out.err")"
    whole=$(answer "$work/out")
    expect "$drive: undisturbed" "$(jq -c '.recovery' "$work/out")" '{"attempts":1,"recoveries":0,"steps_repeated":0,"units_repeated":0}'
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
