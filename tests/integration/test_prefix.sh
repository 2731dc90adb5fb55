#!/usr/bin/env bash
# Finished requests leave their entries: a prompt that begins as one of them computes only the rest, with the tokens and
# both hashes of a prompt that is computed whole; --after goes on behind an answer. What is cancelled, killed or refused
# takes nothing from what is right.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
requests_last 5
unset HILL_NO_PREFIX_CACHE

"$bin/hill-mkmodel" -o "$work/model.gguf" || fail "mkmodel"
head -c 1500 "$text" >"$work/doc"
for i in 1 2 3; do # the same beginning, other questions
    { cat "$work/doc" && tail -c $((40 * i)) "$text"; } >"$work/asked$i"
done
head -c 700 "$work/doc" >"$work/short"
options=(-m "$work/model.gguf" -c 4096 --alpha 0.2 --sinks 3 --window 17)
store=(--prefix-dir "$work/store" --prefix-mb 6) run2=(--run-dir "$work/second" --state-dir "$work/second.state")

generate() { # OUTPUT ARGUMENTS...
    local out=$1
    shift
    "$bin/hillctl" generate -n 40 --temp 0.8 -s 9 --ignore-eos --json --run-dir "$run_dir" "$@" >"$out" 2>"$out.err"
}
answer() { field "$1" '"\(.tokens) \(.selection_hash) \(.logits_hash) \(.prompt_tokens)"'; }
reused() { field "$1" '"\(.prefix.reused_tokens) \(.prefix.computed_tokens)"'; }
one_line() { # WHAT WANTED-CODE FILE TEXT ARGUMENTS...
    local name=$1 wanted=$2 out=$3 said=$4
    shift 4
    generate "$out" "$@"
    expect "$name: exit code" $? "$wanted"
    expect "$name: lines" "$(wc -l <"$out.err")" 1
    grep -qF -- "$said" "$out.err" || fail "$name: the line does not say '$said': $(cat "$out.err")"
}

# --- what is computed whole, which everything else is compared with
up "${options[@]}" --hot-mb 12 --cold-mb 64 --beta 0.4 -np 2 || fail "up"
for i in asked1 asked2 asked3 short; do
    generate "$work/$i.whole" --no-prefix-cache -f "$work/$i" || fail "$i: $(cat "$work/$i.whole.err")"
    expect "$i is computed whole" "$(field "$work/$i.whole" .prefix.reused_tokens)" 0
done
expect "something is cold" "$(field "$work/asked1.whole" '.tiers.cold.tokens > 0 and .tiers.hot.tokens > 0')" true
n_doc=$(($(field "$work/asked1.whole" .prompt_tokens) - 40))

# takes NAME PROMPT REUSED: computed over what is there, its answer is the whole prompt's
takes() {
    generate "$work/out" -f "$work/$2" || fail "$1: $(cat "$work/out.err")"
    same "$1: answer" "$(answer "$work/out")" "$(answer "$work/$2.whole")"
    expect "$1: reused, computed" "$(reused "$work/out")" "$3 $(($(field "$work/$2.whole" .prompt_tokens) - $3))"
}
takes "the first" asked1 0
takes "another question" asked2 $n_doc
takes "a third" asked3 $n_doc
takes "the same again" asked3 $((n_doc + 119))
takes "a part of it" short $(($(field "$work/short.whole" .prompt_tokens) - 1))
takes "more than a part" asked1 "$(field "$work/short.whole" .prompt_tokens)"

# --- behind an answer: over its entries, whatever their places
first=$(field "$work/out" .request_id)
n_first=$(field "$work/out" '.prompt_tokens + .predicted_tokens')
generate "$work/after1" --after "$first" -p " And then?" || fail "--after: $(cat "$work/after1.err")"
expect "--after: reused, computed" "$(reused "$work/after1")" "$((n_first - 1)) 11"
expect "--after: the decoded among them" "$(field "$work/after1" .prefix.decoded_tokens)" 39
second=$(field "$work/after1" .request_id)
generate "$work/after2" --after "$second" -p " And then?" --save "$work/after.session" || fail "--after: $(cat "$work/after2.err")"
expect "--after that: computed" "$(field "$work/after2" .prefix.computed_tokens)" 11
expect "--after that: nothing again" "$(field "$work/after2" .prefix.computed_again_from)" null
"$bin/hillctl" restore "$work/after.session" -n 20 --json --ignore-eos --run-dir "$run_dir" >"$work/more" 2>"$work/more.err" ||
    fail "its session: $(cat "$work/more.err")"
