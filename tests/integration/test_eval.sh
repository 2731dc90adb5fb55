#!/usr/bin/env bash
# hill-eval on the real pipeline: pass keys under each way to select, resuming after kill -9, Ctrl-C, a running pipeline, perplexity.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

export XDG_RUNTIME_DIR=$work # where hill-eval puts its own pipelines' run folders
eval_program=$bin/hill-eval

# tasks FILE COUNT BYTES: documents with a key each, the key at another place in each
tasks() {
    local i key
    for i in $(seq "$2"); do
        key=$((7300000 + i * 7919))
        { head -c $(($3 * i / ($2 + 2))) "$text"; printf '\nThe pass key is %s. Remember it.\n' "$key"
          head -c "$3" "$text" | tail -c +$(($3 * i / ($2 + 2) + 1)); printf '\nThe pass key is'; } |
            jq -Rsc --arg key "$key" '{task: "passkey", prompt: ., answers: [$key]}'
    done >"$1"
}

run_folders=() # which hill-eval's pipelines had
# note_run_folder DESCRIPTION: of the pipeline that is up
note_run_folder() {
    run_folders+=("$work"/hill-eval-*)
    [ -n "$(run_dir=${run_folders[-1]} segments)" ] || fail "$1: no segments in ${run_folders[-1]}: nothing is looked at"
}
left() { # processes, segments and folders of hill-eval's pipelines
    local folder
    pgrep -af "$work/hill-eval" | grep 'hill-\(coord\|gpu\|cpu\|csd\)'
    for folder in "${run_folders[@]}"; do run_dir=$folder segments; done | sed '/^$/d'
    find "$work" -maxdepth 1 -name 'hill-eval-*' -o -maxdepth 1 -name '*.pipeline' -o -maxdepth 1 -name '*.sessions'
}
nothing_left() { [ -z "$(left)" ]; }

"$bin/hill-mkmodel" -o "$work/wired.gguf" || fail "mkmodel"
tasks "$work/few.jsonl" 4 1500
tasks "$work/many.jsonl" 30 700

# --- of a pipeline that does not end nothing lives on. hill-eval waits for 30 s: the rest of this test goes on meanwhile
mkdir "$work/stuck"
eval_stuck=(env "XDG_RUNTIME_DIR=$work/stuck" "$eval_program" "$work/many.jsonl" -m "$work/wired.gguf" -o "$work/stuck/results" --policy hillinfer --alpha 0.1 --budget -)
HILL_HANG_MS=60000 HILL_TEST_TURN_MS=5 "${eval_stuck[@]}" >/dev/null 2>&1 &
stuck=$!
wait_for 60 test -s "$work/stuck/results" || fail "no results within 60 s"
stuck_processes() { pgrep -af -- "--run-dir $work/stuck/"; }
expect "processes before" "$(stuck_processes | grep -c 'hill-\(coord\|gpu\|cpu\|csd\)')" 4
kill -STOP "$(stuck_processes | awk '/hill-coordinator/ { print $1; exit }')"
kill -TERM "$stuck"

# --- the wired model finds its keys through hillinfer's selection, and cannot without it
"$eval_program" "$work/few.jsonl" -m "$work/wired.gguf" -o "$work/few.results" --alpha 0.1 --budget - --markdown "$work/few.md" 2>"$work/err"
expect "exit code" $? 0
expect "full" "$(grep -c '^| full | all | - | - | - | 100.0 | 100.0 | - |' "$work/few.md")" 1
expect "hillinfer, alpha 0.1" "$(grep -c '^| hillinfer | 10 % | heads | 8 | off | 100.0 | 100.0 | +0.0 |' "$work/few.md")" 1
expect "window, alpha 0.1" "$(grep -c '^| window | 10 % | - | - | - | 0.0 | 0.0 | -100.0 |' "$work/few.md")" 1
expect "results" "$(jq -r .key "$work/few.results" | sort -u | wc -l)" 12
expect "attended to by hillinfer" "$(jq -r 'select(.policy == "hillinfer") | (.selected - (.prompt_tokens + .predicted_tokens) * 0.1 | fabs < 2)' "$work/few.results" | sort -u)" true
expect "left" "$(left)" ""

# --- nothing is asked twice, and another table of the same results costs nothing
"$eval_program" "$work/few.jsonl" -m "$work/wired.gguf" -o "$work/few.results" --alpha 0.1 --budget - --policy hillinfer >"$work/out" 2>"$work/err"
expect "again: exit code" $? 0
expect "again" "$(cat "$work/err")" "hill-eval: 4 of 4 results are there already"
expect "again: results" "$(wc -l <"$work/few.results")" 12

