#!/usr/bin/env bash
# M_0 is a hard cap on what the scorer really uses: its own pages and those of the segments it keeps stay within
# M_0 + 32 MiB (libraries, stacks, buffers of the control plane) in a run whose KV needs four times M_0.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

slack=$((32 << 20))
# 20 KiB of KV and digests a token; the shape of test_follow, so that kernels are built once
"$bin/hill-mkmodel" --random --layers 2 --width 128 --heads 16 --kv-heads 16 --head-dim 128 --ffn 256 --vocab 512 --type f16 -s 3 -o "$work/model.gguf" || fail "mkmodel"
for i in 0 1 2 3; do
    tail -c +$((1 + 1300 * i)) "$text" | head -c 1300 >"$work/prompt$i"
    printf '\nThis License' >>"$work/prompt$i"
done
{
    head -c 4500 "$text"
    printf '\nThis License'
} >"$work/prompt"


# Bytes of a process that are its own, and of the hot and staging segments it has mapped: "OWN SEGMENTS".
measured() {
    awk '/^[0-9a-f]+-[0-9a-f]+ / {ours = $0 ~ /\/dev\/shm\/hill-.*-(hot|staging)/}
         /^Rss:/ && ours {shared += $2}
         FILENAME ~ /status$/ && /^RssAnon:/ {own = $2}
         END {printf "%d %d\n", own * 1024, shared * 1024}' "/proc/$1/smaps" "/proc/$1/status"
}

# Take a measurement into most and most_own when it is the largest so far.
measure() {
    local own shared
    read -r own shared < <(measured "$1" 2>/dev/null) || return 1
    samples=$((samples + 1))
    [ $((own + shared)) -gt "$most" ] || return 0
    most=$((own + shared))
    most_own=$own
}

# check NAME MIB "PROMPT..." ARGUMENTS...: the most that the scorer uses while these run at once
check() {
    local name=$1 cap=$(($2 * 1048576)) prompts=$3 most=0 most_own=0 samples=0 pid prompt need jobs=()
    shift 3
    up -m "$work/model.gguf" -c 5120 --budget 256 --beta 0.25 --hot-mb "$((cap >> 20))" "$@" || {
        fail "$name: up"
        return
    }
    pid=$(worker_pid cpu_scorer)
    expect "$name: the cap that is reported" "$(status | jq .hot_cap_bytes)" "$cap"
    rm -f "$work"/out*
    for prompt in $prompts; do
        "$bin/hillctl" generate -f "$work/$prompt" -n 64 --temp 0 --ignore-eos --json --run-dir "$run_dir" >"$work/out-$prompt" 2>"$work/err-$prompt" &
        jobs+=($!)
    done
    while [ -n "$(jobs -r)" ]; do
        measure "$pid"
        sleep 0.1
    done
    for prompt in "${jobs[@]}"; do wait "$prompt" || fail "$name: generate: $(cat "$work"/err-*)"; done
    measure "$pid"
    jq -s '{hot: map(.tiers.hot.bytes) | add, cold: map(.tiers.cold.bytes) | add, cap: .[0].tiers.hot.cap_bytes,
            hot_tokens: map(.tiers.hot.tokens) | add, cold_tokens: map(.tiers.cold.tokens) | add}' "$work"/out-* >"$work/sum"
    need=$(field "$work/sum" '.hot + .cold')
    echo "$name: M_0 $cap, KV and digests $need bytes; the scorer at most $most bytes in $samples samples: own $most_own, segments $((most - most_own)); hot $(field "$work/sum" .hot), cold $(field "$work/sum" .cold)"
    [ "$samples" -ge 3 ] || fail "$name: only $samples samples: the run is too short to measure"
    [ "$need" -ge $((4 * cap)) ] || fail "$name: $need bytes of KV are less than four times M_0"
    [ "$most" -le $((cap + slack)) ] || fail "$name: the scorer uses $most bytes, more than M_0 + 32 MiB = $((cap + slack))"
    [ "$most" -ge $((cap / 2)) ] || fail "$name: $most bytes are less than half of M_0: the measurement misses something"
    expect "$name: hot entries within M_0" "$(field "$work/sum" '.hot <= .cap')" true
    # entries of 8 KiB and digests of 16 * 129 bytes, in each of two layers
    expect "$name: bytes are those of the entries" "$(field "$work/sum" '.hot == .hot_tokens * 10256 and .cold == .cold_tokens * 10256 and .hot_tokens + .cold_tokens > 0')" true
    down >/dev/null || fail "$name: down"
}

check "one sequence" 20 prompt
check "one sequence, placed by bkp" 21 prompt --placement bkp
check "four at once" 26 "prompt0 prompt1 prompt2 prompt3" -np 4
expect_nothing_left
finish