third=$(field "$work/after2" .request_id)
one_line "--after one whose entries have gone on" 100 "$work/out" "request $first is not kept" --after "$first" -p "x"
one_line "--after an unknown one" 100 "$work/out" "request 4711 is not kept" --after 4711 -p "x"
one_line "--after beyond the context" 1 "$work/out" "exceed the context" --after "$third" -n 4000 -p "x"
one_line "--after and --no-prefix-cache" 100 "$work/out" "exclude each other" --after "$third" --no-prefix-cache -p "x"
one_line "--after with an empty prompt" 100 "$work/out" "the prompt is empty" --after "$third" -p ""
one_line "--after no number" 100 "$work/out" "'x' is not an integer" --after x -p "x"

# --- two at once: one of them has the prefix
generate "$work/left" -f "$work/asked2" &
pid=$!
generate "$work/right" -f "$work/asked3" || fail "beside another: $(cat "$work/right.err")"
wait $pid || fail "beside another: $(cat "$work/left.err")"
same "two at once, one" "$(answer "$work/left")" "$(answer "$work/asked2.whole")"
same "two at once, the other" "$(answer "$work/right")" "$(answer "$work/asked3.whole")"

# --- cancelled within its answer: what it had stays, but it is not named
generate "$work/long" -f "$work/asked1" -n 2000 &
pid=$!
wait_for 30 decoding 1 3 || fail "nothing decodes"
running=$(status | jq '.requests[0].request')
one_line "--after one that runs" 100 "$work/out" "request $running runs still" --after "$running" -p "x"
kill -INT "$(pgrep -P $pid)" # hillctl, below the shell of the job
wait $pid
expect "Ctrl-C" $? 130
one_line "--after a cancelled one" 100 "$work/out" "request $running was cancelled" --after "$running" -p "x"
takes "after a cancelled one" asked1 $((n_doc + 39))

# --- killed within: it begins anew, and so does the next one
for worker in gpu_worker cpu_scorer; do
    takes "before $worker is killed" asked1 $((n_doc + 39))
    generate "$work/long" -f "$work/asked2" -n 300 &
    pid=$!
    wait_for 30 decoding 1 3 || fail "nothing decodes"
    kill_worker $worker
    wait $pid || fail "$worker killed: $(cat "$work/long.err")"
    expect "$worker killed: in time" "$(field "$work/long" '.recovery.attempts > 1')" true
    same "$worker killed: tokens" "$(field "$work/long" '.tokens[:40]' | jq -c .)" "$(field "$work/asked2.whole" .tokens | jq -c .)"
    generate "$work/out" -f "$work/asked1" || fail "after $worker was killed: $(cat "$work/out.err")"
    same "after $worker was killed" "$(answer "$work/out")" "$(answer "$work/asked1.whole")"
done
down || fail "down"

