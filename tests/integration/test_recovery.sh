#!/usr/bin/env bash
# Each worker is killed while one request decodes and the prompt of another is computed, and in a prompt alone: who decodes goes
# on after the newest whole step, the prompt after its newest whole (layer, chunk) unit, with the tokens and hashes of an
# undisturbed run. What is damaged is found, between a death and the new epoch and while the answer is made: single entries are
# made again, and the request goes on; after more damage it begins anew, with the same answer.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
requests_last 5

model=$work/random.gguf
small_model "$model" -s 7
head -c 700 "$text" | tail -c 500 >"$work/prompt0"
head -c 5000 "$text" >"$work/prompt1" # some hundred units of some milliseconds
predict=(400 20)

ask() { # NUMBER OUTPUT
    local prompt=$work/prompt$1 out=$2
    "$hillinfer" generate --run-dir "$run_dir" -f "$prompt" -n "${predict[$1]}" --temp 0 --ignore-eos --json >"$out" 2>"$out.err"
}
answer() { jq -c '[.finish_reason, .tokens, .selection_hash, .logits_hash]' "$1" | md5sum; }
state_of() { status | jq -r '[.requests[] | "\(.predicted_tokens > 4) \(.predicted_tokens == 0 and .prefill_tokens_done > 40 and .prefill_tokens_done < 4000)"] | join(" ")'; }
in_answer() { [ "$(state_of)" = "true false" ]; }
in_prompt() { [ "$(state_of)" = "false true" ]; }
in_both() { [ "$(state_of)" = "true false false true" ]; }
restarts() { status | jq '[.workers[].restarts] | add'; }
restarted() { ready && [ "$(restarts)" -gt "$1" ]; } # DEATHS before
attempts() { jq .recovery.attempts "$1"; }

