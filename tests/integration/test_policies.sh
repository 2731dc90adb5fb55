#!/usr/bin/env bash
# The policies that are compared with: each selects the same wherever the entries lie, moves the bytes that its formula
# (kv/policy_cost.h) says, attends to everything when its budget is everything, and survives a worker's death.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
requests_last 5

head -c 2400 "$text" >"$work/licence"
layers=3 key_bytes=128 # 2 KV heads of 32, FP16
small_model "$work/random.gguf"
n=16 model=$work/random.gguf
run() { # OUTPUT ARGUMENTS...
    local out=$1
    shift
    run_json "$out" -m "$model" -c 6000 -f "$work/licence" -n $n --temp 0 --ignore-eos "$@" || fail "$*: $(cat "$out.err")"
}

# within NAME MEASURED WANTED LOW HIGH (percent)
within() {
    if [ $(($2 * 100)) -ge $(($3 * $4)) ] && [ $(($2 * 100)) -le $(($3 * $5)) ]; then
        pass "$1: $2 bytes, by the formula $3"
    else
        fail "$1: $2 bytes, by the formula $3"
    fi
}

# cold_tokens PROMPT BETA: of a layer, summed over the queries (one a decoded token but the first)
cold_tokens() {
    awk -v p="$1" -v b="$2" -v n=$n 'BEGIN {
        for (i = 0; i < n - 1; i++) {
            all = p + i; hot = all * b / (1 + b); hot = hot > int(hot) ? int(hot) + 1 : hot
            sum += all - hot
        }
        print sum }'
}

# leoam_bytes RUN KEY-BYTES: keys of cold candidates, what lies between in the same runs of pages, and a page more a run
# where chunks of 16 tokens do not begin at a page's border: the first cold token, the fifth, does
leoam_bytes() {
    jq -r --argjson key "$2" '.candidates as $c | ([range(256) | select(((. * 16 + 12) * $key) % 4096 != 0)] | length) as $off
        | ($c.cold + $c.between) * $key + $c.runs * 4096 * $off / 256 | floor' "$1"
}

# expect_candidates NAME RUN: twice as many tokens as can be selected freely (alpha 0.1, 4 sinks, a window of 32), in whole chunks
expect_candidates() {
    local least
    least=$(awk -v p="$prompt" -v n=$n 'BEGIN {
        for (i = 0; i < n - 1; i++) { k = (p + i) / 10; k = k > int(k) ? int(k) + 1 : k; sum += 2 * (k - 36) }
        print sum }')
    expect "$1: queries' candidates" "$(jq -r --argjson least $((least * layers)) --argjson queries $(((n - 1) * layers)) \
        '.candidates | .hot + .cold | if . >= $least and . < $least + 32 * $queries then "enough" else . end' "$2")" enough
}

