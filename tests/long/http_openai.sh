#!/usr/bin/env bash
# http_openai.sh - clients as people have them, unchanged: the official `openai` client for Python (tests/oracle/openai_client.py),
# and a chat page's requests, played: models, a chat as a stream, stop, continue, the next question.
#
# usage: tests/long/http_openai.sh      environment: PYTHON: a python3 that has openai; else one is made with pip (network)
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"
python=${PYTHON:-$work/venv/bin/python3}
[ -n "${PYTHON:-}" ] || { python3 -m venv "$work/venv" && "$work/venv/bin/pip" install -q openai; } >"$work/pip.log" 2>&1 ||
    skip "openai cannot be had: $(tail -n 1 "$work/pip.log")"
template="{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
template+="{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
"$bin/hill-mkmodel" -o "$work/wired.gguf" --chat-template "$template" 2>/dev/null || fail "hill-mkmodel"
up -m "$work/wired.gguf" -c 4096 -np 4 || finish
echo key-of-ann >"$work/keys"
mkfifo "$work/address"
"$bin/hill-gateway" --port 0 --run-dir "$run_dir" --api-key-file "$work/keys" --ready-fd 3 3>"$work/address" 2>"$work/gateway.err" &
read -r url <"$work/address"

"$python" tests/oracle/openai_client.py "$url/v1" >"$work/said" 2>&1
code=$?
cat "$work/said"
expect "openai $("$python" -c 'import openai; print(openai.__version__)')" "$code" 0

# ---- a chat page ----
ask() { # PATH [CURL-ARGUMENTS...]
    curl -sN -m 60 -H 'Authorization: Bearer key-of-ann' "${@:2}" "$url/v1/$1"
}
body() { # MESSAGES TOKENS: as such pages send it
    jq -nc --argjson messages "$1" --argjson n "$2" --arg model "$(jq -r '.data[0].id' "$work/models")" \
        '{stream: true, model: $model, messages: $messages, max_tokens: $n, temperature: 0, stream_options: {include_usage: true}}'
}
words() { # FILE: of a stream
    sed -n 's/^data: {/{/p' "$1" | jq -sr '[.[].choices[0].delta.content // ""] | add'
}
ask models >"$work/models"
expect "the page: models" "$(jq -r '.data[0].id' "$work/models")" wired
history='[{"role":"system","content":"You know a key."},{"role":"user","content":"Say it."},{"role":"assistant","content":"The key is 7302941, no other."},{"role":"user","content":"Say it."}]'
ask chat/completions --data-binary "$(body "$history" 18)" >"$work/whole"
expect "the page: a chat streams" "$(words "$work/whole")" "The key is 7302941"
ask chat/completions --data-binary "$(body "$history" 3000 | jq -c '.ignore_eos = true')" -o "$work/stopped" &
client=$!
streams() { [ "$(words "$work/stopped" 2>/dev/null | wc -c)" -gt 12 ]; }
wait_for 20 streams || fail "the page: nothing streams"
kill "$(pgrep -P "$client")" # curl, below the shell of the job
wait "$client" 2>/dev/null
idle() { status_is '.requests_running + .requests_waiting == 0'; }
wait_for 2 idle || fail "the page: stop does not end the request within 2 s"
history=$(jq -c '. + [{role: "assistant", content: "The key is 73"}]' <<<"$history")
ask chat/completions --data-binary "$(body "$history" 5)" >"$work/continued"
expect "the page: continue" "$(words "$work/continued")" "02941"
history=$(jq -c '.[-1].content = "The key is 7302941, no other." | . + [{role: "user", content: "Say it."}]' <<<"$history")
ask chat/completions --data-binary "$(body "$history" 18)" >"$work/next"
expect "the page: the next question" "$(words "$work/next")" "The key is 7302941"
expect "the page: ends as OpenAI's" "$(tail -n 2 "$work/next" | head -n 1)" "data: [DONE]"
down
expect_nothing_left
finish
