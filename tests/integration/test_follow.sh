#!/usr/bin/env bash
# beta follows a drive that changes its speed while a request runs: 64 steps after the modelled flash went from 0.29 to 0.10 GB/s it is
# where it is in a request that had 0.10 GB/s from the start, and the tokens are the same. The pool lies in memory, the host's scoring is
# modelled too (cpu), and all rates are low for the bytes there are, so that what decides is the model and not what else runs on this
# machine. Steps are compared, not times. (The speeds of a SmartSSD, 2.9 and 1.0 GB/s: bench figure beta.)
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

steps=260
change_at=40
pools_in_memory # the two pipelines', which run beside each other
head -c 1000 "$text" >"$work/prompt"
# 8 KiB of K and V a token and layer, next to no weights: a step is its waits
"$bin/hill-mkmodel" --random --layers 2 --width 128 --heads 16 --kv-heads 16 --head-dim 128 --ffn 256 --vocab 512 --type f16 -s 3 -o "$work/model.gguf" || fail "mkmodel"
request=(-f "$work/prompt" -n "$steps" --temp 0 --ignore-eos --json)
slow=flash=0.10,score=1.2,cpu=0.1,dram=0
# "STEP BETA" now
state() {
    hillctl status --json | jq -r '"\(.running.predicted_tokens // 0) \(.profile.beta // 0)"'
}
# watch FILE: "STEP BETA" again and again into FILE until the request ($client) is over; at step change_at flash becomes 0.10 where $change
# says so, and FILE.changed has the step by which that was done
watch() {
    local now
    : >"$1"
    while kill -0 "$client" 2>/dev/null; do
        now=$(state)
        echo "$now" >>"$1"
        if [ -n "$change" ] && [ "${now% *}" -ge "$change_at" ]; then
            hillctl csd-model flash=0.10 >/dev/null || fail "csd-model"
            change=""
            now=$(state)
            echo "${now% *}" >"$1.changed"
        fi
        sleep 0.03
    done
    wait "$client" || fail "generate: $(tail -n 1 "$work/$name.err")"
}
# settled FILE STEP: the median beta from STEP on
settled() {
    awk -v from="$2" '$1 >= from {print $2}' "$1" | sort -g | awk '{v[NR] = $1} END {print NR ? v[int((NR + 1) / 2)] : 0}'
}
run_watched() { # NAME MODEL: with folders of its own; the code is the number of checks that failed
    name=$1 run_dir=$work/of.$1/run state_dir=$work/of.$1/state
    mkdir -p "$work/of.$1"
    up -m "$work/model.gguf" -c 1408 --alpha 0.05 --hot-mb 64 --csd "file:$pools/$1" --csd-model "$2" || fail "up"
    hillctl generate "${request[@]}" >"$work/$1" 2>"$work/$1.err" &
    client=$!
    watch "$work/$1.betas"
    down || fail "down"
    expect_nothing_left
    return "$failures"
}

change="" run_watched slow "$slow" >"$work/slow.log" 2>&1 &
beside=$!
change=yes
(run_watched changed "${slow/0.10/0.29}")
failures=$((failures + $?))
wait "$beside"
failures=$((failures + $?))
cat "$work/slow.log"
changed_at=$(cat "$work/changed.betas.changed" || echo 0)
expect "tokens" "$(field "$work/changed" '.tokens | length')" "$steps"
[ "$(field "$work/changed" '.tokens | @csv')" = "$(field "$work/slow" '.tokens | @csv')" ] || fail "the tokens are not those without the change"
expect "hashes" "$(field "$work/changed" '"\(.selection_hash) \(.logits_hash)"')" "$(field "$work/slow" '"\(.selection_hash) \(.logits_hash)"')"
expect "the change was in mid-request" "$(field "$work/changed" '"\(.csd_model.changes) \(.csd_model.flash)"')" "1 0.1"

from=$((changed_at + 64))
[ "$from" -lt $((steps - 20)) ] || fail "the change was only noticed at step $changed_at of $steps"
before=$(awk -v to="$change_at" '$1 >= 20 && $1 < to {b = $2} END {print b == "" ? "unread" : b}' "$work/changed.betas")
after=$(settled "$work/changed.betas" "$from")
wanted=$(settled "$work/slow.betas" "$from")
echo "beta before the change (by step $changed_at): $before; from step $from on: $after, with 0.10 GB/s from the start: $wanted"
expect "beta has gone up with it" "$(jq -n "$before > 0 and $after > 1.5 * $before")" true
expect "64 steps later it is where it belongs" "$(jq -n "($after / $wanted - 1 | fabs) < 0.15")" true
finish
