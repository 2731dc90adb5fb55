#!/usr/bin/env bash
# record and replay: one worker alone gives the recorded bytes, twice the same; a damaged recording is refused in one line.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# refused DESCRIPTION WANTED-CODE PATTERN COMMAND...: fails with this code and one line on stderr that matches
refused() {
    local description=$1 wanted=$2 pattern=$3
    shift 3
    "$@" >"$work/out" 2>"$work/err" </dev/null
    expect "$description: exit code" $? "$wanted"
    expect "$description: lines" "$(wc -l <"$work/err") $(wc -c <"$work/out")" "1 0"
    if grep -qE -- "$pattern" "$work/err"; then pass "$description: says why"; else fail "$description: '$pattern' is not in $(cat "$work/err")"; fi
}

replay() { # FILE STAGE: what it printed, without the times
    "$hillinfer" replay "$1" "$2" --state-dir "$state_dir" >"$work/replayed" 2>"$work/err" || {
        echo "exit code $?: $(cat "$work/err")"
        return
    }
    sed -E 's/[0-9.]+ s[,;]?|busy//g' "$work/replayed"
    [ ! -s "$work/err" ] || cat "$work/err"
}

small_model "$work/random.gguf" -s 7
head -c 1600 LICENSE >"$work/prompt"
folders=(--run-dir "$run_dir" --state-dir "$state_dir")
run=("${folders[@]}" -m "$work/random.gguf" -c 8192 --alpha 0.1 --beta 0.25 -f "$work/prompt" -n 100 --temp 0 --ignore-eos --json)

