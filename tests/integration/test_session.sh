#!/usr/bin/env bash
# Sessions: what was saved at the end of a request or in its middle goes on as if it had never stopped: the same tokens,
# selection_hash and logits_hash, also in another pipeline with another placement or no drive. What is damaged, foreign or
# of other settings is refused by file and field and disturbs nobody; a full disk leaves no file.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
requests_last 15

small_model "$work/model.gguf"
small_model "$work/other.gguf" --rope-base 1e5 # of the same size
head -c 2600 "$text" >"$work/prompt0"
tail -c +700 "$text" | head -c 900 >"$work/prompt1"
tail -c 200 "$text" >"$work/question"
cat "$work/prompt1" "$work/question" >"$work/asked"
selection=(-c 4096 --alpha 0.2 --sinks 3 --window 17)
options=(-m "$work/model.gguf" "${selection[@]}")
small=(--hot-mb 12 --cold-mb 64 --beta 0.4)
total=240 # tokens to make, in however many pieces
trap 'umount "$work/disk" 2>/dev/null; cleanup' EXIT

# generate I N OUTPUT [ARGUMENTS...]
generate() {
    local i=$1 n=$2 out=$3
    shift 3
    "$bin/hillctl" generate -f "$work/prompt$i" -n "$n" --temp 0.8 -s $((7 + i)) --ignore-eos --json --run-dir "$run_dir" "$@" \
        >"$out" 2>"$out.err"
}
restore() { # FILE N OUTPUT [ARGUMENTS...]
    local file=$1 n=$2 out=$3
    shift 3
    "$bin/hillctl" restore "$file" -n "$n" --json --run-dir "$run_dir" "$@" >"$out" 2>"$out.err"
}
save() { # REQUEST FILE
    "$bin/hillctl" save "$1" "$2" --run-dir "$run_dir" >"$work/save" 2>"$work/save.err"
}
hashes() { field "$1" '"\(.finish_reason) \(.selection_hash) \(.logits_hash)"'; }
tokens() { cat "$@" | jq -rs 'map(.tokens) | add | map(tostring) | join(" ")'; }

# one_line WHAT CODE WANTED FILE TEXT: it ended with that code and one line that holds TEXT
one_line() {
    expect "$1: exit code" "$2" "$3"
    expect "$1: lines" "$(wc -l <"$4")" 1
    grep -qF -- "$5" "$4" || fail "$1: the line does not say '$5': $(cat "$4")"
}
# ask OUTPUT [ARGUMENTS...]: document and question as one prompt, sampled as prompt1 is
ask() {
    local out=$1
    shift
    "$bin/hillctl" generate -f "$work/asked" -n 60 --temp 0.8 -s 8 --ignore-eos --json --run-dir "$run_dir" "$@" >"$out" 2>"$out.err"
}
# goes_on NAME FILE MADE [FIRST-PART]: restored, the rest is as in the uninterrupted run
goes_on() {
    local name=$1 file=$2 made=$3 rest="$work/rest"
    restore "$file" $((total - made)) "$rest" || fail "$name: restore: $(cat "$rest.err")"
    expect "$name: tokens" "$(tokens ${4:+"$4"} "$rest" | tr ' ' '\n' | tail -n $((total - made)) | cksum)" \
        "$(tokens "$work/whole0" | tr ' ' '\n' | tail -n $((total - made)) | cksum)"
    expect "$name: hashes" "$(hashes "$rest")" "$(hashes "$work/whole0")"
}

# --- uninterrupted
up "${options[@]}" "${small[@]}" -np 3 || fail "up"
generate 0 $total "$work/whole0" || fail "whole 0: $(cat "$work/whole0.err")"
generate 1 $total "$work/whole1" || fail "whole 1: $(cat "$work/whole1.err")"
expect "something is cold" "$(field "$work/whole0" '.tiers.cold.tokens > 0 and .tiers.hot.tokens > 0')" true