run "$work/full" --policy full --csd none
prompt=$(field "$work/full" .prompt_tokens)
for policy in h2o oracle prefetch leoam; do
    first=""
    for placement in "--csd none" "--beta 2 --placement recency" "--beta 0.25 --placement recency" "--beta 0.25 --placement bkp" "--beta 0.25 --placement recency --simd reference"; do
        # shellcheck disable=SC2086  # words on purpose
        run "$work/out" --policy $policy --alpha 0.1 $placement
        hashes=$(field "$work/out" '"\(.selection_hash) \(.logits_hash)"')
        [ -n "$first" ] || first=$hashes
        expect "$policy, $placement: hashes" "$hashes" "$first"
        expect "$policy, $placement: score bytes over the link" "$(field "$work/out" .bytes.link_score)" 0
        keys=$(field "$work/out" .bytes.link_key)
        read -ra words <<<"$placement"
        case $placement in
        *none*) expect "$policy, $placement: keys over the link" "$keys" 0 ;;
        *recency*)
            wanted=$(($(cold_tokens "$prompt" "${words[1]}") * layers * key_bytes))
            [ $policy != prefetch ] || wanted=$((wanted / 2)) # half the columns of each head
            [ $policy != leoam ] || wanted=$(leoam_bytes "$work/out" "$key_bytes")
            within "$policy, $placement: keys over the link" "$keys" "$wanted" 95 105
            [ $policy != leoam ] || expect_candidates "$policy, $placement" "$work/out"
            expect "$policy, $placement: flash reads but keys and entries" "$(field "$work/out" '.bytes.flash_read - .bytes.link_key - .bytes.link_kv')" 0
            ;;
        *) [ "$keys" -gt 0 ] || fail "$policy, $placement: no keys over the link" ;;
        esac
    done
    if [ $policy = h2o ]; then # what the prompt attends to is summed in an order that does not know chunks
        run "$work/out" --policy h2o --alpha 0.1 --csd none --batch-size 50
        expect "h2o, prompt in chunks of 50: hashes" "$(field "$work/out" '"\(.selection_hash) \(.logits_hash)"')" "$first"
    fi
    [ $policy != prefetch ] || expect "prefetch guesses" "$(field "$work/out" .speculate)" on
    run "$work/all" --policy $policy --alpha 1 --beta 0.25
    expect "$policy, all tokens: the tokens of full" "$(field "$work/all" .tokens)" "$(field "$work/full" .tokens)"
done

# host-digest: the selection of hillinfer, and the digests of cold tokens over the link but for those that are cached
run "$work/out" --policy hillinfer --alpha 0.1 --beta 0.25 --placement recency
hillinfers=$(hashes "$work/out")
digest_bytes=68 # 2 KV heads: 32 dimensions, an exponent, and its share of the group's padding
for setting in "--beta 0.25 --placement recency" "--beta 0.25 --placement recency --digest-mb 0.12" \
    "--beta 0.25 --placement bkp --digest-mb 0.1 --speculate verify" "--beta 0.25 --placement bkp --digest-mb 4 --hot-mb 6"; do
    # shellcheck disable=SC2086  # words on purpose
    run "$work/out" --policy host-digest --alpha 0.1 $setting
    expect "host-digest, $setting: hashes" "$(hashes "$work/out")" "$hillinfers"
    expect "host-digest, $setting: score bytes over the link" "$(field "$work/out" .bytes.link_score)" 0
    expect "host-digest, $setting: the host's threads scored" "$(field "$work/out" '.stages.score_cpu_ms > 0')" true
    keys=$(field "$work/out" .bytes.link_key)
    case $setting in
    *4*) expect "host-digest, $setting: digests over the link" "$keys" 0 ;;
    *verify*) [ "$keys" -gt 0 ] || fail "host-digest, $setting: no digests over the link" ;;
    *)
        wanted=$(($(cold_tokens "$prompt" 0.25) * layers * digest_bytes))
        expect "host-digest, $setting: flash reads but digests and entries" "$(field "$work/out" '.bytes.flash_read - .bytes.link_key - .bytes.link_kv')" 0
        case $setting in # whole groups in whole pages; the cache holds 120 KiB of 384
        *0.12) within "host-digest, $setting: digests over the link" "$keys" "$wanted" 66 76 ;;
        *) within "host-digest, $setting: digests over the link" "$keys" "$wanted" 100 110 ;;
        esac
        ;;
    esac
done
# hillinfer's drive scores what the host has no digests of: a score has 4 bytes
for mb in 0.12 4; do
    run "$work/out" --policy hillinfer --alpha 0.1 --beta 0.25 --placement recency --digest-mb $mb --hot-mb 6
    expect "hillinfer, --digest-mb $mb: hashes" "$(hashes "$work/out")" "$hillinfers"
    scores=$(field "$work/out" .bytes.link_score)
    case $mb in
    4) expect "hillinfer, --digest-mb $mb: scores over the link" "$scores" 0 ;;
    *) within "hillinfer, --digest-mb $mb: scores over the link" "$scores" $(($(cold_tokens "$prompt" 0.25) * layers * 4)) 66 76 ;;
    esac
