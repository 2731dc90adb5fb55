#!/usr/bin/env bash
# A drive on another host: hill-csd-agent --listen, reached by --csd tcp://, over the loopback and, where root may make a network
# namespace, over a link with delay and loss. Answers, selections and logits are those of a local drive; so they are after the
# relay or the drive's process is killed in mid-decode. Wrong keys, no keys and garbage are refused in a line.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
requests_last 5

"$bin/hill-mkmodel" -o "$work/model.gguf" 2>/dev/null || fail "mkmodel"
pass_key_prompt 900 900 >"$work/prompt"
options=(-m "$work/model.gguf" -c 4096 --budget 96 --beta 0.25 --cold-mb 16)
ask=(-f "$work/prompt" -n 48 --temp 0 --ignore-eos)
for name in host drive stranger; do "$bin/hillctl" keygen "$work/$name" || fail "keygen $name"; done
keys=(--csd-key "$work/host" --csd-peer "$work/drive.pub")
listener=0 scorer=() # of the listener: none, or --csd-device
stop_listener() { [ "$listener" = 0 ] || kill -KILL "$listener" 2>/dev/null; }
trap 'stop_listener; cleanup' EXIT

# A port that is free: another one is tried while the drive cannot listen.
listen() { # ADDRESS [COMMAND BEFORE...]
    local address=$1
    shift
    for _ in 1 2 3 4 5; do
        [ "${port:-0}" != 0 ] || port=$((20000 + RANDOM % 12000))
        : >"$work/drive.log"
        "$@" "$bin/hill-csd-agent" --listen "tcp://$address:$port" --drive "file:$work/there.pool" --key "$work/drive" \
            --peer "$work/host.pub" "${scorer[@]}" >>"$work/drive.log" 2>&1 &
        listener=$!
        wait_for 20 said "listening at\|listening at .* failed" "$work/drive.log" && ! said failed "$work/drive.log" && return 0
        stop_listener
        port=0
    done
    fail "no port to listen at: $(cat "$work/drive.log")"
}
said() { grep -q "$1" "$2"; }

answers() { # DESCRIPTION: a request by the pipeline that is up
    hillctl generate --json "${ask[@]}" >"$work/out" 2>"$work/err"
    expect "$1: exit code" $? 0
    expect "$1: hashes" "$(hashes "$work/out")" "$wanted"
}

# --- what a local drive answers
run_json "$work/local" "${options[@]}" "${ask[@]}" || fail "a local drive: $(cat "$work/local.err")"
wanted=$(hashes "$work/local")
rm "$state_dir/cold.pool"
expect "entries are cold" "$(jq '.tiers.cold.tokens > 0 and .tiers.cold.hits > 0' "$work/local")" true

# --- no keys, others' keys, nobody there
expect_one_line "no keys" 100 "$hillinfer" run --run-dir "$run_dir" --state-dir "$state_dir" "${options[@]}" "${ask[@]}" --csd tcp://127.0.0.1:1
expect_one_line "no port" 100 "$hillinfer" run --run-dir "$run_dir" --state-dir "$state_dir" "${options[@]}" "${ask[@]}" --csd tcp://127.0.0.1 "${keys[@]}"
chmod 644 "$work/stranger"
expect "--listen --help lists the listener's options" "$("$bin/hill-csd-agent" --listen --help | grep -c '^  --drive ')" 1
expect_one_line "a key that others may read" 100 "$bin/hill-csd-agent" --listen tcp://127.0.0.1:1 --drive "file:$work/x" --key "$work/stranger" --peer "$work/host.pub"
chmod 600 "$work/stranger"
expect_one_line "a key that is there" 100 "$bin/hillctl" keygen "$work/host"
port=0
listen 127.0.0.1
HILL_TEST_DRIVE_MS=700 run_json "$work/stranger.json" "${options[@]}" "${ask[@]}" --csd "tcp://127.0.0.1:$port" --csd-key "$work/stranger" --csd-peer "$work/drive.pub"
expect "a stranger's key: exit code" $? 111
expect "a stranger's key: a line says so" "$(grep -c 'its keys are others' "$work/stranger.json.err")" 1
expect "the drive says so, too" "$(grep -c 'another key was refused' "$work/drive.log" | sed 's/^[1-9].*/some/')" some
cat "$work/stranger.pub" "$work/drive.pub" >"$work/two.pub"
run_json "$work/two.json" "${options[@]}" "${ask[@]}" --csd "tcp://127.0.0.1:$port" --csd-key "$work/host" --csd-peer "$work/two.pub"
expect "two keys for one drive: exit code" $? 100
expect "two keys for one drive: a line says so" "$(grep -c '2 public keys may be that of' "$work/two.json.err")" 1
printf '%s\n' "$(cat "$work/stranger.pub")" "tcp://127.0.0.1:$port $(cat "$work/drive.pub")" >"$work/drives.pub"
keys=(--csd-key "$work/host" --csd-peer "$work/drives.pub")