# --- what is recorded changes nothing, and each stage alone does again what it did
for placement in recency bkp "bkp --speculate on" "bkp --speculate verify" "bkp --policy h2o" "recency --policy leoam" "bkp --policy prefetch" "bkp --policy host-digest --digest-mb 0.05" "bkp --digest-mb 0.05"; do
    file=$work/${placement// /.}.rec
    # shellcheck disable=SC2206  # words on purpose
    how=(--placement $placement)
    "$hillinfer" run "${run[@]}" "${how[@]}" >"$work/plain" 2>"$work/err" || fail "run: $(cat "$work/err")"
    "$hillinfer" record "$file" "${run[@]}" "${how[@]}" >"$work/recorded" 2>"$work/err" || fail "record: $(cat "$work/err")"
    expect "$placement: recording changes no result" "$(field "$work/recorded" '"\(.selection_hash) \(.logits_hash)"')" \
        "$(field "$work/plain" '"\(.selection_hash) \(.logits_hash)"')"
    for stage in gpu_worker cpu_scorer csd_agent; do
        replay "$file" $stage >"$work/first"
        expect "$placement: $stage alone" "$(grep -cE "^$stage: [1-9][0-9]* .* out, as recorded; .*xxhash64 [0-9a-f]{16}$" "$work/first")" 1
        [ "$placement" = bkp ] || continue
        replay "$file" $stage >"$work/second"
        expect "$placement: $stage, twice the same" "$(cat "$work/second")" "$(cat "$work/first")"
    done
done
expect "entries went down" "$(field "$work/recorded" '.moves.demoted > 0')" true
expect "no pool of a replay is left" "$(find "$state_dir" -name 'replay-*')" ""
file=$work/recency.rec


# --- an answer that is not the recorded one is found: this drive scored a token otherwise
HILL_TEST_WRONG_SCORE=300 "$hillinfer" record "$work/wrong.rec" "${run[@]}" >/dev/null 2>"$work/err" || fail "record: $(cat "$work/err")"
refused "a drive that scored otherwise" 1 'differs from the recording: a Score Block' "$hillinfer" replay "$work/wrong.rec" csd_agent --state-dir "$state_dir"
expect "its scorer did what it did" "$(replay "$work/wrong.rec" cpu_scorer | grep -c 'as recorded')" 1

# --- a GPU worker that computes otherwise is found: these are other weights
cp "$work/random.gguf" "$work/kept.gguf"
small_model "$work/random.gguf" -s 8
refused "other weights" 1 'differs from the recording at event [0-9]+: other bytes in the APPEND' "$hillinfer" replay "$file" gpu_worker
mv "$work/kept.gguf" "$work/random.gguf"

# --- several at once, one of them cancelled, one restored: however they lay beside one another, each stage does what it did
several() { # DESCRIPTION OPTIONS...
    local what=$1 i pids=()
    shift
    rm -f "$work/several.rec" "$work"/session[1-4]
    "$hillinfer" up --detach "${folders[@]}" -m "$work/random.gguf" -c 8192 --alpha 0.1 --beta 0.25 -np 3 "$@" --record "$work/several.rec" \
        2>"$work/err" || fail "$what: up --record: $(cat "$work/err")"
    for i in 1 2 3 4; do
        tail -c +$((i * 300)) LICENSE | head -c $((2000 - i * 300)) >"$work/prompt$i"
        "$bin/hillctl" generate -f "$work/prompt$i" -n $((i == 3 ? 4000 : 80)) --temp 0.8 -s "$i" --ignore-eos --run-dir "$run_dir" \
            --save "$work/session$i" >/dev/null 2>"$work/err$i" &
        pids[i]=$!
    done
    for i in 1 2 4; do
        wait "${pids[i]}" || fail "$what: request $i: $(cat "$work/err$i")"
    done
    kill -INT "${pids[3]}"
    wait "${pids[3]}"
    expect "$what: the cancelled one: exit code" $? 130
    "$bin/hillctl" restore "$work/session1" -n 20 --run-dir "$run_dir" >/dev/null 2>"$work/err" || fail "$what: restore: $(cat "$work/err")"
    down || fail "$what: down"
    rm "$work/session2"
    for stage in gpu_worker cpu_scorer csd_agent; do
        replay "$work/several.rec" $stage >"$work/first"
        expect "$what: $stage alone" "$(grep -cE "^$stage: [1-9][0-9]* .* out, as recorded; .*xxhash64 [0-9a-f]{16}$" "$work/first")" 1
        [ $stage != gpu_worker ] || expect "$what: requests" "$(grep -oE '[0-9]+ requests' "$work/first")" "5 requests"
    done
    expect "$what: no session is saved again" "$([ -e "$work/session2" ] || echo none)" none
}
several "several at once"
several "several at once, guessed" --speculate verify
several "several at once, guesses attended to" --speculate on --exact-layers 1 --rows-in-flight 8
several "several at once, by recency" --placement recency
several "several at once, by keys" --policy leoam

# --- cancelled wherever they are, also while a query waits for its answer, which then comes late and says so
"$hillinfer" up --detach "${folders[@]}" -m "$work/random.gguf" -c 4096 --alpha 0.1 --beta 0.25 -np 3 --policy leoam --record "$work/cancelled.rec" \
    2>"$work/err" || fail "up --record: $(cat "$work/err")"
head -c 1500 LICENSE >"$work/prompt1"
gone() { ! kill -0 "$1" 2>/dev/null; }
cancelled_after() { # SECONDS SEED: again after a second, since a client that has only begun to start (sanitized: for long) ignores it
    "$bin/hillctl" generate -f "$work/prompt1" -n 2000 --temp 0.8 -s "$2" --ignore-eos --run-dir "$run_dir" >/dev/null 2>&1 &
    sleep "$1"
    while kill -INT $! 2>/dev/null; do wait_for 2 gone $!; done
}
for round in $(seq 10); do
    for i in 1 2 3; do
        cancelled_after "0.$((2 + (round + i) % 4))$round" "$i" &
    done
    wait
done
down || fail "down"
for stage in gpu_worker cpu_scorer csd_agent; do
    replay "$work/cancelled.rec" $stage >"$work/first"
    if grep -q "^$stage: .* as recorded" "$work/first"; then
        pass "cancelled requests: $stage alone"
    else # which event is what explains a failure
        fail "cancelled requests: $stage alone: $(cat "$work/first")"
    fi
done

# --- damage: every kind is refused, with the field, before anything runs
size=$(stat -c %s "$file")
damaged() { # NAME: a fresh copy
    cp "$file" "$work/damaged.rec"
    echo "$work/damaged.rec"
}
for cut in 0 7 47 60 $((size / 2)) $((size - 41)) $((size - 1)); do
    head -c "$cut" "$file" >"$work/damaged.rec"
    refused "cut at $cut" 1 'field' "$hillinfer" replay "$work/damaged.rec" cpu_scorer
done
for at in 0 9 13 17 21 25 33 41 50 $((size / 3)) $((size / 2)) $((size - 40)) $((size - 20)) $((size - 1)); do
    damaged >/dev/null
    byte=$(od -An -tu1 -j "$at" -N 1 "$file" | tr -d ' ')
    # shellcheck disable=SC2059  # the format is the byte
    printf "\\x$(printf %02x $((byte ^ 16)))" | dd of="$work/damaged.rec" bs=1 seek="$at" conv=notrunc status=none
    refused "a flipped bit at $at" 1 'field|end' "$hillinfer" replay "$work/damaged.rec" csd_agent --state-dir "$state_dir"
done
cat "$file" - <<<"more" >"$work/damaged.rec"
refused "bytes after the end" 1 'field size' "$hillinfer" replay "$work/damaged.rec" cpu_scorer
refused "not a recording" 1 'field magic' "$hillinfer" replay "$work/random.gguf" cpu_scorer

# --- wrong use
refused "no such file" 100 'No such file' "$hillinfer" replay "$work/none.rec" cpu_scorer
refused "no stage" 100 'replay needs' "$hillinfer" replay "$file"
refused "a stage that cannot be driven" 100 'coordinator' "$hillinfer" replay "$file" coordinator
refused "a leftover argument of replay" 100 'extra' "$hillinfer" replay "$file" cpu_scorer extra
refused "an unknown option of replay" 100 '--foo' "$hillinfer" replay "$file" cpu_scorer --state-dir "$state_dir" --foo
refused "record over a file" 100 'is there already' "$hillinfer" record "$file" "${run[@]}"
refused "record without a file" 100 'record needs FILE' "$hillinfer" record -m "$work/random.gguf"
"$hillinfer" record "$work/hot.rec" "${run[@]}" --csd none >/dev/null 2>"$work/err" || fail "record without a drive: $(cat "$work/err")"
expect "without a drive: cpu_scorer alone" "$(replay "$work/hot.rec" cpu_scorer | grep -c 'as recorded')" 1
expect "without a drive: gpu_worker alone" "$(replay "$work/hot.rec" gpu_worker | grep -c 'as recorded')" 1
refused "without a drive: csd_agent" 100 'no drive was attached' "$hillinfer" replay "$work/hot.rec" csd_agent --state-dir "$state_dir"
expect_nothing_left
finish