done

# M_0 has room for three quarters of the entries, and the drive scores slowly: digests of cold tokens take the place of entries
slowly="--csd-model flash=2.9,score=0.2,dram=0"
for digests in 0 auto; do
    # shellcheck disable=SC2086  # words on purpose
    run "$work/out" --policy hillinfer --alpha 0.1 --beta auto --placement recency --hot-mb 2.6 --digest-mb $digests $slowly
    expect "--digest-mb $digests: hashes" "$(hashes "$work/out")" "$hillinfers"
    expect "--digest-mb $digests: within M_0" "$(field "$work/out" '.tiers.hot.bytes <= .tiers.hot.cap_bytes and .tiers.hot.tokens > 0')" true
    field "$work/out" '"\(.bytes.link_score) \(.tiers.cold.near) \(.tiers.hot.tokens) \(.tiers.cold.tokens)"' >"$work/$digests"
done
read -r scores near hot cold <"$work/0"
read -r scores_auto near_auto hot_auto cold_auto <"$work/auto"
echo "scores over the link, scored by digests in M_0, hot, cold: $scores $near $hot $cold; with auto: $scores_auto $near_auto $hot_auto $cold_auto"
expect "--digest-mb 0: all cold tokens are the drive's" "$near" 0
expect "--digest-mb auto: fewer entries are hot" "$((hot_auto < hot && hot_auto + cold_auto == hot + cold))" 1
expect "--digest-mb auto: the host scores most of the cold ones" "$((near_auto > 0 && scores_auto < scores / 2))" 1

