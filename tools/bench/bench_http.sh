#!/usr/bin/env bash
# tools/bench/bench_http.sh - figure http: what the gateway costs for each token of one client, and what 64 clients that stream at
# once see of each other, from tests/long/http_cpu.sh and http_clients.sh, whose checks hold here, too.
#
# usage: as the other figures' programs, by tools/bench/run; --quick: half a minute of clients. Exit codes: 0; 1 a check failed;
# 77 SmolLM2 is not there.
set -u
cd "$(dirname "$0")/../.." || exit 1
tokens=1500 seconds=600 clients=64
[ "${1:-}" != --quick ] || tokens=100 seconds=30 clients=16
work=$(mktemp -d /tmp/hill-bench-XXXXXX)
trap 'rm -rf "$work"' EXIT
# a signal ends the test, which cleans up after itself, and then this
run() { # OUTPUT COMMAND...
    local output=$1
    shift
    "$@" >"$output" 2>&1 &
    local pid=$! code
    trap 'kill -TERM '"$pid"'; wait '"$pid"'; exit 130' HUP INT TERM
    wait "$pid"
    code=$?
    trap - HUP INT TERM
    cat "$output" >&2
    [ "$code" -eq 0 ] || exit "$([ "$code" -eq 77 ] && echo 77 || echo 1)"
}
run "$work/cpu" tests/long/http_cpu.sh "" "$tokens"
run "$work/clients" env SECONDS_LONG=$seconds CLIENTS=$clients tests/long/http_clients.sh

cat <<END
## HTTP

One client streams $tokens tokens of SmolLM2 135M Q4_1 (\`tests/long/http_cpu.sh\`): CPU time of hill-gateway beside the time of a step.

| answer | CPU, us a token | step, ms | share of the step |
|---:|---:|---:|---:|
END
sed -n 's/^round \(.*\): \(.*\) us of CPU a token, a step \(.*\) ms: \(.*\) %$/| \1 | \2 | \3 | \4 % |/p' "$work/cpu"
cat <<END

$clients clients stream at once for $seconds s from a small model for tests with 4 slots, and leave a fifth of their requests in mid-stream
(\`SECONDS_LONG=$seconds CLIENTS=$clients tests/long/http_clients.sh\`). Each whole answer is that of the same request alone. A gap lies between two
tokens of a request; p50 and p99 are those of /metrics, between the bounds of a bucket by its share.

| answers | left | gaps | p50, ms | p99, ms |
|---:|---:|---:|---:|---:|
END
# "p50 0.0123 s", or "p50 over 2.5 s" behind the last bucket
awk 'function ms(name,   i) {
        for (i = 1; $i != name; i++) if (i > NF) return "?"
        return $(i + 1) == "over" ? "over " $(i + 2) * 1e3 : sprintf("%.2f", $(i + 1) * 1e3)
    }
    / gaps between tokens/ {gaps = $1; p50 = ms("p50"); p99 = ms("p99")}
    / answers, .* left, / {printf "| %s | %s | %s | %s | %s |\n", $1, $3, gaps, p50, p99}' "$work/clients"
cat <<END

| process | memory after a quarter, KiB | at the end | descriptors before | at the end |
|---|---:|---:|---:|---:|
END
awk '/ answers, .* left, / {early = $8; end = $13}
    /^descriptors: / {before = $3; after = $5; coordinator = $8; now = $9}
    /^the coordinator: / {printf "| gateway | %s | %s | %d | %d |\n| coordinator | %s | %s | %d | %d |\n", early, end, before, after, $4, $9, coordinator, now}' \
    "$work/clients"
