#!/usr/bin/env bash
# tests/long/remote_drive.sh - make remote-drive: a drive on a second host, which is a network namespace: its link has delay and
# loss, goes down for a while, its process stalls, a stranger comes. Tokens, selections and logits are those of a local drive, and
# what cannot go on is said within seconds.
#
# environment: DELAY_MS (default 5, one way), LOSS (percent, default 1), TOKENS (default 200), SEED (of what is lost)
# The link is a veth pair with netem where the kernel has that, else two TUN devices (tests/net/slow_link.c). Without the right to
# make a network namespace: exit 77.
# shellcheck source=../integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"

delay=${DELAY_MS:-5} loss=${LOSS:-1} tokens=${TOKENS:-200} seed=${SEED:-$(date +%s)}
space=hill-$$ here=10.213.79.1 there=10.213.79.2
slow_link=$PWD/build/release/tests/net/slow_link
[ -x "$slow_link" ] || make -s build/release/tests/net/slow_link || exit 1
echo "seed $seed"

listener=0 link=0 device=hl$$
end_all() {
    [ "$listener" = 0 ] || kill -KILL "$listener" 2>/dev/null
    [ "$link" = 0 ] || kill "$link" 2>/dev/null
    ip netns del "$space" 2>/dev/null
    cleanup
}
trap end_all EXIT
ip netns add "$space" 2>/dev/null || skip "no right to make a network namespace"

with_tun() {
    "$slow_link" "$space" "$device" "$delay" "$loss" "$seed" >"$work/link" 2>"$work/link.err" &
    link=$!
    wait_for 10 grep -q ready "$work/link" || skip "no link: $(cat "$work/link.err")"
}
if slow_veth "$space" "$device" "$delay" "$loss"; then kind="veth and netem"; else with_tun && kind="TUN devices (this kernel has no netem)"; fi
link_addresses "$space" "$device" "$here" "$there" || fail "no addresses for $device"
echo "link: $kind, $delay ms each way, $loss % lost; $(ping -c 5 -i 0.2 -q $there 2>/dev/null | tail -n 1)"

"$bin/hill-mkmodel" -o "$work/model.gguf" 2>/dev/null || fail "mkmodel"
pass_key_prompt 900 900 >"$work/prompt"
options=(-m "$work/model.gguf" -c 4096 --budget 96 --beta 0.25 --cold-mb 16)
ask=(-f "$work/prompt" -n "$tokens" --temp 0 --ignore-eos)
for name in host drive stranger; do "$bin/hillctl" keygen "$work/$name" || fail "keygen $name"; done
keys=(--csd-key "$work/host" --csd-peer "$work/drive.pub")
url=tcp://$there:7811

listen() {
    ip netns exec "$space" "$bin/hill-csd-agent" --listen "$url" --drive "file:$work/there.pool" --key "$work/drive" --peer "$work/host.pub" \
        --threads 1 >"$work/drive.log" 2>&1 &
    listener=$!
    wait_for 20 grep -q "listening at" "$work/drive.log" || fail "the drive does not listen: $(cat "$work/drive.log")"
}
same() { expect "$1: hashes and tokens" "$(jq -c '[.selection_hash, .logits_hash, .tokens]' "$2" | xxhsum -H64)" "$wanted"; }
generate() { hillctl generate --json "${ask[@]}" >"$work/$1" 2>"$work/$1.err" || fail "$1: $(tail -n 1 "$work/$1.err")"; }
seconds() { echo $((($(date +%s%N) - began) / 100000000)) | sed 's/.$/.&/;s/^\./0./'; }
in_seconds() { # DESCRIPTION LIMIT: since `began`
    local took
    took=$(seconds)
    if [ "${took%.*}" -lt "$2" ]; then pass "$1: $took s (limit $2)"; else fail "$1: $took s (limit $2)"; fi
}
decodes() { status_is '[.requests[].predicted_tokens] | max > 3'; }
lost() { status_is ".workers.csd_agent.restarts > $restarts"; }
restarts_now() { restarts=$(status | jq .workers.csd_agent.restarts); }

run_json "$work/local" "${options[@]}" "${ask[@]}" || fail "a local drive: $(cat "$work/local.err")"
wanted=$(jq -c '[.selection_hash, .logits_hash, .tokens]' "$work/local" | xxhsum -H64)
rm -f "$state_dir/cold.pool"
listen

# --- who is not let in is told so within seconds
began=$(date +%s%N)
run_json "$work/wrong" "${options[@]}" "${ask[@]}" --csd "$url" --csd-key "$work/stranger" --csd-peer "$work/drive.pub"
expect "a wrong key: exit code" $? 111
in_seconds "a wrong key" 15
began=$(date +%s%N)
run_json "$work/nobody" "${options[@]}" "${ask[@]}" --csd "tcp://$there:7812" "${keys[@]}"
expect "nobody listens: exit code" $? 111
in_seconds "nobody listens" 15
for _ in 1 2 3; do (head -c 20000 /dev/urandom >"/dev/tcp/$there/7811") 2>/dev/null; done

# --- a whole run
up "${options[@]}" --csd "$url" "${keys[@]}" || fail "up"
began=$(date +%s%N)
generate whole
echo "whole run: $(seconds) s, of a local drive $(jq -c '[.prompt_ms, .predicted_ms]' "$work/local") ms, here $(jq -c '[.prompt_ms, .predicted_ms]' "$work/whole") ms"
same "a whole run" "$work/whole"
expect "entries were cold" "$(jq '.tiers.cold.tokens > 0 and .tiers.cold.hits > 0' "$work/whole")" true

# --- the drive's process stands still in mid-decode: lost within seconds, taken up again when it goes on
restarts_now
generate stalled &
wait_for 60 decodes || fail "stalled: nothing decodes"
began=$(date +%s%N)
kill -STOP "$listener"
wait_for 30 lost || fail "a stalled drive is not noticed"
in_seconds "a stalled drive is noticed" 15
kill -CONT "$listener"
wait $!
same "the drive's process stalls" "$work/stalled"

# --- the link is gone: for two seconds, which nobody is told of, and for longer than the silence that is allowed
for gap in 2 8; do
    restarts_now
    generate "down$gap" &
    asked=$!
    wait_for 60 decodes || fail "link down: nothing decodes"
    ip link set "$device" down
    sleep "$gap" # the length of the outage is what is tested
    ip link set "$device" up
    wait "$asked"
    same "the link is down for $gap s ($(($(status | jq .workers.csd_agent.restarts) - restarts)) agents lost)" "$work/down$gap"
    wait_for 30 ready || fail "not ready after the link was down"
done
down || fail "down"
expect_nothing_left

# --- the host is gone for good, and --csd-on-loss degrade: on without it
listen_again() { kill -KILL "$listener" 2>/dev/null; wait "$listener" 2>/dev/null; listen; }
listen_again
up "${options[@]}" --csd "$url" "${keys[@]}" --csd-on-loss degrade || fail "up"
generate gone &
wait_for 60 decodes || fail "gone: nothing decodes"
began=$(date +%s%N)
ip link set "$device" down
wait $!
in_seconds "the host is gone, and its request over" 60
same "the host is gone (degrade)" "$work/gone"
expect "no drive" "$(status | jq .csd_attached)" false
down || fail "down"
expect_nothing_left
kill -KILL "$listener"
listener=0
[ "$link" = 0 ] || { kill "$link" && wait "$link"; cat "$work/link.err"; link=0; }
finish