# --- a folder that is somebody else's is left alone
mkdir "$work/other.results.pipeline" && echo mine >"$work/other.results.pipeline/letter"
"$eval_program" "$work/few.jsonl" -m "$work/wired.gguf" -o "$work/other.results" --alpha 0.1 --budget - >"$work/out" 2>"$work/err"
expect "somebody else's folder: exit code" $? 100
expect "somebody else's folder: one line" "$(grep -c 'other.results.pipeline is in the way' "$work/err") of $(wc -l <"$work/err")" "1 of 1"
expect "somebody else's folder: its file" "$(cat "$work/other.results.pipeline/letter")" mine
rm -r "$work/other.results.pipeline"

# --- kill -9 in the middle: its pipeline ends by itself, the same command goes on
many=("$work/many.jsonl" -m "$work/wired.gguf" -o "$work/many.results" --policy hillinfer --alpha 0.1 --budget -)
HILL_TEST_TURN_MS=5 "$eval_program" "${many[@]}" >/dev/null 2>&1 &
killed=$!
has_some() { [ -f "$work/many.results" ] && [ "$(wc -l <"$work/many.results")" -ge 5 ]; }
wait_for 60 has_some || fail "no results within 60 s"
note_run_folder "to be killed"
kill -KILL "$killed"
wait "$killed" 2>/dev/null
had=$(wc -l <"$work/many.results")
expect "killed before its end" "$([ "$had" -lt 30 ] && echo yes)" yes
"$eval_program" "${many[@]}" >"$work/out" 2>"$work/err" # at once: the other pipeline may still be ending
expect "after kill -9: exit code" $? 0
expect "after kill -9: goes on" "$(head -n 1 "$work/err")" "hill-eval: $had of 30 results are there already"
expect "after kill -9: results" "$(jq -r .key "$work/many.results" | sort -u | wc -l) $(wc -l <"$work/many.results")" "30 30"
expect "after kill -9: right" "$(grep -c '| hillinfer | 10 % | heads | 8 | off | 100.0 |' "$work/out")" 1
if wait_for 20 nothing_left; then pass "nothing is left"; else fail "left: $(left)"; fi

# --- Ctrl-C
rm "$work/many.results"
HILL_TEST_TURN_MS=5 "$eval_program" "${many[@]}" >/dev/null 2>"$work/err" &
interrupted=$!
wait_for 60 has_some || fail "no results within 60 s"
note_run_folder "to be interrupted"
kill -TERM "$interrupted"
wait "$interrupted"
expect "interrupted: exit code" $? 130
expect "interrupted: says so" "$(tail -n 1 "$work/err")" "hill-eval: interrupted"
expect "interrupted: left" "$(left)" ""

# --- a pipeline that refuses its options: its own words, in one line
"$eval_program" "$work/few.jsonl" -m "$work/wired.gguf" -o "$work/refused.results" --score-bits 5 >"$work/out" 2>"$work/err"
expect "refused options: exit code" $? 100
expect "refused options: lines" "$(wc -l <"$work/err") $(grep -c 'the pipeline did not start: .*score-bits' "$work/err")" "1 1"
expect "refused options: left" "$(left)" ""

# --- a running pipeline, several requests under way; it stays
up -m "$work/wired.gguf" -c 4096 --policy full || fail "up"
"$eval_program" "$work/few.jsonl" --run-dir "$run_dir" -o "$work/few.results" --alpha 0.1 --budget 64 -np 5 >"$work/out" 2>"$work/err"
expect "running pipeline: exit code" $? 0
expect "running pipeline: what is known" "$(head -n 1 "$work/err")" "hill-eval: 12 of 20 results are there already"
expect "running pipeline: budget 64" "$(grep -c '^| hillinfer | 64 | heads | 8 | off | 100.0 |' "$work/out")" 1

# --- a request that does not fit fails alone
tasks "$work/long.jsonl" 1 6000
"$eval_program" "$work/few.jsonl" "$work/long.jsonl" --run-dir "$run_dir" -o "$work/few.results" --alpha 0.1 --budget - --policy full >"$work/out" 2>"$work/err"
expect "too long: exit code" $? 1
expect "too long: named" "$(grep -c 'long.jsonl:1, full: .* exceed the context' "$work/err")" 1
expect "too long: the others are in the table" "$(grep -c '^| full | all | - | - | - | 100.0 (4 of 5) |' "$work/out")" 1
down || fail "down"

# --- perplexity: attending to everything is the same under any policy; given tokens go through the decode path
small_model "$work/random.gguf" -s 7
"$eval_program" "$text" -m "$work/random.gguf" -o "$work/text.results" --policy full,hillinfer --alpha 1,0.1 --budget - --text-bytes 1500 --text-pieces 2 \
    --text-scored 16 >"$work/out" 2>"$work/err"