# --- at the end of a request, and again
generate 0 90 "$work/part0" --save "$work/s90" || fail "generate --save: $(cat "$work/part0.err")"
expect "nothing half is left" "$(find "$work" -name '*.saving')" ""
goes_on "saved at 90" "$work/s90" 90 "$work/part0"
expect "prompt and first tokens are the session" "$(field "$work/rest" .prompt_tokens)" $(($(field "$work/part0" .prompt_tokens) + 90))
expect "of it, only the newest token had no entry" "$(field "$work/rest" .prefix.computed_tokens)" 1
expect "nothing was prefilled" "$(jq -s '.[0].prompt_ms < .[1].prompt_ms / 2' "$work/rest" "$work/whole0")" true
restore "$work/s90" 30 "$work/part1" --save "$work/s120" || fail "restore --save: $(cat "$work/part1.err")"
goes_on "saved twice" "$work/s120" 120 "$work/part1"

# --- in the middle, while another decodes
generate 0 $total "$work/mid0" &
first=$!
generate 1 $total "$work/mid1" &
second=$!
wait_for 30 decoding 2 3 || fail "two do not decode"
id=$(status | jq -r '.requests | max_by(.prompt_tokens).request')
save "$id" "$work/mid" || fail "save: $(cat "$work/save.err")"
wait $first || fail "the saved request: $(cat "$work/mid0.err")"
wait $second || fail "the other request: $(cat "$work/mid1.err")"
for i in 0 1; do
    same "request $i beside a save" "$(tokens "$work/mid$i") $(hashes "$work/mid$i")" "$(tokens "$work/whole$i") $(hashes "$work/whole$i")"
done
made=$(($(grep -o '[0-9]* tokens' "$work/save" | cut -d' ' -f1) - $(field "$work/whole0" .prompt_tokens)))
[ "$made" -gt 3 ] || fail "not in the middle: $made tokens, $(cat "$work/save")"
[ "$made" -lt $total ] || fail "not in the middle: $made tokens, $(cat "$work/save")"
grep -qF "$work/mid" "$work/save" || fail "save does not say where: $(cat "$work/save")"
goes_on "saved in the middle (at $made)" "$work/mid" "$made"
save 4711 "$work/none"
one_line "a request that does not run" $? 100 "$work/save.err" "no such request"

# --- a worker dies under a restored request
for worker in gpu_worker cpu_scorer csd_agent; do
    restore "$work/s90" $((total - 90)) "$work/rest" &
    first=$!
    wait_for 30 decoding 1 3 || fail "nothing decodes"
    kill_worker $worker
    wait $first || fail "$worker killed: $(cat "$work/rest.err")"
    expect "$worker killed: in time" "$(field "$work/rest" '.recovery.attempts > 1')" true
    same "$worker killed: tokens" "$(tokens "$work/part0" "$work/rest")" "$(tokens "$work/whole0")"
    expect "$worker killed: hashes" "$(hashes "$work/rest")" "$(hashes "$work/whole0")"
done
beginning() { od -An -tu4 -j136 -N4 "$1" && od -An -tu4 -j156 -N4 "$1"; } # n_prompt, first_append (session/session.h)
cp "$work/s90" "$work/gone"
restore "$work/gone" $((total - 90)) "$work/rest" --save "$work/went_on" &
first=$!
wait_for 30 decoding 1 3 || fail "nothing decodes"
rm "$work/gone"
kill_worker gpu_worker
wait $first || fail "its file is gone when a worker dies: $(cat "$work/rest.err")"
expect "its file is gone when a worker dies: in time" "$(field "$work/rest" '.recovery.attempts > 1')" true
same "its file is gone when a worker dies: tokens" "$(tokens "$work/part0" "$work/rest")" "$(tokens "$work/whole0")"
expect "its file is gone when a worker dies: how it began" "$(beginning "$work/went_on")" "$(beginning "$work/s90")"

