#!/usr/bin/env bash
# pass_key_depths.sh - a pass key at ten depths of a long real text, at least 80 % of the entries on the drive. Takes many minutes: not part of make check.
#
# usage: tests/long/pass_key_depths.sh [TOKENS]       (default 32768; the embedded model has one token a byte)
# Shows for each depth: the answer, the share of cold entries, bytes.link_key = 0, flash_read against the cold digests of every step, and
# that the scorer holds no open descriptor of the pool file. Exit 0 when all ten are right.
# shellcheck source=../integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"

tokens=${1:-32768}
predict=9
"$bin/hill-mkmodel" -o "$work/model.gguf" || exit 1
cat /usr/share/common-licenses/GPL-3 /usr/share/common-licenses/LGPL-2.1 /usr/share/common-licenses/GPL-2 2>/dev/null >"$work/text"
[ "$(stat -c %s "$work/text")" -ge "$tokens" ] || cat LICENSE CONTRIBUTING.md README.md >>"$work/text"
[ "$(stat -c %s "$work/text")" -ge "$tokens" ] || skip "no $tokens bytes of real text on this machine"

# M_0 is what keeps at least 80 % of the entries cold: --beta asks for far more hot ones (80 %), and M_0 wins.
# Staging, tables and 20 % of 2 layers * 1285 bytes a token, in KiB.
hot_kib=$((tokens * 2 * 1285 * 20 / 100 / 1024 + 1536))
up -m "$work/model.gguf" -c $((tokens + 1024)) --budget 512 --beta 4 --hot-mb "${HOT_MB:-${hot_kib}K}" || exit 1
scorer=$(worker_pid cpu_scorer)
right=0
for depth in 0 10 20 30 40 50 60 70 80 95; do
    key=$((1000003 + depth * 77377))
    at=$((tokens * depth / 100))
    {
        head -c "$at" "$work/text"
        printf '\nThe pass key is %s. Remember it.\n' "$key"
        tail -c +$((at + 1)) "$work/text" | head -c $((tokens - at))
        printf '\nThe pass key is'
    } >"$work/prompt"
    "$hillinfer" generate --run-dir "$run_dir" -f "$work/prompt" -n $predict --temp 0 --json >"$work/out" 2>"$work/err" || {
        fail "depth $depth: $(cat "$work/err")"
        continue
    }
    # digests: 257 bytes a token and layer; each of the predict - 1 decode steps reads those that are cold (at least the ones cold after the prefill)
    jq -r --argjson depth "$depth" --argjson steps $((predict - 1)) '
        "depth \($depth) %: \(.text | @json), prompt \(.prompt_tokens), cold \((1000 * .tiers.cold.tokens / (.tiers.hot.tokens + .tiers.cold.tokens) | round) / 10) %, link_key \(.bytes.link_key), flash_read \(.bytes.flash_read), cold digests of \($steps) steps \((.tiers.cold.tokens - $steps * 2) * 257 * $steps), prefill \(.prompt_ms | round) ms, \(.predicted_per_second * 10 | round / 10) tokens/s"' "$work/out"
    case $(jq -r .text "$work/out") in *"$key"*) right=$((right + 1)) ;; *) fail "depth $depth: the answer is not $key" ;; esac
    expect "prompt of at least $tokens tokens" "$(jq ".prompt_tokens >= $tokens" "$work/out")" true
    expect "at least 80 % cold" "$(jq '.tiers.cold.tokens >= 0.8 * (.tiers.hot.tokens + .tiers.cold.tokens)' "$work/out")" true
    expect "hot bytes within M_0" "$(jq '.tiers.hot.bytes <= .tiers.hot.cap_bytes' "$work/out")" true
    expect "keys over the link" "$(jq .bytes.link_key "$work/out")" 0
    expect "flash_read covers the cold digests of every step" "$(jq --argjson steps $((predict - 1)) '.bytes.flash_read >= (.tiers.cold.tokens - $steps * 2) * 257 * $steps' "$work/out")" true
    expect "the scorer has no descriptor of the pool" "$(find "/proc/$scorer/fd" -lname '*cold.pool*' | wc -l)" 0
done
echo "$right of 10 pass keys right"
down || fail "down"
expect_nothing_left
finish