code=$?
expect "perplexity: exit code" $code 0
full=$(jq -c 'select(.setting == "full") | [.item, .logprob]' "$work/text.results")
expect "perplexity: alpha 1 is full" "$(jq -c 'select(.amount == "100 %") | [.item, .logprob]' "$work/text.results")" "$full"
expect "perplexity: alpha 0.1 is not" "$([ "$(jq -c 'select(.amount == "10 %") | [.item, .logprob]' "$work/text.results")" != "$full" ] && echo differs)" differs
expect "perplexity: scored tokens" "$(jq -s -c 'map(.scored) | unique' "$work/text.results")" "[16]"
# the table names the commits that asked
commit=$("$eval_program" --version | sed -n 's/.*(\(.*\))$/\1/p')
expect "commits" "$(tail -n 1 "$work/out")" "Commits of hill-eval, with the results of each: ${commit:-unknown} (6)."
jq -c 'if input_line_number > 2 then .commit = "0123abc" else . end' "$work/text.results" >"$work/two.results"
"$eval_program" "$text" -m "$work/random.gguf" -o "$work/two.results" --policy full,hillinfer --alpha 1,0.1 --budget - --text-bytes 1500 --text-pieces 2 \
    --text-scored 16 >"$work/out" 2>"$work/err"
expect "commits of two runs" "$(tail -n 1 "$work/out" | grep -o '[^ ]* ([0-9])' | sort | paste -sd' ')" "$(printf '%s\n' "0123abc (4)" "${commit:-unknown} (2)" | sort | paste -sd' ')"
expect "left" "$(left)" ""

# --- a prompt that is read once and restored is answered as one that is read each time, under every setting; the sessions have
# room for one prompt at a time, so the pipelines take turns
tasks "$work/ref.jsonl" 1 800
echo '{"task": "choice", "prompt": "The sky is blue. The sea is", "choices": ["blue", "green as grass", "a"], "gold": 0}' >>"$work/ref.jsonl"
every=("$work/ref.jsonl" -m models/hill-ref.gguf --policy all --alpha 0.1 --budget - --importance "norm,sum" --score-bits "8,4" --speculate "off,on")
answers() { jq -c '[.key, .answer, .logprob, .scored, .selected, .prompt_tokens, .predicted_tokens]' "$1" | sort; }
"$eval_program" "${every[@]}" --sessions-mb 0 -o "$work/each.results" >"$work/each" 2>"$work/err" || fail "prompts read each time: $(cat "$work/err")"
"$eval_program" "${every[@]}" --sessions-mb 1 -o "$work/once.results" >"$work/once" 2>"$work/err" || fail "prompts read once: $(cat "$work/err")"
expect "read once: answers" "$(answers "$work/once.results" | cksum)" "$(answers "$work/each.results" | cksum)"
expect "read once: settings and items" "$(jq -r .setting "$work/each.results" | sort -u | wc -l) $(wc -l <"$work/each.results")" "10 40"
expect "read once: from sessions" "$(jq -r .restored "$work/once.results" | sort | uniq -c | xargs) $(jq -r .restored "$work/each.results" | sort -u)" \
    "1 false 39 true false" # the one: h2o's only request about its prompt
expect "read once: table" "$(cksum <"$work/once")" "$(cksum <"$work/each")"
expect "read once: left" "$(left)" ""

# --- sessions that are kept are used by the next run; one that is another prompt's is not
few=("$work/ref.jsonl" -m models/hill-ref.gguf --policy "full,hillinfer" --alpha 0.1 --budget - --sessions "$work/kept")
"$eval_program" "${few[@]}" -o "$work/kept.results" >/dev/null 2>"$work/err" || fail "sessions kept: $(cat "$work/err")"
kept=("$work"/kept/*)
expect "kept: a session each" "${#kept[@]}" 2
before=$(stat -c %i "${kept[@]}" | xargs)
mv "$work/kept.results" "$work/kept.first"
"$eval_program" "${few[@]}" -o "$work/kept.results" >/dev/null 2>"$work/err" || fail "sessions kept, again: $(cat "$work/err")"
expect "kept: used again" "$(stat -c %i "${kept[@]}" | xargs)" "$before"
mv "$work/kept.results" "$work/kept.second"
cp "${kept[0]}" "${kept[1]}"
"$eval_program" "${few[@]}" -o "$work/kept.results" >/dev/null 2>"$work/err" || fail "another prompt's session: $(cat "$work/err")"
for run in second results; do
    expect "kept: answers, $run" "$(answers "$work/kept.$run" | cksum)" "$(answers "$work/kept.first" | cksum)"
done
expect "left" "$(left)" ""
expect_nothing_left
# --- the pipeline that does not end
wait "$stuck"
expect "stuck: exit code" $? 130
no_stuck_processes() { [ -z "$(stuck_processes)" ]; }
if wait_for 20 no_stuck_processes; then pass "stuck: no process is left"; else fail "stuck: left: $(stuck_processes)"; fi
stuck_run_dir=$(echo "$work"/stuck/hill-eval-*)
"${eval_stuck[@]}" >/dev/null 2>"$work/err" || fail "the next one after a stuck one: $(cat "$work/err")"
expect "the next one clears up" "$(run_dir=$stuck_run_dir segments; ls -A "$work/stuck")" results
finish