# --- garbage is nothing to it
(head -c 3000 /dev/urandom >"/dev/tcp/127.0.0.1/$port") 2>/dev/null
(printf 'GET / HTTP/1.1\r\n\r\n' >"/dev/tcp/127.0.0.1/$port") 2>/dev/null

# --- a whole run, and the death of either end in the middle of one
up "${options[@]}" --csd "tcp://127.0.0.1:$port" "${keys[@]}" || fail "up"
answers "over the loopback"
expect "what scores there by default" "$(scores_on)" host
expect "no file here" "$(find "$state_dir" -name '*.pool')" ""
hillctl generate --json "${ask[@]}" -n 160 >"$work/long.json" 2>"$work/err" || fail "a long answer: $(cat "$work/err")"
for victim in relay drive; do
    hillctl generate --json "${ask[@]}" -n 160 >"$work/$victim.json" 2>"$work/$victim.err" &
    asked=$!
    wait_for 30 decoding 1 3 || fail "$victim: nothing decodes"
    if [ $victim = relay ]; then
        kill_worker csd_agent
    else
        kill -KILL "$listener"
        wait "$listener" 2>/dev/null
        scorer=(--csd-device 0 --threads 1)
        listen 127.0.0.1
    fi
    wait "$asked"
    expect "the $victim is killed: exit code" $? 0
    expect "the $victim is killed: in time" "$(field "$work/$victim.json" '.recovery.attempts > 1')" true
    expect "the $victim is killed: hashes" "$(hashes "$work/$victim.json")" "$(hashes "$work/long.json")"
    wait_for 30 ready || fail "$victim: not ready again"
done
answers "after both"
expect "what scores there with --csd-device 0" "$(scores_on)" OpenCL

# --- detached and attached again
hillctl detach >"$work/said" 2>&1 || fail "detach: $(cat "$work/said")"
hillctl attach "tcp://127.0.0.1:$port" >"$work/said" 2>&1 || fail "attach: $(cat "$work/said")"
answers "attached again"

# --- its host is away: nobody waits for that when it is detached
kill -KILL "$listener"
wait "$listener" 2>/dev/null
wait_for 30 status_is '.workers.csd_agent.state == "backoff"' || fail "the loss of the drive shows nowhere"
timeout 20 "$bin/hillctl" detach --run-dir "$run_dir" >"$work/said" 2>&1 || fail "detach of a drive that is away: $(cat "$work/said")"
expect "detach of a drive that is away" "$(grep -c '^detached: .* is out of reach' "$work/said")" 1
listen 127.0.0.1
hillctl attach >"$work/said" 2>&1 || fail "attach when it is there again: $(cat "$work/said")"
answers "there again"
down || fail "down"
expect_nothing_left
kill -TERM "$listener"
wait "$listener"
expect "the drive's process ends in order" $? 0
expect "its pool is whole" "$("$bin/hill-fsck-pool" --json "$work/there.pool" | jq -c '[.bad_records, .bad_entries, .bad_digests, .twice]')" "[0,0,0,0]"
listener=0

# --- the coordinator is started again, as after a kill, while the host is away
started_again() { # ARGUMENTS...
    HILL_TEST_DRIVE_MS=1000 HILL_COORDINATOR_RESTARTS=1 "$bin/hill-coordinator" "${options[@]}" --run-dir "$run_dir" \
        --state-dir "$state_dir" --csd "tcp://127.0.0.1:$port" "${keys[@]}" "$@" >"$work/log" 2>&1 &
    coordinator=$!
}
ends() {
    kill -TERM "$coordinator"
    wait "$coordinator"
    expect "$1: the coordinator ends in order" $? 0
}
started_again --csd-on-loss degrade
wait_for 30 ready || fail "degrade: it goes on without the drive: $(cat "$work/log")"
expect "degrade: no drive" "$(status | jq .csd_attached)" false
ends degrade
started_again
wait_for 30 status_is '.workers.csd_agent.restarts > 0' || fail "wait: the drive is tried again: $(cat "$work/log")"
listen 127.0.0.1
wait_for 30 ready || fail "wait: the drive is there again: $(cat "$work/log")"
answers "the host was away"
ends wait
kill -TERM "$listener"
wait "$listener"
listener=0
expect_nothing_left

# --- another network: 5 ms away, and 1 % of the packets are lost
space=hill-$$ device=hl$$
if ip netns add "$space" 2>/dev/null; then
    trap 'stop_listener; ip netns del "$space"; cleanup' EXIT
    if slow_veth "$space" "$device" 5 1 && link_addresses "$space" "$device" 10.213.77.1 10.213.77.2; then
        listen 10.213.77.2 ip netns exec "$space"
        up "${options[@]}" --csd "tcp://10.213.77.2:$port" "${keys[@]}" || fail "up over a slow link"
        answers "10 ms there and back, 1 % lost"
        down || fail "down"
    else
        echo "left out: delay and loss (this kernel has no veth or no netem)"
    fi
else
    echo "left out: delay and loss (no right to make a network namespace)"
fi
finish