# --- a question: on a document, the bits of document and question as one prompt; after an answer, over the entries that are there
ask "$work/asked0" || fail "document and question: $(cat "$work/asked0.err")"
generate 1 1 "$work/out" --save "$work/doc" || fail "--save after one token: $(cat "$work/out.err")"
restore "$work/doc" 60 "$work/rest" -f "$work/question" || fail "a question: $(cat "$work/rest.err")"
same "a question on a document" "$(tokens "$work/rest") $(hashes "$work/rest") $(field "$work/rest" .text)" \
    "$(tokens "$work/asked0") $(hashes "$work/asked0") $(field "$work/asked0" .text)"
expect "document and question are the prompt" "$(field "$work/rest" .prompt_tokens)" "$(field "$work/asked0" .prompt_tokens)"
expect "the question alone was computed" "$(field "$work/rest" .prefix.computed_tokens)" "$(wc -c <"$work/question")"
generate 1 $total "$work/mid1" & # whose steps run between those of the question
second=$!
wait_for 30 decoding 1 3 || fail "nothing decodes"
restore "$work/s90" 40 "$work/after0" -f "$work/question" --save "$work/turn" || fail "a question after an answer: $(cat "$work/after0.err")"
expect "a question after an answer: its prompt" "$(field "$work/after0" .prompt_tokens)" $(($(field "$work/rest" .prompt_tokens) - $(wc -c <"$work/prompt1") + 90 + $(wc -c <"$work/prompt0")))
wait $second || fail "the request beside a question: $(cat "$work/mid1.err")"
same "the request beside a question" "$(tokens "$work/mid1") $(hashes "$work/mid1")" "$(tokens "$work/whole1") $(hashes "$work/whole1")"
restore "$work/turn" 30 "$work/after1" || fail "a session with a question: $(cat "$work/after1.err")"
restore "$work/doc" $total "$work/long" -f "$work/question" || fail "a long answer: $(cat "$work/long.err")"
for worker in gpu_worker cpu_scorer; do
    restore "$work/doc" $total "$work/rest" -f "$work/question" &
    first=$!
    wait_for 30 decoding 1 3 || fail "nothing decodes"
    kill_worker $worker
    wait $first || fail "$worker killed: $(cat "$work/rest.err")"
    expect "$worker killed after a question: in time" "$(field "$work/rest" '.recovery.attempts > 1')" true
    same "$worker killed after a question" "$(tokens "$work/rest") $(hashes "$work/rest")" "$(tokens "$work/long") $(hashes "$work/long")"
done
restore "$work/doc" 5 "$work/out" -p ""
one_line "an empty question" $? 100 "$work/out.err" "the question is empty"
restore "$work/doc" 5 "$work/out" --token-ids -p "1 999999"
one_line "a question of unknown tokens" $? 100 "$work/out.err" "token id 999999 is outside"
restore "$work/doc" 3600 "$work/out" -f "$work/question"
one_line "a question beyond the context" $? 1 "$work/out.err" "exceed the context"

# --- damaged, truncated, no session: refused, and a request that runs meanwhile is not disturbed
generate 1 $total "$work/mid1" &
second=$!
wait_for 30 decoding 1 3 || fail "nothing decodes"
bytes=$(stat -c %s "$work/s90")
flip() { # OFFSET
    cp "$work/s90" "$work/bad"
    printf '%b' "\\x$(printf %02x $((0x$(od -An -tx1 -j"$1" -N1 "$work/s90" | tr -d ' ') ^ 16)))" |
        dd of="$work/bad" bs=1 seek="$1" conv=notrunc status=none
}
flip 200
restore "$work/bad" 5 "$work/out"
one_line "a flipped bit in the header" $? 1 "$work/out.err" "session $work/bad is damaged: the header's checksum"
flip 460
restore "$work/bad" 5 "$work/out"
one_line "a flipped bit in the tokens" $? 1 "$work/out.err" "session $work/bad is damaged: the checksum of the tokens"
flip $((bytes - 100))
restore "$work/bad" 5 "$work/out"
one_line "a flipped bit in the last layer" $? 1 "$work/out.err" "session $work/bad is damaged: the checksum of layer"
flip $((bytes / 2))
restore "$work/bad" 5 "$work/out"
one_line "a flipped bit in the middle" $? 1 "$work/out.err" "session $work/bad is damaged: the checksum of layer"
head -c $((bytes - 1)) "$work/s90" >"$work/bad"
restore "$work/bad" 5 "$work/out"
one_line "one byte short" $? 1 "$work/out.err" "session $work/bad is damaged: it has $((bytes - 1)) bytes"
restore "$work/prompt0" 5 "$work/out"
one_line "a text" $? 1 "$work/out.err" "$work/prompt0 is no session"
restore "$work/nowhere" 5 "$work/out"
one_line "no file" $? 100 "$work/out.err" "$work/nowhere"
restore "$work/s90" 9999 "$work/out"
one_line "beyond the context" $? 1 "$work/out.err" "exceed the context"
wait $second || fail "the request that ran meanwhile: $(cat "$work/mid1.err")"
same "the request that ran meanwhile" "$(tokens "$work/mid1") $(hashes "$work/mid1")" "$(tokens "$work/whole1") $(hashes "$work/whole1")"

