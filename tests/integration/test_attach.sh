#!/usr/bin/env bash
# A drive comes and goes while requests decode, and every fifth time its agent is killed: answers, selections and logits are those
# of an undisturbed run, and nothing is left behind. make attach-cycles does more of it, with several drives and with SmolLM2, too.
#
# environment: CYCLES (default 5 for each setting), MODELS ("wired smollm2"; default wired), SETTINGS (default "wide tight"), SEED
# (default: the clock)
# A setting: "wide", M_0 holds all, so that a detached drive is left by its agent; "tight", it does not, and what is left is read
# by the host's CPU, also after a kill (--csd-on-loss degrade); "several", any of three drives, whose entries go to the others.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
requests_last 5

cycles=${CYCLES:-5}
seed=${SEED:-${HILL_TEST_SEED:-$(date +%s)}}
echo "seed $seed"
RANDOM=$seed
smollm2=$(model_file SmolLM2-135M-Instruct.Q4_1.gguf)

# Descriptors of who lives on, and what the pipeline has in /dev/shm and on the drive.
held() {
    local pids
    pids="$(coordinator_pid) $(worker_pid gpu_worker) $(worker_pid cpu_scorer)"
    for pid in $pids; do find "/proc/$pid/fd" -mindepth 1 2>/dev/null | wc -l; done | tr '\n' ' '
    segments | sed 's/-[0-9]*-/-/g' | tr ' ' '\n' | sort | tr '\n' ' ' # without the number of the epoch
    stat -c ' %s %b' "${pools[@]}"
}

# Twice the same: the descriptor of the last client's connection is closed by another thread.
settled() {
    before=$(held)
    sleep 0.2
    as_before
}
as_before() { [ "$(held)" = "$before" ]; }

