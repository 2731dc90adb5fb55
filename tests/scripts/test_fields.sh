#!/usr/bin/env bash
# What the scripts of tests/integration read off a JSON text without jq is what jq prints; what they cannot read off is left to jq.
# shellcheck source=../integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"

cat >"$work/json" <<'TXT'
{
  "text": "a \"quoted\" \\ line\n  \"hash\": 1,",
  "inner": {
    "hash": "within",
    "deep": {
      "hash": "deeper",
      "n": -7
    },
    "n": 8
  },
  "hash": "01ab",
  "none": null,
  "yes": true,
  "n": 3,
  "share": 0.1,
  "long": 12345678901234567890,
  "empty": "",
  "list": [
    1,
    2
  ],
  "nothing": {},
  "after": {
    "only": 5
  },
  "last": 9
}
TXT
cat "$work/json" "$work/json" >"$work/two"
read_off=0
while IFS= read -r filter; do
    wanted=$(jq -r "$filter" "$work/json")
    if got=$(plain_field "$work/json" "$filter"); then
        expect "$filter" "$got" "$wanted"
        read_off=$((read_off + 1))
    fi
    expect "$filter, by field" "$(field "$work/json" "$filter")" "$wanted"
done <<'TXT'
.hash
.inner.hash
.inner.deep.hash
.inner.deep.n
.inner.n
.none
.yes
.n
.empty
"\(.hash) \(.inner.deep.n) \(.none)"
"\(.n)"
.after.only
.last
.text
.share
.long
.list
.inner
.nothing
.nowhere
.inner.nowhere
.deep.hash
"\(.n), \(.yes)"
.n + .last
.list | length
TXT
expect "read off without jq" "$read_off" 12
plain_field "$work/two" .hash >/dev/null && fail "two objects are read as one"
expect "two objects" "$(field "$work/two" .hash | xargs)" "01ab 01ab"
plain_field "$work/nowhere" .hash >/dev/null 2>&1 && fail "a file that is not there is read"
finish