# leoam where a chunk is two pages and more; the second one's entries are whole pages too, so that flash reads nothing else. The wired
# model, and the shape of test_follow and test_memory: their kernels are built once
layers=2
head -c 1000 "$text" >"$work/licence"
prompt=$(($(wc -c <"$work/licence") + 1))
"$bin/hill-mkmodel" -o "$work/wired.gguf" 2>/dev/null || fail "mkmodel"
"$bin/hill-mkmodel" --random --layers $layers --width 128 --heads 16 --kv-heads 16 --head-dim 128 --ffn 256 --vocab 512 --type f16 -s 12 -o "$work/wide.gguf" || fail "mkmodel"
for shape in "wired 512" "wide 4096"; do
    model=$work/${shape% *}.gguf key_bytes=${shape#* }
    run "$work/out" --policy leoam --alpha 0.1 --beta 0.25 --placement recency
    wanted=$(leoam_bytes "$work/out" "$key_bytes")
    within "leoam, keys of $key_bytes bytes: over the link" "$(field "$work/out" .bytes.link_key)" "$wanted" 95 105
    expect_candidates "leoam, keys of $key_bytes bytes" "$work/out"
    flash=$(field "$work/out" .bytes.flash_read)
    expect "leoam, keys of $key_bytes bytes: flash reads but keys and entries" "$(field "$work/out" ".bytes | $flash - .link_key - .link_kv")" 0
    [ "$key_bytes" != 4096 ] || within "leoam, keys of $key_bytes bytes: flash reads" "$flash" \
        $((wanted + $(field "$work/out" .tiers.cold.hits) * 2 * key_bytes)) 95 105
done
model=$work/random.gguf
head -c 2400 "$text" >"$work/licence"


# a killed worker: the request goes on after its newest whole step, with what its policy has kept beside the entries
requests_last 8
n=350
ask() {
    "$bin/hillctl" generate --json --run-dir "$run_dir" -f "$work/licence" -n $n --temp 0 --ignore-eos >"$work/out" 2>"$work/err"
}
for policy in oracle prefetch leoam h2o; do # the last one's pipeline stays
    up -m "$work/random.gguf" -c 6000 --policy $policy --alpha 0.1 --beta 0.25 || fail "up"
    ask || fail "$policy: $(cat "$work/err")"
    wanted=$(hashes "$work/out")
    workers="cpu_scorer"
    [ $policy != h2o ] || workers="cpu_scorer csd_agent gpu_worker"
    for worker in $workers; do
        ask &
        client=$!
        wait_for 20 decoding 1 20 || fail "the request does not run"
        kill_worker "$worker"
        wait $client || fail "$policy with $worker killed: $(cat "$work/err")"
        [ "$(field "$work/out" ".restarts.$worker")" -ge 1 ] || fail "$worker was killed too late"
        expect "$policy with $worker killed: hashes" "$(hashes "$work/out")" "$wanted"
        expect "$policy with $worker killed: it went on" "$(jq -c '.recovery | [.recoveries, .units_repeated, .steps_repeated <= 8]' "$work/out")" "[1,0,true]"
    done
    [ $policy = h2o ] || down || fail "down"
done

# what a pipeline is not set up for is refused, and it goes on
"$bin/hillctl" detach --run-dir "$run_dir" >/dev/null 2>&1 || fail "detach"
"$bin/hillctl" generate --json --run-dir "$run_dir" -f "$work/licence" -n $n --temp 0 --ignore-eos >"$work/out" 2>"$work/err" || fail "h2o detached: $(cat "$work/err")"
expect "h2o detached: hashes" "$(field "$work/out" '"\(.selection_hash) \(.logits_hash)"')" "$wanted"
"$bin/hillctl" attach --run-dir "$run_dir" >/dev/null 2>&1 || fail "attach"
"$bin/hillctl" generate --json --run-dir "$run_dir" -f "$work/licence" -n $n --temp 0 --ignore-eos >"$work/out" 2>"$work/err" || fail "h2o attached again: $(cat "$work/err")"
expect "h2o attached again: hashes" "$(field "$work/out" '"\(.selection_hash) \(.logits_hash)"')" "$wanted"
"$bin/hillctl" profile --run-dir "$run_dir" >"$work/out" 2>&1 && fail "profile of h2o: $(cat "$work/out")"
grep -q "nothing to balance" "$work/out" || fail "profile of h2o: $(cat "$work/out")"
down

# the same of host-digest, whose cache begins anew
run "$work/out" --policy hillinfer --alpha 0.1 --beta 0.25
wanted=$(hashes "$work/out")
up -m "$work/random.gguf" -c 6000 --policy host-digest --digest-mb 0.2 --alpha 0.1 --beta 0.25 || fail "up"
"$bin/hillctl" generate --json --run-dir "$run_dir" -f "$work/licence" -n $n --temp 0 --ignore-eos >"$work/out" 2>"$work/err" &
client=$!
wait_for 20 decoding 1 20 || fail "the request does not run"
kill_worker csd_agent
wait $client || fail "host-digest with its agent killed: $(cat "$work/err")"
[ "$(field "$work/out" .restarts.csd_agent)" -ge 1 ] || fail "the agent was killed too late"
expect "host-digest with its agent killed: hashes" "$(hashes "$work/out")" "$wanted"
expect "full in a pipeline of host-digest" "$("$bin/hillctl" generate --json --run-dir "$run_dir" -p x -n 2 --policy full 2>"$work/err" | jq -r .policy)" full
"$bin/hillctl" generate --run-dir "$run_dir" -p x -n 2 --policy hillinfer >"$work/out" 2>"$work/err" && fail "hillinfer in a pipeline of host-digest"
grep -q "start one with --policy hillinfer" "$work/err" || fail "hillinfer in a pipeline of host-digest: $(cat "$work/err")"
down
run_json "$work/out" -m "$model" -p x -n 2 --digest-mb 1 --policy h2o
expect "--digest-mb with h2o: exit code" $? 100
expect "--digest-mb with h2o: the line names it" "$(grep -c -- "--digest-mb and --policy h2o exclude each other" "$work/out.err")" 1
expect_nothing_left
finish
