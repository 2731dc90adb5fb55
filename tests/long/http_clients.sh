#!/usr/bin/env bash
# http_clients.sh - many HTTP clients that stream at once while some of them go away: every whole answer is what the same request
# gives alone, and nothing grows: memory, descriptors, requests. Minutes, and no part of make check.
#
# usage: tests/long/http_clients.sh      environment: SECONDS_LONG=60, CLIENTS=64, HILL_TEST_SEED
# A fifth of the requests is left within the stream. Ends with what was counted.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"
seconds=${SECONDS_LONG:-60} clients=${CLIENTS:-64} seed=${HILL_TEST_SEED:-11}
echo "HILL_TEST_SEED=$seed SECONDS_LONG=$seconds CLIENTS=$clients"

"$bin/hill-mkmodel" -o "$work/wired.gguf" 2>/dev/null || fail "hill-mkmodel"
"$hillinfer" serve --detach --host "unix:$work/http.sock" --run-dir "$run_dir" --state-dir "$state_dir" -m "$work/wired.gguf" \
    -c 2048 -np 4 --requests 256 --connections 256 --log-level warn 2>"$work/up.err" || {
    fail "serve: $(cat "$work/up.err")"
    finish
}
post() { # BODY CURL-ARGUMENTS...
    local body=$1
    shift
    curl -sN --unix-socket "$work/http.sock" --data-binary "$body" "$@" http://localhost/v1/completions
}
text_of() { # FILE: of a stream that is whole; else nothing
    grep -q '^data: \[DONE\]' "$1" && sed -n 's/^data: {/{/p' "$1" | jq -sr '[.[].choices[0].text] | add'
}
kinds=8
for kind in $(seq $kinds); do # what each of a few requests gives alone
    jq -nc --arg p "word$kind and word$((kind * 7)) then word$kind and" --argjson n $((40 + kind * 20)) \
        '{prompt: $p, max_tokens: $n, temperature: 0, ignore_eos: true, stream: true}' >"$work/body$kind"
    post "@$work/body$kind" -o "$work/alone"
    text_of "$work/alone" >"$work/wanted$kind"
    [ -s "$work/wanted$kind" ] || fail "request $kind alone: $(head -c 300 "$work/alone")"
done

gateway=$(pgrep -f -- "hill-gateway .*--host unix:$work/http.sock")
rss() { awk '/^VmRSS/ {print $2}' "/proc/$gateway/status"; }
descriptors() { find "/proc/$gateway/fd" -mindepth 1 2>/dev/null | wc -l; }
client() { # NUMBER
    local end=$((EPOCHSECONDS + seconds)) kind same=0 left=0 wrong=0
    RANDOM=$((seed * 1000 + $1))
    while [ $EPOCHSECONDS -lt $end ] && [ -S "$work/http.sock" ]; do
        kind=$((RANDOM % kinds + 1))
        if [ $((RANDOM % 5)) -eq 0 ]; then # it goes away after some bytes of the stream
            post "@$work/body$kind" | head -c $((RANDOM % 8000 + 1)) >/dev/null
            left=$((left + 1))
        else
            post "@$work/body$kind" -o "$work/out$1"
            if [ "$(text_of "$work/out$1")" = "$(cat "$work/wanted$kind")" ]; then
                same=$((same + 1))
            else
                wrong=$((wrong + 1))
                cp "$work/out$1" "$work/wrong"
            fi
        fi
    done
    echo "$same $left $wrong" >"$work/count$1"
}
quiet() {
    [ "$(status | jq '.requests_running + .requests_waiting')" = 0 ]
}
descriptors_before=$(descriptors)
coordinator_has() { # memory in KiB, descriptors
    local pid
    pid=$(coordinator_pid)
    echo "$(awk '/^VmRSS/ {print $2}' "/proc/$pid/status") $(find "/proc/$pid/fd" -mindepth 1 | wc -l)"
}
buckets() { # of the gateway's own histogram: bound, gaps between two tokens of a request that are no longer
    curl -s --unix-socket "$work/http.sock" http://localhost/metrics |
        sed -n 's/^hillinfer_inter_token_latency_seconds_bucket{le="\(.*\)"} \(.*\)/\1 \2/p'
}
read -r _ coordinator_descriptors < <(coordinator_has)
buckets >"$work/gaps.before"
for number in $(seq "$clients"); do client "$number" & done
sleep $((seconds / 4))
rss_early=$(rss)
read -r coordinator_early _ < <(coordinator_has)
wait
wait_for 20 quiet || fail "requests run on after their clients"
# Half and 99 % of the gaps end within so many seconds.
buckets | paste -d ' ' "$work/gaps.before" - | awk '
        { bound[NR] = $1; count[NR] = $4 - $2 }
        function within(share,   i, before) {
            for (i = 1; i < NR && count[i] < share * count[NR]; i++) before = count[i]
            if (i == NR) return "over " bound[i - 1]
            if (i == 1) return sprintf("%.4f", bound[1] * share * count[NR] / count[1])
            return sprintf("%.4f", bound[i - 1] + (bound[i] - bound[i - 1]) * (share * count[NR] - before) / (count[i] - before))
        }
        END { print count[NR] " gaps between tokens; p50 " within(0.5) " s, p99 " within(0.99) " s (between the bounds of a bucket by its share)" }'
read -r same left wrong < <(cat "$work"/count* | awk '{a += $1; b += $2; c += $3} END {print a, b, c}')
echo "$same answers, $left left, $wrong wrong; resident $rss_early KiB after a quarter, $(rss) KiB at the end"
settled() {
    read -r coordinator_rss coordinator_now < <(coordinator_has)
    [ "$(descriptors)" -le "$descriptors_before" ] && [ "$coordinator_now" -le "$coordinator_descriptors" ]
}
wait_for 40 settled || fail "descriptors do not come back"
echo "descriptors: gateway $descriptors_before before, $(descriptors) after; coordinator $coordinator_descriptors, $coordinator_now"
echo "the coordinator: resident $coordinator_early KiB after a quarter, $coordinator_rss KiB at the end"
expect "wrong answers" "$wrong" 0
[ "$wrong" = 0 ] || head -c 500 "$work/wrong"
[ "$same" -gt "$clients" ] || fail "only $same answers"
[ "$(rss)" -lt $((rss_early * 5 / 4 + 4096)) ] || fail "the gateway's memory grows"
[ "$coordinator_rss" -lt $((coordinator_early * 5 / 4 + 4096)) ] || fail "the coordinator's memory grows"
expect "slots taken" "$(curl -s --unix-socket "$work/http.sock" http://localhost/slots | jq 'map(select(.is_processing)) | length')" 0
expect "it is the gateway of the beginning" "$(pgrep -f -- "hill-gateway .*--host unix:$work/http.sock")" "$gateway"
down
expect_nothing_left
finish