# --- where it cannot be written
save 0 "$work/no/folder" # told before anybody is asked
one_line "no such folder" $? 111 "$work/save.err" "$work/no/folder"
for folder in no/folder prompt0/file disk; do # told before anything is computed, also by --check
    mkdir -p "$work/disk"
    expect_one_line "--save $folder" 111 "$bin/hillctl" generate -p x --save "$work/$folder" --run-dir "$work/nothing-runs"
    grep -qF "no session can be saved in $work/$folder: " "$work/err" || fail "--save $folder: $(cat "$work/err")"
    expect_one_line "--save $folder --check" 111 "$bin/hillctl" generate -p x --save "$work/$folder" --check
    expect_one_line "restore --save $folder --check" 111 "$bin/hillctl" restore "$work/s90" --save "$work/$folder" --check
done
# a device or a pipe is not replaced by the file; a link is followed
mkfifo "$work/pipe"
ln -s pipe "$work/link"
for file in pipe link; do
    expect_one_line "--save $file" 100 "$bin/hillctl" generate -p x --save "$work/$file" --check
    save 0 "$work/$file"
    one_line "save into $file" $? 100 "$work/save.err" "$work/pipe: it is not a regular file"
done
expect "the pipe and the link stay" "$(stat -c %F "$work/pipe" "$work/link")" "$(printf 'fifo\nsymbolic link')"
generate 0 $total "$work/mid0" &
first=$!
wait_for 30 decoding 1 3 || fail "nothing decodes"
: >"$work/target"
ln -sf target "$work/link"
save 0 "$work/link" || fail "save into a link: $(cat "$work/save.err")"
expect "a link is followed" "$(stat -c %F "$work/link") $([ -s "$work/target" ] && echo written)" "symbolic link written"
if mount -t tmpfs -o size=64k tmpfs "$work/disk" 2>/dev/null; then
    save 0 "$work/disk/s"
    one_line "a full disk" $? 111 "$work/save.err" "$work/disk/s"
    expect "a full disk: files left" "$(ls -A "$work/disk")" ""
    generate 1 20 "$work/out" --save "$work/disk/s"
    one_line "a full disk at the end" $? 111 "$work/out.err" "$work/disk/s"
    expect "a full disk at the end: files left" "$(ls -A "$work/disk")" ""
    same "a full disk at the end: tokens" "$(tokens "$work/out")" "$(tokens "$work/whole1" | cut -d' ' -f1-20)"
    umount "$work/disk"
else
    echo "no root: the full disk is left to tests/session"
fi
wait $first || fail "the request whose saves failed: $(cat "$work/mid0.err")"
same "the request whose saves failed" "$(tokens "$work/mid0") $(hashes "$work/mid0")" "$(tokens "$work/whole0") $(hashes "$work/whole0")"
down || fail "down"

requests_last 5

