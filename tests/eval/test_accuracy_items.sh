#!/bin/sh
# test_accuracy_items.sh - rows of data files as hill-eval's items: few-shot prompts worked by hand, wrong rows named.
set -u
cd "$(dirname "$0")/../.." || exit 1
program=$PWD/scripts/accuracy-items
# shellcheck source=../program.sh
. tests/program.sh
command -v jq >/dev/null || { echo "skipped: no jq"; exit 77; }
cd "$work" || exit 1

same() { # what got expected
    [ "$2" = "$3" ] || { printf '%s: got\n%s\nexpected\n%s\n' "$1" "$2" "$3"; failed=1; }
}

cat >c.jsonl <<'ROWS'
{"query": "One, therefore ", "choices": ["a.", "b."], "gold": 1}
{"query": "Question: two\n", "choices": ["c", "d"], "gold": 0, "other": 1}
{"query": "Three \"x\"", "choices": ["e", "f", "g"], "gold": 2}
{"query": "Question: four\n", "choices": ["h", "i"], "gold": 1}
ROWS
expect 0 '"gold":2' choices pick c.jsonl 2
same "few-shot" "$(cat out)" '{"task":"pick","prompt":"One, therefore b.\n\nQuestion: two\nAnswer: c\n\nThree \"x\"","choices":["e","f","g"],"gold":2}
{"task":"pick","prompt":"One, therefore b.\n\nQuestion: two\nAnswer: c\n\nQuestion: four\nAnswer:","choices":["h","i"],"gold":1}'
expect 0 'One, therefore"' choices pick c.jsonl 0
same "without examples" "$(wc -l <out)" 4

printf '%s\n' '{"prompt": "line a: <12>\nWhich? ", "expected_number": 12, "token_size": 9}' | gzip >l.jsonl.gz
expect 0 . lines lines-2 l.jsonl.gz
same "lines" "$(cat out)" '{"task":"lines-2","prompt":"line a: <12>\nWhich? ","answers":["12"],"match":"number","predict":100,"chat":true}'

printf '%s\n' '{"ordered_kv_records": [["a", "1"], ["b\"", "2"]], "key": "b\"", "value": "2"}' >kv.jsonl
expect 0 . kv kv kv.jsonl
same "key-value: the prompt" "$(jq -r .prompt out)" 'This is a JSON object:

{"a": "1",
 "b\"": "2"}

What value does the key "b\"" have? Answer with the value alone.'
same "key-value: the answer" "$(jq -c .answers out)" '["2"]'

expect 100 'usage' choices
expect 100 "no kind 'x'" x t c.jsonl && one_line
expect 100 "not 'two'" choices t c.jsonl two && one_line
expect 111 'none.jsonl' choices t none.jsonl && one_line
for row in '{"query": "q", "choices": ["a"], "gold": 1}' '{"query": "q", "choices": ["a", 2], "gold": 0}' '{"choices": ["a"], "gold": 0}' '[]' '{' ''; do
    { head -n 2 c.jsonl; echo "$row"; sed -n 3p c.jsonl; } >bad.jsonl
    expect 1 'bad.jsonl:3 is no row of the kind choices' choices t bad.jsonl && one_line
done
expect 1 'c.jsonl:1 is no row of the kind lines' lines t c.jsonl && one_line
expect 1 'c.jsonl:1 is no row of the kind kv' kv t c.jsonl && one_line

# the run itself, before any pipeline
program=$OLDPWD/scripts/accuracy
expect 0 'accuracy --real MODEL' --real --help
expect 100 "needs a model" --real && one_line
expect 100 "no option '--nonsense'" --real --nonsense && one_line
expect 100 "not '0'" --real m.gguf --count 0 && one_line
expect 111 'no model' --real none.gguf && one_line
expect 111 'SKIP copa.jsonl: not in' --real "$work/c.jsonl" --data "$work" --tasks copa
expect 111 "SKIP copa.jsonl: not in $work/sub" --real "$work/c.jsonl" --data sub --tasks copa # a folder from where it is typed
expect 100 "no task 'x'" --real "$work/c.jsonl" --data "$work" --tasks x
exit "$failed"