# --- the store on the drive: what earlier runs have computed is read; what is damaged is computed, and named once
from_drive() { # NAME PROMPT TOKENS: an answer as if all was computed
    generate "$work/out" -f "$work/$2" || fail "$1: $(cat "$work/out.err")"
    same "$1: answer" "$(answer "$work/out")" "$(answer "$work/$2.whole")"
    expect "$1: from the drive" "$(field "$work/out" .prefix.from_drive_tokens)" "$3"
}
up "${options[@]}" "${store[@]}" --hot-mb 12 --cold-mb 64 --beta 0.4 -np 2 || fail "up"
expect_one_line "a second pipeline on one store" 100 "$bin/hill-coordinator" "${options[@]}" "${store[@]}" "${run2[@]}"
grep -q "store is another running pipeline's" "$work/err" || fail "a second pipeline on one store: $(cat "$work/err")"
generate "$work/long" -f "$work/asked1" -n 2000 &
pid=$!
wait_for 30 decoding 1 || fail "nothing decodes"
from_drive "behind one that decodes" asked2 $n_doc
kill -INT "$(pgrep -P $pid)"
wait $pid
from_drive "what the tiers have" asked2 0
kill_worker gpu_worker
from_drive "after a worker's death" asked3 $n_doc # a part of the last chunk, too
down || fail "down"
size=$(du -b "$work/store" | tail -n 1 | cut -f1)
[ "$size" -le $((6 << 20)) ] || fail "the store has $size bytes"
printf '\377\377' | dd of="$work/store/chunks.data" bs=1 seek=$((5 * 131072 + 70000)) conv=notrunc 2>/dev/null
up "${options[@]}" "${store[@]}" --csd none || fail "up"
from_drive "after down and up, a chunk damaged" asked1 320
from_drive "it was computed" asked2 0
expect "the damage is named once" "$(cat "$state_dir"/*.log | grep -c 'chunk 5 of chunks.data is damaged: its checksum is wrong; it is dropped')" 1
generate "$work/out" -f "$work/asked1" --no-prefix-cache || fail "--no-prefix-cache: $(cat "$work/out.err")"
expect "--no-prefix-cache: nothing is taken" "$(reused "$work/out")" "0 $((n_doc + 40))"
down || fail "down"
printf 'x' | dd of="$work/store/chunks.index" bs=1 seek=20 conv=notrunc 2>/dev/null
expect_one_line "a damaged store" 1 "$bin/hill-coordinator" "${options[@]}" "${store[@]}" "${run2[@]}"
expect_one_line "a store under h2o" 100 "$bin/hill-coordinator" "${options[@]}" "${store[@]}" --policy h2o "${run2[@]}"
expect_one_line "a store that holds no chunk" 100 "$bin/hill-coordinator" "${options[@]}" --prefix-dir "$work/few" --prefix-mb 10K "${run2[@]}"
mkdir -m 775 "$work/theirs"
expect_one_line "a store where others may write" 100 "$bin/hill-coordinator" "${options[@]}" --prefix-dir "$work/theirs" --prefix-mb 6 "${run2[@]}"
grep -q "$work/theirs must belong to this user, and nobody else may write there" "$work/err" || fail "a store where others may write: $(cat "$work/err")"
expect_one_line "a store in a file" 111 "$bin/hill-coordinator" "${options[@]}" --prefix-dir "$work/doc/store" "${run2[@]}"