# --- in other pipelines: everything hot without a drive; nearly everything cold; by recency; one thread; one sequence
for other in "--csd none" "--hot-mb 8 --cold-mb 64 --beta 0.05 --placement recency -t 1" "--hot-mb 64 --beta 3 -np 2 --simd reference"; do
    # shellcheck disable=SC2086  # words
    up "${options[@]}" $other || fail "up $other"
    goes_on "restored with $other" "$work/s90" 90 "$work/part0"
    goes_on "from the middle with $other" "$work/mid" "$made"
    restore "$work/doc" 60 "$work/rest" -f "$work/question" || fail "a question with $other: $(cat "$work/rest.err")"
    same "a question with $other" "$(tokens "$work/rest") $(hashes "$work/rest")" "$(tokens "$work/asked0") $(hashes "$work/asked0")"
    restore "$work/s90" 40 "$work/rest" -f "$work/question" || fail "a question after an answer with $other: $(cat "$work/rest.err")"
    same "a question after an answer with $other" "$(tokens "$work/rest") $(hashes "$work/rest")" "$(tokens "$work/after0") $(hashes "$work/after0")"
    restore "$work/turn" 30 "$work/rest" || fail "a session with a question, with $other: $(cat "$work/rest.err")"
    same "a session with a question, with $other" "$(tokens "$work/rest") $(hashes "$work/rest")" "$(tokens "$work/after1") $(hashes "$work/after1")"
    down || fail "down"
done

# --- other settings, another model
refused() { # TEXT ARGUMENTS...
    local text=$1
    shift
    up "$@" || fail "up $*"
    restore "$work/s90" 5 "$work/out"
    one_line "restored with ${*: -2}" $? 100 "$work/out.err" "$text"
    grep -qF "$work/s90" "$work/out.err" || fail "the refusal does not name the file: $(cat "$work/out.err")"
    down || fail "down"
}
refused "another model" -m "$work/other.gguf" "${selection[@]}"
refused "--alpha 0.2" "${options[@]}" --alpha 0.3
refused "--window 17" "${options[@]}" --window 16
refused "--policy" "${options[@]}" --policy full
refused "--importance" "${options[@]}" --importance sum
refused "--granularity 1" "${options[@]}" --granularity 8


# --- what is guessed, and other policies: the same, or refused
for other in "--speculate on" "--speculate verify" "--policy h2o" "--policy leoam" "--policy prefetch" "--policy full"; do
    # shellcheck disable=SC2086  # words
    up "${options[@]}" "${small[@]}" $other || fail "up $other"
    generate 1 60 "$work/whole" || fail "$other: $(cat "$work/whole.err")"
    generate 1 25 "$work/part" --save "$work/other" || fail "$other, --save: $(cat "$work/part.err")"
    restore "$work/other" 35 "$work/rest" || fail "$other, restore: $(cat "$work/rest.err")"
    same "$other: tokens" "$(tokens "$work/part" "$work/rest")" "$(tokens "$work/whole")"
    expect "$other: hashes" "$(hashes "$work/rest")" "$(hashes "$work/whole")"
    if [ "$other" = "--speculate on" ]; then
        restore "$work/s90" 5 "$work/out"
        one_line "saved without guesses, restored with" $? 100 "$work/out.err" "--speculate on"
    fi
    down || fail "down"
done

