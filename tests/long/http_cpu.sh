#!/usr/bin/env bash
# http_cpu.sh - CPU time of the gateway for each streamed token, against a step of the one client that is there: at most 2 %
# of it, the median of three answers.
#
# usage: tests/long/http_cpu.sh [MODEL] [TOKENS]    MODEL: a file with a chat template; default the SmolLM2 of get-models
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"
model=${1:-$(model_file SmolLM2-135M-Instruct.Q4_1.gguf)} tokens=${2:-1500}
[ -r "$model" ] || skip "${model:-SmolLM2} is not there (scripts/hillinfer get-models smollm2)"
"$hillinfer" serve --detach --host "unix:$work/http.sock" --run-dir "$run_dir" --state-dir "$state_dir" -m "$model" -c 4096 \
    2>"$work/up.err" || {
    fail "serve: $(cat "$work/up.err")"
    finish
}
gateway=$(pgrep -f -- "hill-gateway .*--host unix:$work/http.sock")
cpu_ns() { cat "/proc/$gateway"/task/*/schedstat | awk '{sum += $1} END {print sum}'; }
stream() { # TOKENS
    curl -sN --unix-socket "$work/http.sock" -o "$work/stream" http://localhost/v1/chat/completions --data-binary \
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Tell a long story.\"}],\"max_tokens\":$1,\"ignore_eos\":true,\"temperature\":0,\"stream\":true}"
}
stream 50
for round in 1 2 3; do
    before=$(cpu_ns)
    stream "$tokens"
    sed -n 's/^data: {/{/p' "$work/stream" | jq -r --argjson ns "$(($(cpu_ns) - before))" 'select(.timings) | .timings |
        [$ns / 1000 / .predicted_n, .predicted_per_token_ms, $ns / 1e4 / .predicted_n / .predicted_per_token_ms] | map(. * 100 | round / 100) | @tsv' >"$work/took"
    read -r cpu_us step_ms percent <"$work/took" || fail "round $round: the answer has no timings"
    echo "round $round: $cpu_us us of CPU a token, a step $step_ms ms: $percent %"
    echo "$percent" >>"$work/percents"
done
median=$(sort -n "$work/percents" | sed -n 2p)
expect "$median % of a step is at most 2 %" "$(jq -n "${median:-100} <= 2")" true
down
expect_nothing_left
finish