# --- of a stored prefix only the important tokens before the first token; the others after it
first=(--prefix-dir "$work/first" --prefix-mb 20 --csd none -np 1)
flip() { # FILE OFFSET
    printf '\377\377' | dd of="$work/first/$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}
asks() { # NAME PROMPT ATTENTION; a pipeline with empty tiers is up
    generate "$work/out" -f "$work/$2" || fail "$1: $(cat "$work/out.err")"
    expect "$1: attention" "$(field "$work/out" .prefix.attention)" "$3"
    [ "$3" != all ] || same "$1: answer" "$(answer "$work/out")" "$(answer "$work/$2.whole")"
}
up "${options[@]}" "${first[@]}" || fail "up"
generate "$work/out" -f "$work/asked1" || fail "a first store: $(cat "$work/out.err")"
down || fail "down"
up "${options[@]}" "${first[@]}" --prefix-attention select || fail "up"
asks "a store without keys" asked2 all
all_bytes=$(field "$work/out" .prefix.loaded_bytes)
down || fail "down"
up "${options[@]}" "${first[@]}" --prefix-attention select --prefix-cache-mb 1 || fail "up"
asks "important tokens" asked2 select
expect "important tokens: out of an empty cache" "$(field "$work/out" .prefix.cached_bytes)" 0
expect "important tokens: loaded" "$(field "$work/out" '"\(.prefix.loaded_entries) \(.prefix.reused_tokens)"')" "1232 1536"
expect "important tokens: behind the same first token" "$(jq -sc '[(map(.tokens) | .[0][0] == .[1][0], .[0] == .[1]), .[0].selection_hash == .[1].selection_hash]' "$work/out" "$work/asked2.whole")" "[true,true,true]"
expect "important tokens: bytes" "$(field "$work/out" ".prefix.loaded_bytes < $all_bytes and .prefix.loaded_later_bytes > 0")" true
cp "$work/out" "$work/important"
generate "$work/out" -f "$work/asked3" || fail "behind important tokens: $(cat "$work/out.err")"
same "behind important tokens: answer" "$(answer "$work/out")" "$(answer "$work/asked3.whole")"
expect "behind important tokens: reused" "$(field "$work/out" '"\(.prefix.from_tiers_tokens) \(.prefix.decoded_tokens)"')" "$n_doc 0"
tail -c 900 "$text" >"$work/other"
generate "$work/out" -f "$work/other" || fail "another document: $(cat "$work/out.err")" # it takes the slot
asks "important tokens that are cached" asked2 select
same "important tokens that are cached: answer" "$(answer "$work/out")" "$(answer "$work/important")"
expect "important tokens that are cached: bytes" "$(jq -s '.[1].prefix as $p | $p.cached_bytes > 0 and $p.loaded_bytes + $p.cached_bytes == .[0].prefix.loaded_bytes' "$work/important" "$work/out")" true
down || fail "down"
# the same out of the device's cache, which holds less than the question takes, and of the one in memory, which has the rest
up "${options[@]}" "${first[@]}" --prefix-attention select --prefix-cache-mb 1 --prefix-gpu-cache-mb 0.25 || fail "up"
for i in 1 2 3; do
    asks "a cache on the device, $i" asked2 select
    same "a cache on the device, $i: answer" "$(answer "$work/out")" "$(answer "$work/important")"
    field "$work/out" '.prefix | "\(.cached_bytes) \(.cached_gpu_bytes) \(.loaded_bytes + .cached_bytes)"' >"$work/cached$i"
    generate "$work/out" -f "$work/other" || fail "another document: $(cat "$work/out.err")" # it takes the slot
done
read -r _ _ all_loaded <"$work/cached1"
expect "a cache on the device: empty at first" "$(cat "$work/cached1")" "0 0 $(field "$work/important" .prefix.loaded_bytes)"
for i in 2 3; do
    read -r cached on_device all <"$work/cached$i"
    expect "a cache on the device, $i: bytes" "$all" "$all_loaded"
    if [ "$on_device" -gt 150000 ] && [ "$on_device" -le 262144 ] && [ "$cached" -gt $((on_device + 100000)) ]; then
        pass "a cache on the device, $i: from there, and from memory"
    else
        fail "a cache on the device, $i: $on_device of $cached bytes are from there"
    fi
done
# between the first token and what it stands behind, which a modelled drive has later: seconds, so that a poll finds them
in_between() { # OUTPUT: asked2 is there; its process is $pid
    generate "$work/out" -f "$work/other" || fail "another document: $(cat "$work/out.err")"
    hillctl csd-model flash=0.001 >/dev/null || fail "a slow drive"
    generate "$1" -f "$work/asked2" &
    pid=$!
    wait_for 30 decoding 1 || fail "no first token"
}
in_between "$work/long"
kill_worker cpu_scorer
hillctl csd-model off >/dev/null || fail "no slow drive"
wait $pid || fail "killed behind the first token: $(cat "$work/long.err")"
expect "killed behind the first token: in time" "$(field "$work/long" '.recovery.attempts > 1')" true
same "killed behind the first token" "$(field "$work/long" .tokens | jq -c .)" "$(field "$work/important" .tokens | jq -c .)"
in_between "$work/long"
kill -INT "$(pgrep -P $pid)"
wait $pid
expect "cancelled behind the first token" $? 130
hillctl csd-model off >/dev/null || fail "no slow drive"
generate "$work/out" -f "$work/asked3" || fail "after that: $(cat "$work/out.err")"
same "after that: answer" "$(answer "$work/out")" "$(answer "$work/asked3.whole")"
generate "$work/out" -f "$work/other" || fail "another document: $(cat "$work/out.err")"
generate "$work/out" -f "$work/asked2" -n 1 || fail "one token: $(cat "$work/out.err")"
expect "one token: attention, token" "$(jq -sc '[.[0].prefix.attention, .[0].tokens == .[1].tokens[:1]]' "$work/out" "$work/important")" '["select",true]'
generate "$work/out" -f "$work/asked1" || fail "behind one token: $(cat "$work/out.err")"
same "behind one token: answer" "$(answer "$work/out")" "$(answer "$work/asked1.whole")"
expect "behind one token: reused" "$(field "$work/out" .prefix.from_tiers_tokens)" "$n_doc"
down || fail "down"
HILL_TEST_IMPORTANT_LOAD=all up "${options[@]}" "${first[@]}" --prefix-attention select || fail "up"
asks "all are loaded" asked2 select
same "all are loaded: answer" "$(answer "$work/out")" "$(answer "$work/important")"
expect "all are loaded: bytes" "$(field "$work/out" ".prefix.loaded_bytes > $all_bytes")" true
generate "$work/out" -f "$work/other" || fail "another document: $(cat "$work/out.err")"
generate "$work/long" -f "$work/asked2" -n 300 &
pid=$!
wait_for 30 decoding 1 3 || fail "nothing decodes"
kill_worker gpu_worker
wait $pid || fail "killed behind important tokens: $(cat "$work/long.err")"
expect "killed behind important tokens: in time" "$(field "$work/long" '.recovery.attempts > 1')" true
same "killed behind important tokens" "$(field "$work/long" '.tokens[:40]' | jq -c .)" "$(field "$work/important" .tokens | jq -c .)"
down || fail "down"
flip chunks.keys $((4096 + 2 * 24576 + 5000)) # a header, slots of checksums and keys
up "${options[@]}" "${first[@]}" --prefix-attention select || fail "up"
asks "damaged keys" asked3 all
expect "the damaged keys are named" "$(cat "$state_dir"/*.log | grep -c 'the keys of chunk 2 are not right')" 1
down || fail "down"
flip chunks.data $((3 * 131072 + 70000))
up "${options[@]}" "${first[@]}" --prefix-attention select || fail "up"
generate "$work/out" -f "$work/asked3" || fail "damaged: $(cat "$work/out.err")"
expect "keys that were written again, a chunk damaged: attention" "$(field "$work/out" .prefix.attention)" select
generate "$work/out" -f "$work/asked1" || fail "behind what was damaged: $(cat "$work/out.err")"
same "behind what was damaged: answer" "$(answer "$work/out")" "$(answer "$work/asked1.whole")"
expect "the damage is named" "$(cat "$state_dir"/*.log | grep -c 'chunk 3 of chunks.data is damaged')" 1
down || fail "down"
up "${options[@]}" "${first[@]}" --prefix-attention select --prefix-share 1 || fail "up"
asks "all are important" asked3 select
same "all are important: answer" "$(answer "$work/out")" "$(answer "$work/asked3.whole")"
expect "all are important: nothing is probed" "$(field "$work/out" '"\(.prefix.probe_ms) \(.prefix.loaded_entries / .prefix.reused_tokens >= 1)"')" "0 true"
down || fail "down"
up "${options[@]}" "${first[@]}" || fail "up"
asks "nothing is chosen" asked2 all
[ ! -e "$work/first/chunks.keys" ] || fail "keys that nobody keeps up to date are still there"
down || fail "down"
# layers guessed ahead of their own queries: the same answer, out of any cache, and little more is read
small_model "$work/deep.gguf" --layers 8
deep=(-m "$work/deep.gguf" -c 4096 --alpha 0.2 --sinks 3 --window 17 --prefix-dir "$work/deep" --prefix-mb 60 --csd none -np 1)
up "${deep[@]}" || fail "up"
generate "$work/out" -f "$work/asked1" || fail "a deeper model's store: $(cat "$work/out.err")"
down || fail "down"
for guess in off on cached; do
    caches=()
    [ $guess != cached ] || caches=(--prefix-cache-mb 1 --prefix-gpu-cache-mb 256K) # a part of what a question takes
    HILL_TEST_IMPORTANT_GUESS=${guess/cached/on} up "${deep[@]}" --prefix-attention select --log-level info "${caches[@]}" || fail "up"
    generate "$work/out" -f "$work/asked3" || fail "guesses $guess: $(cat "$work/out.err")" # without keys in its store at first
    for i in 1 2; do
        generate "$work/out" -f "$work/other" || fail "another document: $(cat "$work/out.err")" # it takes the slot
        generate "$work/guess.$guess" -f "$work/asked2" || fail "guesses $guess: $(cat "$work/guess.$guess.err")"
        [ $guess = off ] || same "guesses $guess, $i: answer" "$(answer "$work/guess.$guess")" "$(answer "$work/guess.off")"
    done
    expect "guesses $guess: attention" "$(field "$work/guess.$guess" .prefix.attention)" select
    [ $guess = off ] && guessed=0 || guessed=6
    cat "$state_dir"/*.log | grep 'layers guessed ahead' | tail -n 1 | grep -q "$guessed of 8 layers" || fail "guesses $guess: not $guessed of 8 layers"
    down || fail "down"
done
expect "guesses: bytes" "$(jq -s '[.[].prefix | .loaded_bytes + .cached_bytes] | .[0] < .[1] and .[1] < 1.2 * .[0] and .[2] < 1.2 * .[0]' "$work"/guess.{off,on,cached})" true
expect "guesses: from the drive and the caches" "$(field "$work/guess.cached" '.prefix | .loaded_bytes > 100000 and .cached_bytes > 0')" true
# all of each layer ahead, and what the caches have meanwhile
up "${deep[@]}" --prefix-attention select --prefix-share 1 --prefix-cache-mb 3 --prefix-gpu-cache-mb 1 || fail "up"
for i in 1 2 3; do
    generate "$work/out" -f "$work/asked$i" || fail "all of it ahead, $i: $(cat "$work/out.err")"
    expect "all of it ahead, $i: attention" "$(field "$work/out" .prefix.attention)" select
    generate "$work/whole" --no-prefix-cache -f "$work/asked$i" || fail "all of it ahead, $i: $(cat "$work/whole.err")" # it takes the slot
    same "all of it ahead, $i: answer" "$(answer "$work/out")" "$(answer "$work/whole")"
done
expect "all of it ahead: out of the caches" "$(field "$work/out" '.prefix.cached_bytes > 0')" true
down || fail "down"
expect_one_line "a store that holds no chunk beside its keys" 100 "$bin/hill-coordinator" "${options[@]}" --prefix-dir "$work/few" --prefix-mb 140K --prefix-attention select "${run2[@]}"
expect_one_line "select without a store" 100 "$bin/hill-coordinator" "${options[@]}" --prefix-attention select "${run2[@]}"
expect_one_line "a cache of what is not chosen" 100 "$bin/hill-coordinator" "${options[@]}" "${store[@]}" --prefix-cache-mb 1 "${run2[@]}"
expect_one_line "a cache on the device of what is not chosen" 100 "$bin/hill-coordinator" "${options[@]}" "${store[@]}" --prefix-gpu-cache-mb 1 "${run2[@]}"
expect_one_line "a cache on the device beyond this machine's memory" 100 "$bin/hill-coordinator" "${options[@]}" "${store[@]}" --prefix-attention select --prefix-gpu-cache-mb 1000G "${run2[@]}"
expect_one_line "a cache beyond this machine's memory" 100 "$bin/hill-coordinator" "${options[@]}" "${store[@]}" --prefix-attention select --prefix-cache-mb 1000G "${run2[@]}"
expect_one_line "a share of what is not chosen" 100 "$bin/hill-coordinator" "${options[@]}" "${store[@]}" --prefix-share 0.2 "${run2[@]}"

# --- other places: all hot without a drive, and a store on a disk with room for three chunks; nearly all cold, by recency;
# all tokens; the decoded history is the same everywhere
disk=""
mkdir "$work/disk"
if mount -t tmpfs -o size=440k tmpfs "$work/disk" 2>/dev/null; then
    disk="--prefix-dir $work/disk/store --prefix-mb 6"
else
    echo "no root: the full disk is left to tests/prefix"
fi
for other in "--csd none -np 1 $disk" "--hot-mb 8 --cold-mb 64 --beta 0.05 --placement recency -np 3" "--policy full -np 1 --hot-mb 12 --cold-mb 64 --beta 0.4"; do
    # shellcheck disable=SC2086  # words
    up "${options[@]}" $other || fail "up $other"
    for i in asked1 short asked2; do
        generate "$work/whole" --no-prefix-cache -f "$work/$i" || fail "$other, whole: $(cat "$work/whole.err")"
        [ "${other#*full}" != "$other" ] || same "$other, $i whole" "$(answer "$work/whole")" "$(answer "$work/$i.whole")"
        generate "$work/short1" -f "$work/short" || fail "$other: $(cat "$work/short1.err")"
        generate "$work/out" -f "$work/$i" || fail "$other: $(cat "$work/out.err")"
        same "$other, $i" "$(answer "$work/out")" "$(answer "$work/whole")"
        expect "$other, $i: some is reused" "$(field "$work/out" '.prefix.reused_tokens > 600')" true
    done
    generate "$work/out" -f "$work/asked1" || fail "$other: $(cat "$work/out.err")"
    generate "$work/out" --after "$(field "$work/out" .request_id)" -p " And then?" || fail "$other, --after: $(cat "$work/out.err")"
    [ "${other#*full}" != "$other" ] || same "$other, --after" "$(answer "$work/out")" "$(answer "$work/after1")"
    [ "${other#*/disk/}" = "$other" ] ||
        expect "a full disk: said" "$(cat "$state_dir"/*.log | grep -c 'the store goes on with the chunks that it has')" 1
    down || fail "down"