# --- saved before the first decode step: any selection and policy goes on from there; h2o only where its sums were saved
up "${options[@]}" "${small[@]}" || fail "up"
generate 1 1 "$work/first" --save "$work/read" || fail "--save after one token: $(cat "$work/first.err")"
restore "$work/s90" 5 "$work/out" --alpha 0.3
one_line "decoded tokens, restored with --alpha" $? 100 "$work/out.err" "--alpha 0.2"
restore "$work/s90" 5 "$work/out" --alpha 0.2 --exact-below 7 --policy hillinfer
one_line "decoded tokens, restored with --exact-below" $? 100 "$work/out.err" "--exact-below 0"
restore "$work/s90" 5 "$work/out" --from-prompt
one_line "decoded tokens, restored --from-prompt" $? 100 "$work/out.err" "$work/s90 has 90 tokens after its prompt"
restore "$work/read" 5 "$work/out" --alpha 0.2 --budget 200
one_line "a share and a budget" $? 100 "$work/out.err" "--alpha and --budget exclude each other"
restore "$work/read" 5 "$work/out" --policy leoam
one_line "a policy that this pipeline does not serve" $? 1 "$work/out.err" "--policy leoam"
down || fail "down"
from_prompt() { # NAME FILE N WANTED [ARGUMENTS...]
    local name=$1 file=$2 n=$3 wanted=$4
    shift 4
    restore "$file" "$n" "$work/again" --from-prompt "$@" || fail "$name: $(cat "$work/again.err")"
    same "$name: all of it" "$(tokens "$work/again") $(hashes "$work/again") $(field "$work/again" '"\(.prompt_tokens) \(.predicted_tokens) \(.text)"')" \
        "$(tokens "$wanted") $(hashes "$wanted") $(field "$wanted" '"\(.prompt_tokens) \(.predicted_tokens) \(.text)"')"
}
up "${options[@]}" "${small[@]}" --policy h2o || fail "up --policy h2o"
restore "$work/read" 5 "$work/out"
one_line "read once without sums, restored with h2o" $? 100 "$work/out.err" "without the sums of attention that --policy h2o"
generate 1 60 "$work/whole" || fail "h2o: $(cat "$work/whole.err")"
generate 1 1 "$work/out" --save "$work/sums" || fail "h2o, --save after one token: $(cat "$work/out.err")"
from_prompt "answered again, h2o" "$work/sums" 60 "$work/whole" --alpha 0.2
restore "$work/sums" 5 "$work/out" -p "What?"
one_line "a question with h2o" $? 1 "$work/out.err" "policy h2o ranks by what all queries"
down || fail "down"
for other in "--alpha 0.5 --window 40 --sinks 2" "--importance sum --score-bits 4" "--importance norm" "--speculate on" "--policy leoam" "--policy prefetch" "--policy full"; do
    # shellcheck disable=SC2086  # words
    up "${options[@]}" "${small[@]}" $other || fail "up $other"
    generate 1 60 "$work/whole" || fail "$other: $(cat "$work/whole.err")"
    restore "$work/read" 59 "$work/rest" || fail "$other, restore: $(cat "$work/rest.err")"
    same "read once, $other: tokens" "$(tokens "$work/first" "$work/rest")" "$(tokens "$work/whole")"
    expect "read once, $other: hashes" "$(hashes "$work/rest")" "$(hashes "$work/whole")"
    from_prompt "answered again, $other" "$work/read" 60 "$work/whole"
    from_prompt "saved under h2o, answered again, $other" "$work/sums" 60 "$work/whole"
    ask "$work/asked1" || fail "document and question, $other: $(cat "$work/asked1.err")"
    restore "$work/sums" 60 "$work/rest" -f "$work/question" || fail "a question, $other: $(cat "$work/rest.err")"
    same "a question, $other" "$(tokens "$work/rest") $(hashes "$work/rest")" "$(tokens "$work/asked1") $(hashes "$work/asked1")"
    case $other in --alpha*) cp "$work/whole" "$work/half" ;; esac
    if [ "$other" = "--policy full" ]; then # the selection comes with the request
        from_prompt "another selection than the pipeline's" "$work/read" 60 "$work/half" --policy hillinfer --alpha 0.5 --window 40 --sinks 2
        [ "$(hashes "$work/half")" != "$(hashes "$work/whole")" ] || fail "the selection changes nothing"
    fi
    down || fail "down"
