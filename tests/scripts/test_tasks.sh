#!/usr/bin/env bash
# The task generator: the same seed gives the same bytes, another seed others; the answers stand in the prompts in their
# order; the prompt ends with the question; lengths are kept; wrong use is one line and exit 2.
set -eu
cd "$(dirname "$0")/../.."
for tool in python3 jq; do
    command -v "$tool" >/dev/null || { echo "$tool is not installed"; exit 77; }
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
make_tasks() { python3 -B scripts/hilltasks.py "$@"; }
fail() { echo "test_tasks: $1" >&2; exit 1; }

for bytes in 300 2048 16384; do
    make_tasks --bytes $bytes --count 6 --seed 7 >"$folder/a"
    make_tasks --bytes $bytes --count 6 --seed 7 >"$folder/b"
    make_tasks --bytes $bytes --count 6 --seed 13 >"$folder/c"
    cmp "$folder/a" "$folder/b" || fail "the same seed gave other tasks"
    ! cmp -s "$folder/a" "$folder/c" || fail "another seed gave the same tasks"
    [ "$(jq -s 'length' "$folder/a")" = 42 ] || fail "not 6 questions for each of 7 tasks"
    jq -se --argjson bytes $bytes 'all(.[]; .context_bytes == (.prompt | utf8bytelength))' "$folder/a" >/dev/null ||
        fail "context_bytes is not the prompt's length"
    jq -se --argjson bytes $bytes 'all(.[]; .task as $t | .context_bytes <= $bytes + 16 or ($bytes < 2048))' "$folder/a" >/dev/null ||
        fail "a prompt is longer than asked"
    jq -se 'all(.[]; (.prompt | test("[a-zA-Z=:]$")))' "$folder/a" >/dev/null || fail "a prompt does not end with its question"
    # Every piece of an answer is a fact of the text before it ("A = B = 5" of a chain: each of A, B, 5).
    jq -se 'all(.[]; .prompt as $p | [.answers[] | splits(" = ")] | all(.[]; . as $a | $p | contains($a)))' "$folder/a" >/dev/null ||
        fail "an answer does not stand in its prompt"
done

# Several values: in the order in which the text gives them.
make_tasks --task values --bytes 2048 --count 20 >"$folder/v"
jq -se 'all(.[]; .prompt as $p | [.answers[] as $a | $p | index($a)] | . == sort)' "$folder/v" >/dev/null ||
    fail "values are not asked in their order"
# The most frequent word is just that, counted by other means.
make_tasks --task frequent --bytes 2048 --count 5 >"$folder/f"
for i in 1 2 3 4 5; do
    sed -n ${i}p "$folder/f" | jq -r .prompt | grep -o '^Word: [a-z]*' | sort | uniq -c | sort -rn | head -n 1 >"$folder/top"
    [ "$(awk '{print $3}' "$folder/top")" = "$(sed -n ${i}p "$folder/f" | jq -r '.answers[0]')" ] || fail "another word is more frequent"
done
# A text of the person's own.
printf 'One line here. And a second one.\n%.0s' $(seq 200) >"$folder/text"
make_tasks --task passkey --count 1 --bytes 1000 --text "$folder/text" | jq -e '.prompt | contains("And a second one")' >/dev/null ||
    fail "the text given is not used"

for wrong in "--bytes 12" "--count 0" "--task nothing" "--text $folder/none"; do
    code=0
    # shellcheck disable=SC2086  # the words of the command line
    make_tasks $wrong >"$folder/out" 2>"$folder/err" || code=$?
    { [ $code = 2 ] && [ ! -s "$folder/out" ]; } || fail "$wrong: exit $code, or something on stdout"
done
echo "test_tasks: passed"