done
if [ -n "$disk" ]; then
    mount -o remount,ro "$work/disk"
    # shellcheck disable=SC2086  # words
    expect_one_line "a read-only disk" 111 "$bin/hill-coordinator" "${options[@]}" $disk "${run2[@]}"
    grep -q "$work/disk/store" "$work/err" || fail "a read-only disk: $(cat "$work/err")"
    umount "$work/disk"
fi

# --- a turn, which may be as long as a unit of another's prompt, has more than one READ of what is left
requests_last 100
HILL_TEST_RESTORE_MS=5000 up "${options[@]:0:4}" --budget 64 --csd none -np 1 --prefix-dir "$work/turns" --prefix-mb 20 || fail "up --budget 64"
generate "$work/out" -n 4 -f "$work/doc" || fail "left in few turns: $(cat "$work/out.err")"
expect "left in few turns: chunks" "$(field "$work/out" .prefix.left_chunks)" 23
expect "left in few turns" "$(field "$work/out" '.predicted_ms | if . < 3500 then "few" else . end')" few
down || fail "down"
requests_last 5

# --- a policy whose evaluator has state of its own keeps nothing
up "${options[@]}" --hot-mb 12 --cold-mb 64 --policy h2o || fail "up --policy h2o"
generate "$work/out" -f "$work/short" || fail "h2o: $(cat "$work/out.err")"
one_line "--after with h2o" 1 "$work/out" "keeps no finished requests" --after "$(field "$work/out" .request_id)" -p "x"
generate "$work/out" -f "$work/short" || fail "h2o: $(cat "$work/out.err")"
expect "h2o computes all" "$(field "$work/out" .prefix.reused_tokens)" 0
down || fail "down"
expect_nothing_left
finish
