#!/usr/bin/env bash
# http_sockets.sh - random clients on the gateway's real socket: slow, cut, pipelined, oversized, mutated, gone in mid-stream
# (tests/fuzz/socket_clients.c). Nothing is found, and the gateway has at the end what it had before.
#
# usage: tests/long/http_sockets.sh      environment: SECONDS_LONG=60, HILL_TEST_SEED (the clock), GATEWAY: the gateway's file
# The gateway is that of the asan+ubsan build, which this makes. Beside the clients another key asks for text of its own.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"
seconds=${SECONDS_LONG:-60} seed=${HILL_TEST_SEED:-$EPOCHSECONDS}
echo "HILL_TEST_SEED=$seed SECONDS_LONG=$seconds"
clients=build/release/tests/fuzz/socket_clients served=${GATEWAY:-build/asan+ubsan/bin/hill-gateway}
make -s "$clients" || fail "build"
[ -n "${GATEWAY:-}" ] || make -s CONFIG=asan+ubsan "$served" || fail "build"
secret=otherwise7391unheard
export ASAN_OPTIONS=detect_leaks=1:exitcode=99:quarantine_size_mb=16 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1

"$bin/hill-mkmodel" -o "$work/wired.gguf" 2>/dev/null || fail "hill-mkmodel"
up -m "$work/wired.gguf" -c 2048 -np 4 || finish
printf 'key-of-ann\nkey-of-bob\n' >"$work/keys"
mkfifo "$work/address"
"$served" --host "unix:$work/http.sock" --run-dir "$run_dir" --api-key-file "$work/keys" --idle-timeout 2 --max-body-mb 0.5 \
    --ready-fd 3 3>"$work/address" 2>"$work/gateway.err" &
gateway=$!
read -r _ <"$work/address"
bob() { # until it is killed: a text that no other key may see
    while :; do
        curl -sN --unix-socket "$work/http.sock" -o "$work/bobs" -H 'X-Api-Key: key-of-bob' http://localhost/v1/completions --data-binary \
            "{\"prompt\":\"$secret then $secret then other\",\"max_tokens\":200,\"temperature\":0,\"ignore_eos\":true}"
    done
}
bob &
other=$!
sleep 1 # the first requests have made the gateway's and the coordinator's tables
descriptors() { find "/proc/$gateway/fd" -mindepth 1 | wc -l; }
rss() { awk '/^VmRSS/ {print $2}' "/proc/$gateway/status"; }
descriptors_before=$(descriptors)
(sleep $((seconds / 4)) && rss >"$work/rss") &
here=$PWD
(cd "$work" && "$here/$clients" "$work/http.sock" "$here/tests/gateway/http_cases.jsonl" "$seconds" "$seed" key-of-ann "$secret") >"$work/said"
code=$?
kill "$other"
wait "$other" 2>/dev/null
cat "$work/said"
expect "the clients have found nothing" "$code" 0
[ ! -f "$work/found.request" ] || head -c 2000 "$work/found.request" | cat -v
quiet() {
    [ "$(status | jq '.requests_running + .requests_waiting')" = 0 ]
}
wait_for 30 quiet || fail "requests run on after their clients"
settled() { [ "$(descriptors)" -le "$descriptors_before" ]; }
wait_for 30 settled || fail "descriptors: $descriptors_before before, $(descriptors) after"
echo "resident $(cat "$work/rss") KiB after a quarter, $(rss) KiB at the end; descriptors $descriptors_before before, $(descriptors) after"
expect "it is the gateway of the beginning" "$(kill -0 "$gateway" && echo yes)" yes
kill "$gateway"
wait "$gateway"
expect "its end, and the sanitizers'" $? 0
grep -E 'ERROR: |runtime error' "$work/gateway.err"
down
expect_nothing_left
finish
