#!/usr/bin/env bash
# tests/long/important_answers.sh - --prefix-attention select on LongEval's lines: how many items are right computed whole
# and with the important tokens of a stored prefix alone, how many differ, and what was loaded before the first token.
#
# ITEMS (50) of LINES_FILE (lines_200.jsonl.gz of $BENCH_DATA; docs/data.md) as chats with MODEL (Qwen2.5 Coder 0.5B; its file), at
# SHARE (0.4). Each prompt is first read whole, which leaves it in the store; then another pipeline, whose tiers have nothing,
# answers it over the store's important tokens. The goal: of 50 items 2 at most are right in one way alone; whether that is
# met is printed. Fails if SHARE loads more than MOST (500) thousandths of the bytes of full reuse, or if more than 2 of 50
# items are lost: right computed whole alone. UNIMPORTANT=never: the other tokens stay away from decode, too, and nothing else
# is loaded that the bytes could be held against; the share of items lost is printed, not held. Prints a line an item. About
# half a minute an item on two CPUs. STORE=FOLDER keeps the store and the answers of the prompts that were read whole, for
# this model and this build; a later run with that folder reads none of these prompts again.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"
unset HILL_NO_PREFIX_CACHE HILL_EXACT_BELOW

items=${ITEMS:-50} share=${SHARE:-0.4} unimportant=${UNIMPORTANT:-later} most=${MOST:-500} name=qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
lines=${LINES_FILE:-${BENCH_DATA:-build/bench/data}/lines_200.jsonl.gz}
model=${MODEL:-$(model_file "$name")}
[ -n "$model" ] || skip "$name is not there (scripts/hillinfer get-models qwen)"
[ -r "$lines" ] || skip "$lines is not there (docs/data.md)"
"$(dirname "$0")/../../scripts/accuracy-items" lines lines "$lines" | head -n "$items" >"$work/items" || fail "items"
count=$(wc -l <"$work/items")
kept=${STORE:-$work/store}/$(basename "$model" .gguf)-$("$bin/hillctl" --version | tr -cs 'A-Za-z0-9.\n' -)
mkdir -p "$kept" || fail "$kept"
pipeline=(-m "$model" -c 8192 -np 1 --policy full --csd none --prefix-dir "$kept/chunks" --prefix-mb 20G --prefix-attention select
    --prefix-share "$share" --prefix-unimportant "$unimportant")

ask() { # ITEM OUTPUT
    sed -n "$1p" "$work/items" | jq -j .prompt >"$work/prompt"
    hillctl generate --chat -f "$work/prompt" -n 48 --temp 0 --json >"$work/answer" 2>"$work/answer.err" || {
        fail "item $1: $(cat "$work/answer.err")"
        return
    }
    mv "$work/answer" "$2"
}
whole() { # ITEM: the file of its answer to the prompt read whole, named by the prompt
    echo "$kept/$(sed -n "$1p" "$work/items" | xxhsum -H64 | cut -d' ' -f1).json"
}
right() { # ITEM OUTPUT: 1 or 0; the number stands in the text, as a whole word
    jq -e --arg n "$(sed -n "$1p" "$work/items" | jq -r '.answers[0]')" '.text | test("(^|[^0-9])" + $n + "($|[^0-9])")' "$2" >/dev/null &&
        echo 1 || echo 0
}
say() { field "$1" '.text | gsub("\n"; " ") | .[:40]'; }

up "${pipeline[@]}" || fail "up"
for ((i = 1; i <= count; i++)); do
    [ ! -e "$(whole "$i")" ] || continue
    ask "$i" "$(whole "$i")"
    expect "item $i, whole: chosen" "$(field "$(whole "$i")" '.prefix.attention == "select"')" false
done
down
up "${pipeline[@]}" || fail "up"
right_whole=0 right_select=0 whole_alone=0 select_alone=0 same_text=0 loaded=0 all=0
for ((i = 1; i <= count; i++)); do
    ask "$i" "$work/select$i"
    expect "item $i: attention" "$(field "$work/select$i" '.prefix.attention')" select
    alone=$(whole "$i")
    a=$(right "$i" "$alone") b=$(right "$i" "$work/select$i")
    right_whole=$((right_whole + a)) right_select=$((right_select + b))
    whole_alone=$((whole_alone + (a & ~b & 1))) select_alone=$((select_alone + (b & ~a & 1)))
    [ "$(field "$alone" .text)" != "$(field "$work/select$i" .text)" ] || same_text=$((same_text + 1))
    loaded=$((loaded + $(field "$work/select$i" .prefix.loaded_bytes))) all=$((all + $(field "$work/select$i" .prefix.loaded_later_bytes)))
    echo "item $i: right $a $b; '$(say "$alone")' '$(say "$work/select$i")'; first token after" \
        "$(field "$alone" '.ttft_ms | floor') $(field "$work/select$i" '.ttft_ms | floor') ms"
done
down
echo "$count items: right computed whole $right_whole, by important tokens $right_select; by one alone $whole_alone and $select_alone;" \
    "the same text $same_text; loaded before the first token $loaded bytes of $all"
[ "$unimportant" = never ] || [ $((loaded * 1000)) -le $((all * most)) ] || fail "more than $most thousandths of the bytes of full reuse"
if [ $(((whole_alone + select_alone) * 50)) -le $((2 * count)) ]; then goal=met; else goal=missed; fi
echo "the goal, 2 of 50 items right in one way alone: $goal, $((whole_alone + select_alone)) of $count"
[ "$unimportant" = never ] || [ $((whole_alone * 50)) -le $((2 * count)) ] || fail "more than 2 of 50 items are lost"
expect_nothing_left
finish