# begun STATE NUMBERS COMMAND...: it is done while these requests are in that state; again, where an answer was there before
begun() {
    local state=$1 numbers=$2 try n requests once deaths
    shift 2
    for ((try = 1; try <= 15; try++)); do
        requests=() once="" deaths=$(restarts)
        for n in $numbers; do
            [ ${#requests[@]} -eq 0 ] || until in_answer || ! kill -0 "${requests[0]}" 2>/dev/null; do sleep 0.02; done
            ask "$n" "$work/out$n" &
            requests+=($!)
        done
        until $state || ! kill -0 "${requests[@]}" 2>/dev/null; do sleep 0.02; done
        "$@"
        wait "${requests[@]}" || fail "$*: $(cat "$work"/out*.err)"
        for n in $numbers; do [ "$(attempts "$work/out$n")" != 1 ] || once=$n; done
        [ -n "$once" ] || return 0
        echo "again: an answer came before the death (try $try)"
        wait_for 20 restarted "$deaths" # or the next request would be the one that the death meets
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
    wait_for 20 has_segment || fail "no pipeline with a hot segment" # where an answer came before, the last death may not be over
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

# Of the newest epoch: while a worker is started again there may be two.
hot_segment() { find /dev/shm -name "$(segments | tr ' ' '\n' | grep -- '-hot$' | sort -t- -k3,3n | tail -n 1)"; }
has_segment() { ready && [ -n "$(hot_segment)" ]; }
spoil_words() { # of each sequence: words of 3 layers of 8192 tokens come first
    for n in 0 1 2; do damage "$(hot_segment)" $((4096 + 192 + n * 3 * 8192 * 4)) $((4 * $1)); done
}
spoil_entries() { # the segment's end, where entries lie; a step under way would read them, and send its token
    local bytes
    kill -KILL "$gpu_worker" # of spoil_and_kill, which has stopped it
    bytes=$(($(stat -c %s "$(hot_segment)") * 3 / 4))
    head -c "$bytes" /dev/zero | dd of="$(hot_segment)" bs=1M oflag=seek_bytes seek=$((bytes / 3)) conv=notrunc status=none
}
# --- single entries. The hot segment's header says where entries lie; a word: two bits of tier (1 hot, 2 cold), and a slot. All of
# it is quick: who is stopped for long is taken for hung
number_at() { od -An -t "u$3" -j "$2" -N "$3" "$1" | tr -d ' '; } # FILE AT BYTES
entry_bytes=256                                                    # 2 heads of 32 values, keys and values, FP16
spoil_entry() {                                                    # FILE WHERE-ENTRIES-BEGIN SLOT
    printf '\245' | dd of="$1" bs=1 seek=$(($2 + $3 * entry_bytes + 7)) conv=notrunc status=none
}
words() { # SEQUENCE LAYER FIRST COUNT: the location words of these tokens in $segment
    od -An -v -t u4 -j $((4096 + 192 + (($1 * 3 + $2) * 8192 + $3) * 4)) -N $((4 * $4)) "$segment"
}
# Of each sequence that has them, the entries of tokens FIRST .. FIRST + COUNT - 1 in this layer, wherever they lie. The pool's file
# ends with the entries of all stripes.
spoil_some() { # LAYER FIRST COUNT
    local segment sequence word slot each=$(((stripe_slots * entry_bytes + 4095) / 4096 * 4096))
    segment=$(hot_segment)
    local hot=$((4096 + $(number_at "$segment" 4216 8)))
    for sequence in 0 1 2; do
        for word in $(words "$sequence" "$1" "$2" "$3"); do
            slot=$((word & 0x3fffffff))
            case $((word >> 30)) in
            1) spoil_entry "$segment" "$hot" "$slot" ;;
            2) spoil_entry "$pools/pool" $((pool_bytes - (n_stripes - slot / stripe_slots) * each)) $((slot % stripe_slots)) ;;
            esac
        done
    done
}
spoil_prompt_entries() { # a step under way would read them, and send its token
    kill -KILL "$gpu_worker"
    spoil_some 0 3 1 && spoil_some 2 3 1 && spoil_some 1 100 1 && spoil_some 2 0 1
}
# Of steps that are not noted any more, the first token that lies where it is to lie: $tier is 1 (hot) or 2 (cold).
find_decoded_token() { # sets $decoded_token
    local sequence word n segment first=$((prompt_tokens + 2))
    segment=$(hot_segment)
    for sequence in 0 1 2; do
        n=0
        for word in $(words "$sequence" 1 "$first" 40); do
            [ $((word >> 30)) != "$tier" ] || { decoded_token=$((first + n)) && return; }
            n=$((n + 1))
        done
    done
    return 1
}
# Tokens become cold behind the steps.
decoded_there() { decoding 1 "$after" && find_decoded_token; } # AFTER tokens of the answer
spoil_decoded_entry() {
    kill -KILL "$gpu_worker"
    find_decoded_token && spoil_some 1 "$decoded_token" 1 && spoilt_tier=$tier
}
spoil_many_entries() {
    kill -KILL "$gpu_worker"
    spoil_some 1 40 20
    sync "$pools/pool"
}

# mended NAME STATE_OF_RECOVERY STATE COMMAND...: a request in this state goes on, and no unit of its prompt was computed again
mended() {
    local name=$1 expected=$2 state=$3
    shift 3
    begun "$state" 0 "$@"
    expect "$name: the answer" "$(answer "$work/out0")" "${whole[0]}"
    expect "$name: made again alone: $(jq -c .recovery "$work/out0")" "$(jq -c '.recovery | [.recoveries, .units_repeated, '"$expected"']' "$work/out0")" "[1,0,true]"
}

spoil_pool() { damage "$pools/pool" 64 4000; } # its superblock

# --- how the pool is laid out
pools_in_memory
up -m "$model" -c 8192 -b 64 -np 3 --alpha 0.1 --csd "file:$pools/pool" --beta 0.25 --cold-mb 64 || fail "up, for its pool"
down || fail "down, for its pool"
read -r n_stripes stripe_slots <<<"$("$bin/hill-fsck-pool" "$pools/pool" | sed -n 's/.* \([0-9]*\) stripes of \([0-9]*\) slots.*/\1 \2/p')"
pool_bytes=$(stat -c %s "$pools/pool")
rm "$pools/pool"

for drive in none file; do
    options=(--csd none)
    workers="gpu_worker cpu_scorer"
    [ $drive = none ] || options=(--csd "file:$pools/pool" --beta 0.25 --cold-mb 64)
    [ $drive = none ] || workers="$workers csd_agent"
    up -m "$model" -c 8192 -b 64 -np 3 --alpha 0.1 "${options[@]}" || fail "up $drive"
    for n in 0 1; do
        ask $n "$work/out" || fail "undisturbed: $(cat "$work/out.err")"
        whole[n]=$(answer "$work/out")
        [ $n = 1 ] || prompt_tokens=$(jq .prompt_tokens "$work/out")
        expect "$drive: undisturbed" "$(jq -c '.recovery' "$work/out")" '{"attempts":1,"recoveries":0,"steps_repeated":0,"units_repeated":0,"entries_repeated":0}'
    done
    for worker in $workers; do killed $drive "$worker"; done
    mended "$drive: entries of the prompt" ".entries_repeated == 4 and .steps_repeated <= 8" "decoding 1 40" spoil_and_kill spoil_prompt_entries
    tier=1 after=120 spoilt_tier=none
    [ $drive = none ] || tier=2
    mended "$drive: a decoded entry" ".entries_repeated == 0 and .steps_repeated > 30" decoded_there spoil_and_kill spoil_decoded_entry
    expect "$drive: the decoded entry was hot (1) or cold (2)" "$spoilt_tier" "$tier"
    if [ $drive = none ]; then
        mended "damaged words" ".entries_repeated == 16 and .steps_repeated <= 8" "decoding 1 40" spoil_and_kill spoil_words 16
        spoilt "many damaged words" spoil_words 100
        spoilt "damaged entries" spoil_entries
    else
        mended "entries of a stripe" ".entries_repeated == 20 and .steps_repeated <= 8" "decoding 1 40" spoil_and_kill spoil_many_entries
        spoilt "damaged pool" spoil_pool
    fi
    down || fail "down $drive"
done

# --- a request that waits behind another's prompt is kept by no lost worker, however long that prompt takes: a death after more
# than --recovery-timeout does not end it
requests_last 70
up -m "$model" -c 8192 -b 64 -np 2 --alpha 0.1 --csd none --recovery-timeout 6 || fail "up for a prompt in the way"
has_two() { [ "$(status | jq '.requests | length')" = 2 ]; }
ask 1 "$work/out1" &
requests=($!)
wait_for 20 in_prompt || fail "no prompt is computed"
ask 0 "$work/out0" &
requests+=($!)
wait_for 20 has_two || fail "no second request: $(status)"
for death in 1 2; do
    deaths=$(restarts)
    kill_worker gpu_worker
    wait_for 20 restarted "$deaths" || fail "death $death: no new GPU worker"
    [ $death = 2 ] || sleep 6.2
done
expect "the second request is not begun yet" "$(status | jq -c '[.requests[].predicted_tokens]')" "[0,0]"
wait "${requests[@]}" || fail "behind a prompt: $(cat "$work"/out*.err)"
for n in 0 1; do expect "behind a prompt: answer $n" "$(answer "$work/out$n")" "${whole[n]}"; done
down || fail "down after a prompt in the way"
expect_nothing_left
finish