done
requests_last 20
up "${options[@]}" "${small[@]}" --policy h2o --trace-kv "$work/kvt" || fail "up --trace-kv"
cp "$work/sums" "$work/gone"
restore "$work/gone" $total "$work/rest" & # under a trace it begins anew after a worker's death
first=$!
wait_for 30 decoding 1 3 || fail "nothing decodes"
rm "$work/gone"
kill_worker gpu_worker
wait $first
one_line "its file is gone when it is to be restored again" $? 100 "$work/rest.err" "$work/gone"
cp "$work/sums" "$work/over" # where its answer is to be saved at the end: what an order saves before is not that
restore "$work/over" $total "$work/rest" --save "$work/over" &
first=$!
wait_for 30 decoding 1 3 || fail "nothing decodes"
save 0 "$work/over" || fail "save over its own file: $(cat "$work/save.err")"
kill_worker gpu_worker
wait $first
one_line "its file was replaced when it is to be restored again" $? 1 "$work/rest.err" "session $work/over was replaced"
down || fail "down"
requests_last 5

# --- prefetch chooses its columns by the first keys that come: of a short prompt, or of small chunks, the same again
printf 'A short prompt.' >"$work/prompt2"
for prompt in "2 --batch-size 512" "1 --batch-size 20"; do
    # shellcheck disable=SC2086  # words
    up -m "$work/model.gguf" -c 2000 --policy prefetch --alpha 0.1 --window 4 --sinks 1 --beta 0.4 ${prompt#* } || fail "up --policy prefetch"
    generate "${prompt%% *}" 200 "$work/whole" || fail "prefetch: $(cat "$work/whole.err")"
    generate "${prompt%% *}" 120 "$work/part" --save "$work/other" || fail "prefetch, --save: $(cat "$work/part.err")"
    down || fail "down"
    up -m "$work/model.gguf" -c 2000 --policy prefetch --alpha 0.1 --window 4 --sinks 1 --csd none || fail "up --policy prefetch"
    restore "$work/other" 80 "$work/rest" || fail "prefetch, restore: $(cat "$work/rest.err")"
    expect "prefetch, prompt $prompt: hashes" "$(hashes "$work/rest")" "$(hashes "$work/whole")"
    down || fail "down"
done

# --- a turn, which may be as long as a unit of another's prompt, has more than one READ of a save: of this one there are 123
requests_last 100
HILL_TEST_RESTORE_MS=5000 up -m "$work/model.gguf" -c 4096 --budget 64 --csd none || fail "up --budget 64"
generate 0 4 "$work/out" --save "$work/other" || fail "a save in few turns: $(cat "$work/out.err")"
expect "a save in few turns" "$(field "$work/out" '.predicted_ms | if . < 6000 then "few" else . end')" few
down || fail "down"
requests_last 15

# --- from the script, with a pipeline for each
run_json "$work/out" "${options[@]}" --csd none -f "$work/prompt0" -n 30 --temp 0.8 -s 7 --ignore-eos --session-save "$work/run.session" ||
    fail "run --session-save: $(cat "$work/out.err")"
run_json "$work/rest" "${options[@]}" --csd none --session-restore "$work/run.session" -n 10 || fail "run --session-restore: $(cat "$work/rest.err")"
same "run --session-save, run --session-restore" "$(tokens "$work/out" "$work/rest")" "$(tokens "$work/whole0" | cut -d' ' -f1-40)"
run_json "$work/rest" "${options[@]}" --csd none --session-restore "$work/doc" -f "$work/question" -n 60 || fail "run, a question: $(cat "$work/rest.err")"
same "run --session-restore, a question" "$(tokens "$work/rest") $(hashes "$work/rest")" "$(tokens "$work/asked0") $(hashes "$work/asked0")"
run_json "$work/rest" "${options[@]}" --csd none --session-restore "$work/doc" -f - -n 60 < <(cat "$work/question") || fail "run, a question from a pipe: $(cat "$work/rest.err")"
same "run --session-restore, a question from a pipe" "$(tokens "$work/rest") $(hashes "$work/rest")" "$(tokens "$work/asked0") $(hashes "$work/asked0")"
"$hillinfer" run --run-dir "$run_dir" --state-dir "$state_dir" "${options[@]}" --session-restore "$work/prompt0" -n 1 >"$work/out" 2>"$work/out.err"
one_line "run --session-restore of a text" $? 1 "$work/out.err" "is no session"
expect_nothing_left
finish