# Which drive comes and goes next.
choose() {
    url=() agent=csd_agent
    [ "$kind" = several ] || return 0
    local i=$((RANDOM % ${#pools[@]}))
    url=("file:${pools[i]}")
    [ $i = 0 ] || agent=csd_agent_$((i + 1))
}

idle_and_ready() {
    [ "$(status | jq -r '"\(.ready) \(.requests_running) \(.csd_attached)"')" = "true 0 true" ]
}

decodes() { # a request is past its first tokens, or none runs any more
    status_is '[.requests[].predicted_tokens] | length == 0 or max > 3'
}

# One line an answer: exit code, hashes, tokens. A request that comes while the drive is away and needs it is refused: asked again.
ask() { # I
    hillctl generate --json -f "$work/prompt$1" -n "$predict" --temp 0 --ignore-eos >"$work/out$1" 2>"$work/err$1"
    local code=$?
    grep -q 'attach a CSD\|no CSD is attached' "$work/err$1" && return 1
    echo "$code $(jq -c '[.selection_hash, .logits_hash, .tokens]' "$work/out$1")$([ "$code" = 0 ] || tail -n 1 "$work/err$1")"
}

keep_asking() { # I
    while [ ! -e "$work/stop" ]; do ask "$1" >>"$work/answers$1" || sleep 0.1; done
}

pause() { sleep "0.$(printf %03d $((RANDOM % $1)))"; }

detached() { # what it says, in numbers
    hillctl detach "${url[@]}" >"$work/said" 2>&1 || fail "cycle $1: detach: $(cat "$work/said")"
    n_detached=$((n_detached + 1))
    grep -q 'entries' "$work/said" && n_drained=$((n_drained + 1))
    grep -q 'stay until' "$work/said" && n_plain=$((n_plain + 1))
}

# Of the requests that decode: "ID TOKENS", a line each.
progress() { status | jq -r '.requests[] | select(.predicted_tokens > 0) | "\(.request) \(.predicted_tokens)"'; }
far() { status_is '[.requests[].predicted_tokens] | max > 60'; }
go_on() { # those of progress decode again, or are over
    status_is '[.requests[] | select(.request | IN('"$(cut -d' ' -f1 "$work/progress" | paste -sd,)"')) | .predicted_tokens > 0] | all'
}

# Somebody's file: refused and left as it is, and requests go on where they were.
not_attached() {
    local id tokens
    echo "somebody's" >"$work/foreign"
    wait_for 60 far || fail "a foreign file: no request decodes"
    progress >"$work/progress"
    hillctl attach "file:$work/foreign" >"$work/said" 2>&1 && fail "a foreign file was attached"
    expect "a foreign file: refused in a line, and as it was" "$(wc -l <"$work/said") $(cat "$work/foreign")" "1 somebody's"
    wait_for 60 go_on || fail "a foreign file: requests do not go on"
    progress >"$work/now"
    while read -r id tokens; do
        awk -v id="$id" -v tokens="$tokens" '$1 == id && $2 < tokens { exit 1 }' "$work/now" ||
            fail "a foreign file: request $id had $tokens tokens, now: $(tr '\n' ' ' <"$work/now")"
    done <"$work/progress"
}

cycle() { # I
    choose
    restarts=$(status | jq ".workers.$agent.restarts")
    wait_for 60 decodes || fail "cycle $1: no request decodes"
    if [ $(($1 % 5)) = 4 ]; then
        kill_worker "$agent"
        n_killed=$((n_killed + 1))
        wait_for 20 lost || fail "cycle $1: the loss of the agent shows nowhere"
        wait_for 60 ready || fail "cycle $1: the pipeline is not ready again"
        [ "$loss" = wait ] || hillctl attach >"$work/said" 2>&1 || fail "cycle $1: attach after a kill: $(cat "$work/said")"
    else
        detached "$1"
        pause 100
        [ "$1" != 0 ] || [ "$kind" = several ] || not_attached
        hillctl attach "${url[@]}" >"$work/said" 2>&1 || fail "cycle $1: attach: $(cat "$work/said")"
    fi
    pause 100
}
lost() { status_is ".workers.$agent.restarts != $restarts or (.csd_attached | not)"; }

decoding() { status_is '[.requests[].predicted_tokens] | max > 3'; }
away() { status_is '.csd_attached | not'; }
# a relative path is of the folder in which it is typed
other_attached() { (cd "$work" && hillctl attach file:other.pool) >"$work/said" 2>&1; }

# A request is cancelled while it waits for the epoch that a detach has begun: what it had on the drive keeps nobody from another.
abandoned() {
    local predict=2400 # it is not over before the GPU worker stands still
    ask 0 >/dev/null &
    local asker=$! gpu detach
    wait_for 60 decoding || fail "abandoned: no request decodes"
    gpu=$(worker_pid gpu_worker)
    kill -STOP "$gpu" # so that the next epoch is not ready
    hillctl detach >"$work/detached" 2>&1 &
    detach=$!
    wait_for 60 away || fail "abandoned: the drive is not detached"
    kill -INT "$(pgrep -P "$asker")" # hillctl, below the shell of the job
    wait "$asker"
    kill -CONT "$gpu" 2>/dev/null # or it was ended because it hung
    wait "$detach" || fail "abandoned: detach: $(cat "$work/detached")"
    expect "abandoned: something stayed" "$(grep -c 'stay until' "$work/detached")" 1
    wait_for 60 other_attached || fail "abandoned: attach of another drive: $(cat "$work/said")"
    expect "a relative path" "$(status | jq -r .csd_url)" "file:$work/other.pool"
    (cd "$work" && hillctl detach file:other.pool) >/dev/null 2>&1 || fail "abandoned: detach of the other drive"
    hillctl attach >"$work/said" 2>&1 || fail "abandoned: attach: $(cat "$work/said")"
    rm -f "$work/other.pool"
}

# The file of a detached drive has another name while requests still have entries there: it is known by its pool's UUID, they go on,
# and the answer is that of an undisturbed run.
renamed() {
    local predict=1200 asker # it is not over before the drive is back
    ask 0 >"$work/renamed_wanted" || fail "renamed: undisturbed: $(cat "$work/err0")"
    ask 0 >"$work/renamed_answer" &
    asker=$!
    wait_for 60 decoding || fail "renamed: no request decodes"
    hillctl detach >"$work/detached" 2>&1 || fail "renamed: detach: $(cat "$work/detached")"
    expect_one_line "renamed: by another kind of URL" 100 hillctl attach "xrt:$state_dir/cold.pool,xclbin=$work/none"
    expect "renamed: it says so" "$(grep -c 'attach that with a URL of the same kind, or wait' "$work/err")" 1
    mv "$state_dir/cold.pool" "$work/renamed.pool"
    hillctl attach "file:$work/renamed.pool" >"$work/said" 2>&1 || fail "renamed: attach: $(cat "$work/said")"
    wait "$asker"
    expect "renamed: something stayed" "$(grep -c 'stay until' "$work/detached")" 1
    expect "renamed: the answer" "$(cmp "$work/renamed_answer" "$work/renamed_wanted" && echo same)" same
    expect "renamed: it went on, and did not begin anew" "$(jq -c '.recovery | [.attempts > 1, .units_repeated, .entries_repeated]' "$work/out0")" "[true,0,0]"
    expect "renamed: as it was" "$(status | jq -r '.csd_url, (.workers.csd_agent.device | split(" ") | last)' | paste -sd' ')" "file:$work/renamed.pool $uuid"
    hillctl detach >/dev/null 2>&1 || fail "renamed: detach again"
    mv "$work/renamed.pool" "$state_dir/cold.pool"
    hillctl attach >"$work/said" 2>&1 || fail "renamed: attach by its first name: $(cat "$work/said")"
}

setting() { # MODEL wide|tight|several
    echo "== $1, $2"
    loss="wait" kind=$2 pools=("$state_dir/cold.pool")
    if [ "$1" = wired ]; then
        "$bin/hill-mkmodel" -o "$work/model.gguf" 2>/dev/null || fail "mkmodel"
        options=(-m "$work/model.gguf" -c 4096 --budget 128)
        predict=240 bytes=500 hot=3.5
    else
        options=(-m "$smollm2" -c 2048 --budget 96)
        predict=120 bytes=1400 hot=44
    fi
    options+=(--beta 0.25 -np 2)
    [ "$2" != several ] || {
        pools=("$work/1.pool" "$work/2.pool" "$work/3.pool")
        for i in "${pools[@]}"; do options+=(--csd "file:$i"); done
    }
    [ "$2" != tight ] || {
        loss=degrade
        options+=(--hot-mb "$hot" --csd-on-loss degrade)
    }
    for i in 0 1; do pass_key_prompt $((bytes + 300 * i)) "$bytes" >"$work/prompt$i"; done
    up "${options[@]}" || exit 1
    ask 0 >"$work/wanted0" &
    ask 1 >"$work/wanted1" || fail "$1, $2: undisturbed: $(cat "$work/err1")"
    wait
    expect "$1, $2: undisturbed answers" "$(cut -c1 "$work"/wanted? | tr '\n' ' ')" "0 0 "
    wait_for 10 settled || fail "$1, $2: descriptors come and go: $before"
    rm -f "$work/stop" "$work"/answers?
    for i in 0 1; do keep_asking "$i" & done
    n_detached=0 n_drained=0 n_plain=0 n_killed=0
    began=$(date +%s)
    for ((c = 0; c < cycles; c++)); do cycle "$c"; done
    took=$(($(date +%s) - began))
    touch "$work/stop"
    wait
    wait_for 60 idle_and_ready || fail "$1, $2: not idle and ready at the end"
    answers=0
    for i in 0 1; do
        answers=$((answers + $(wc -l <"$work/answers$i")))
        [ -s "$work/answers$i" ] || fail "$1, $2, request $i: no answer"
        expect "$1, $2, request $i: answers that differ" "$(grep -cvxFf "$work/wanted$i" "$work/answers$i")" 0
        grep -vxFf "$work/wanted$i" "$work/answers$i" | sed 's/\(.\{200\}\).*\(.\{200\}\)/\1 ... \2/'
    done
    [ "$answers" -gt 1 ] || fail "$1, $2: too few answers: $answers"
    wait_for 10 as_before
    expect "$1, $2: descriptors, segments, bytes of the pool" "$(held)" "$before"
    echo "$cycles cycles in $took s: $n_detached detached ($n_drained while requests decoded, $n_plain of them kept their rest on the drive), $n_killed killed; $answers answers; $(status | jq -c '[.workers[].rss_bytes / 1048576 | floor]') MiB resident"
    [ "$n_drained" -gt 0 ] || fail "$1, $2: nothing was detached in mid-decode"
    [ "$2" != tight ] || [ "$n_plain" -gt 0 ] || fail "$1, $2: nothing was left on a detached drive"
    [ "$cycles" -lt 5 ] || [ "$n_killed" -gt 0 ] || fail "$1, $2: nothing was killed"
    [ "$1 $2" != "wired tight" ] || {
        uuid=$(status | jq -r '.workers.csd_agent.device | split(" ") | last')
        renamed
    }
    [ "$1 $2" != "wired tight" ] || abandoned # one of SmolLM2 may be over before the drive is away
    down || fail "down"
    expect_nothing_left
    for i in "${pools[@]}"; do
        expect "$1, $2: hill-fsck-pool" "$("$bin/hill-fsck-pool" --json "$i" | jq -c '[.stripes_used, .bad_records, .bad_entries, .bad_digests, .twice]')" "[0,0,0,0,0]"
    done
    rm -rf "$state_dir" "$work"/?.pool
}

for model in ${MODELS:-wired}; do
    [ "$model" = wired ] || [ -n "$smollm2" ] || {
        echo "$model is left out: its file is not there (scripts/hillinfer get-models smollm2)"
        continue
    }
    for kind in ${SETTINGS:-wide tight}; do setting "$model" "$kind"; done
done
finish
