#!/usr/bin/env bash
# demo.sh - make demo: answer a question from a long document, most of its KV cache on the drive.
#
# The document is a real licence text with a pass key hidden in it; the model is the embedded one (tools/mkmodel/README.md).
# Everything is made in a temporary folder that is removed at the end. Exit code: that of `hillinfer run`, or 1 when the answer is wrong.
set -eu
cd "$(dirname "$0")/.."

key=7302941
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
text=/usr/share/common-licenses/GPL-3
[ -r "$text" ] || text=LICENSE
bytes=${HILL_DEMO_BYTES:-16000}

{
    head -c $((bytes * 3 / 10)) "$text"
    printf '\nThe pass key is %s. Remember it.\n' "$key"
    tail -c +$((bytes * 3 / 10 + 1)) "$text" | head -c $((bytes * 7 / 10))
    printf '\nThe pass key is'
} >"$folder/prompt"

build/bin/hill-mkmodel -o "$folder/model.gguf"
echo "Document: $(wc -c <"$folder/prompt") bytes of $(basename "$text"), a pass key hidden at 30 % of it."
echo "Question: 'The pass key is'. At most a fifth of the KV entries stay in DRAM; the drive holds and scores the rest."
echo

code=0
HILL_LOG_LEVEL=${HILL_LOG_LEVEL:-warn} scripts/hillinfer run -m "$folder/model.gguf" -c $((bytes + 1024)) --budget 512 --beta 0.25 \
    --run-dir "$folder/run" --state-dir "$folder/state" -f "$folder/prompt" -n 9 --temp 0 --json >"$folder/answer" || code=$?
if [ "$code" -ne 0 ]; then
    echo "demo.sh: the pipeline ended with status $code" >&2
    exit "$code"
fi
jq -r '
  def mib: . / 1048576 * 10 | round / 10;
  "Answer:\(.text)",
  "",
  "prefill            \(.prompt_tokens) tokens in \(.prompt_ms / 10 | round / 100) s",
  "decode             \(.predicted_per_second * 10 | round / 10) tokens/s, \(.budget) of \(.prompt_tokens + .predicted_tokens) tokens attended to",
  "KV entries         \(.tiers.hot.tokens) in DRAM (\(.tiers.hot.bytes | mib) MiB), \(.tiers.cold.tokens) on the drive (\(.tiers.cold.bytes | mib) MiB)",
  "selected from      GPU \(.tiers.gpu.hits), DRAM \(.tiers.hot.hits), drive \(.tiers.cold.hits)",
  "over the link      keys \(.bytes.link_key) B, scores \(.bytes.link_score | mib) MiB, selected KV \(.bytes.link_kv | mib) MiB",
  "read on the flash  \(.bytes.flash_read | mib) MiB by the drive'"'"'s own scorer (a file stands in for the flash, this CPU for its FPGA)"
' "$folder/answer"
jq -e --arg key "$key" '.text | contains($key)' "$folder/answer" >/dev/null || {
    echo "demo.sh: the answer does not hold the pass key $key" >&2
    exit 1
}
