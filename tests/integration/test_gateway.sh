#!/usr/bin/env bash
# test_gateway.sh - HTTP before a running pipeline, with curl as the client: answers are those of hillctl, bad requests are refused
# by name, a client that goes away cancels its request, a gateway or a worker that dies takes nobody with it.
# shellcheck disable=SC2016  # the $ of JavaScript
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
requests_last 5
# shellcheck source=scripts/browser.sh
. scripts/browser.sh
# shellcheck source=tests/gateway/http_cases.sh
. tests/gateway/http_cases.sh
command -v curl >/dev/null || skip "curl is not there (scripts/install-deps.sh)"

template="{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
template+="{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
"$bin/hill-mkmodel" -o "$work/wired.gguf" --chat-template "$template" 2>/dev/null || fail "hill-mkmodel"

# ---- wrong use, and no pipeline yet ----
expect_one_line "no key beyond this machine" 100 "$bin/hill-gateway" --host 0.0.0.0 --port 0 --run-dir "$run_dir"
expect_one_line "an address that is none" 100 "$bin/hill-gateway" --host nowhere.example --run-dir "$run_dir"
mkfifo "$work/fifo"
timeout -k 5 1 "$bin/hill-gateway" --port 0 --api-key-file "$work/fifo" --run-dir "$run_dir" 2>/dev/null
expect "SIGTERM while a fifo of keys has no writer" $? 124
expect_one_line "a key file that is not there" 100 "$bin/hill-gateway" --api-key-file "$work/none" --run-dir "$run_dir"
expect_one_line "the model's refusal ends serve" 1 "$hillinfer" serve --detach --port 0 -m LICENSE --run-dir "$run_dir" --state-dir "$state_dir"

# gateway ARGUMENTS...: one more gateway before the same run folder; its address in $url, its pid in $gateway
gateway() {
    rm -f "$work/address"
    mkfifo "$work/address"
    "$bin/hill-gateway" --port 0 --run-dir "$run_dir" --ready-fd 3 "$@" 3>"$work/address" 2>>"$work/gateway.err" &
    gateway=$!
    read -r url <"$work/address"
}
# ask METHOD PATH [BODY] [CURL-ARGUMENTS...]: the answer in $work/answer, its head in $work/head, its status in $code
ask() {
    local method=$1 path=$2 body=${3:-}
    shift $(($# < 3 ? $# : 3))
    [ -z "$body" ] || set -- --data-binary "$body" "$@"
    code=$(curl -s -m 60 -o "$work/answer" -D "$work/head" -w '%{http_code}' -X "$method" "$@" "$url$path")
}
answered() { # DESCRIPTION STATUS [JQ-FILTER WANTED]
    expect "$1: status" "$code" "$2"
    [ $# -lt 3 ] || expect "$1" "$(jq -r "$3" "$work/answer" 2>&1)" "$4"
}
refused() { # DESCRIPTION STATUS WORDS: one line that has these words, in OpenAI's shape
    expect "$1: status" "$code" "$2"
    if jq -re '.error | select(.type and has("code") and has("param")) | .message' "$work/answer" 2>/dev/null | grep -q -- "$3"; then
        pass "$1"
    else
        fail "$1: '$3' is not in $(cat "$work/answer")"
    fi
}

gateway --idle-timeout 2
for command in "serve --detach" "run -p x -n 1 --http"; do # who waits for the pipeline hears of the gateway's refusal
    # shellcheck disable=SC2086  # words
    expect_one_line "$command: a taken port" 111 timeout 30 "$hillinfer" $command --port "${url##*:}" -m "$work/wired.gguf" \
        --run-dir "$run_dir" --state-dir "$state_dir"
done
expect_one_line "serve: no key beyond this machine" 100 timeout 30 "$hillinfer" serve --detach --host 0.0.0.0 -m "$work/wired.gguf" \
    --run-dir "$run_dir" --state-dir "$state_dir"
expect_one_line "serve: an address without a port" 100 timeout 30 "$hillinfer" up --detach --http=8080 -m "$work/wired.gguf" \
    --run-dir "$run_dir" --state-dir "$state_dir"
ask GET /health
refused "health without a pipeline" 503 'no pipeline'
ask POST /v1/chat/completions '{"messages":[{"role":"user","content":"x"}]}'
refused "a chat without a pipeline" 503 'no pipeline'
expect "it says when to come again" "$(grep -ci '^retry-after: 1' "$work/head")" 1

# ---- serve: a pipeline, and a gateway that it takes along ----
"$hillinfer" serve --detach --host "unix:$work/http.sock" --run-dir "$run_dir" --state-dir "$state_dir" -m "$work/wired.gguf" \
    -c 16384 -np 2 --log-level debug 2>"$work/up.err" || {
    fail "serve: $(cat "$work/up.err")"
    finish
}
expect "serve tells the address" "$(grep -c "ready at unix:$work/http.sock" "$work/up.err")" 1
expect "its socket is its user's alone" "$(stat -c %a "$work/http.sock")" 600
healthy() { # CURL-ARGUMENTS...
    [ "$(curl -s -m 5 -o /dev/null -w '%{http_code}' "$@")" = 200 ]
}
expect "health over the Unix socket" "$(wait_for 30 healthy --unix-socket "$work/http.sock" http://localhost/health && echo yes)" yes
ask GET /health '' --unix-socket "$work/http.sock" -H 'Host: evil.example'
refused "over the Unix socket, a name that is not this machine's" 403 'this machine'
ask GET /health '' --unix-socket "$work/http.sock" -0 -H 'Host:'
answered "over the Unix socket, no Host" 200
expect "the gateway that was there before finds it" "$(wait_for 30 healthy "$url/health" && echo yes)" yes
ask GET /v1/models
answered "models" 200 '.data[0] | "\(.id) \(.object) \(.meta.n_ctx)"' "wired model 16384"
ask GET /v1/models/wired
answered "one model" 200 .id wired
ask GET /v1/models/other
refused "another model" 404 wired
ask GET /props
answered "props" 200 '"\(.total_slots) \(.default_generation_settings.n_ctx) \(.chat_template | length > 100)"' "2 16384 true"
answered "props: how is sampled" 200 '.default_generation_settings.params | "\(.temperature) \(.top_k) \(.top_p)"' "0.8 40 0.95"
ask GET /slots
answered "slots" 200 'map(.is_processing) | @csv' "false,false"

# ---- answers are hillctl's ----
prompt='Mary had a little lamb. Its fleece was white as snow. Mary had a little'
hillctl generate -p "$prompt" -n 24 --temp 0 --json >"$work/wanted"
body=$(jq -nc --arg prompt "$prompt" '{prompt: $prompt, max_tokens: 24, temperature: 0}')
ask POST /v1/completions "$body"
answered "a completion is hillctl's answer" 200 '.choices[0].text' "$(jq -r .text "$work/wanted")"
answered "its usage" 200 '.usage | "\(.prompt_tokens) \(.completion_tokens) \(.total_tokens)"' \
    "$(jq -r '"\(.prompt_tokens) \(.predicted_tokens) \(.prompt_tokens + .predicted_tokens)"' "$work/wanted")"
answered "its end" 200 '"\(.object) \(.choices[0].finish_reason) \(.timings.predicted_n)"' "text_completion length 24"
ask POST /v1/completions "$(jq -c '.stop = ["Mary", "Zebra"]' <<<"$body")"
answered "a stop string" 200 '.choices[0] | "\(.text)|\(.finish_reason)"' "$(jq -r '.text | split("Mary")[0]' "$work/wanted")|stop"
ask POST /v1/completions "$(jq -c '.max_tokens = 999999 | .stop = "snow"' <<<"$body")"
answered "more tokens than the context has room for" 200 '.choices[0].finish_reason' stop
ask POST /v1/completions "$(jq -c '.max_tokens = 0' <<<"$body")"
answered "no token: the prompt is read" 200 '[.choices[0].text, .choices[0].finish_reason, .usage.completion_tokens, .timings.predicted_n, .usage.prompt_tokens > 0] | @csv' '"","length",0,0,true'
ask POST /v1/completions "$(jq -c '.budget = 64' <<<"$body")"
answered "a budget of its own" 200 '.choices[0].finish_reason' length
hillctl generate -p "$prompt" -n 24 --temp 0 --budget 64 --json >"$work/narrow"
answered "hillctl's answer with that budget" 200 '.choices[0].text' "$(jq -r .text "$work/narrow")"
expect "it has selected otherwise" "$(jq -r '"\(.budget) "' "$work/narrow")$([ "$(hashes "$work/narrow")" != "$(hashes "$work/wanted")" ] && echo otherwise)" "64 otherwise"
expect_one_line "a request's alpha and budget" 100 hillctl generate -p x --alpha 0.5 --budget 64
ask POST /v1/completions "$body"
answered "the same prompt is not computed again" 200 '.usage.prompt_tokens_details.cached_tokens > 0 and .timings.cache_n == .usage.prompt_tokens_details.cached_tokens' true
answered "and has the same answer" 200 '.choices[0].text' "$(jq -r .text "$work/wanted")"
ask POST /v1/completions "$(jq -c '.cache_prompt = false' <<<"$body")"
answered "but where that is not wanted" 200 '.usage.prompt_tokens_details.cached_tokens' 0
unsure="one fish tw" # what comes next is not certain
ask POST /v1/completions "$(jq -c --arg prompt "$unsure" '.prompt = $prompt | .logprobs = 0' <<<"$body")"
whole=$(jq -r '.choices[0].text' "$work/answer")
printf '%s%s' "$unsure" "$whole" >"$work/scored" # a token a byte, and BOS: what the same text scores
hillctl generate -f "$work/scored" --score-from $((${#unsure} + 1)) --json >"$work/scores"
answered "log-probabilities: of each token" 200 '.choices[0].logprobs | "\(.tokens | add)|\(.token_logprobs | length)|\(.text_offset[3])"' "$whole|24|3"
expect "the first one is not certain" "$(jq '.choices[0].logprobs.token_logprobs[0] < -0.01' "$work/answer")" true
expect "they are those of scoring the same text" "$(jq -c '[.choices[0].logprobs.token_logprobs[] * 1e6 | round]' "$work/answer")" \
    "$(jq -c '[.logprobs[] * 1e6 | round]' "$work/scores")"
ask POST /v1/completions "$(jq -c '.policy = "h2o"' <<<"$body")"
refused "a policy that the pipeline has no keys for" 400 h2o
ask POST /tokenize "$(jq -nc --arg content "$prompt" '{content: $content}')"
answered "tokenize" 200 '.tokens | length' ${#prompt}
ids=$(jq -c .tokens "$work/answer")
ask POST /detokenize "{\"tokens\":$ids}"
answered "detokenize" 200 .content "$prompt"
ask POST /detokenize '{"tokens":[256,32,97,257]}'
answered "control tokens, and a space before" 200 .content '<|begin_of_text|> a<|endoftext|>'
ask POST /tokenize '{"content":"a","with_pieces":true,"add_special":true}'
answered "pieces of control tokens" 200 '[.tokens[].piece] | @csv' '"<|begin_of_text|>","a"'
ask POST /v1/completions "$(jq -c --argjson ids "$ids" '.prompt = [256] + $ids' <<<"$body")"
answered "a prompt of tokens" 200 '.choices[0].text' "$(jq -r .text "$work/wanted")"
ask POST /detokenize '{"tokens":[99999]}'
refused "a token outside the vocabulary" 400 99999

chat='{"messages":[{"role":"developer","content":"You know a key."},{"role":"user","content":"Say\nit."},
 {"role":"assistant","content":"The key is 7302941, no other."},{"role":"user","content":[{"type":"text","text":"Say"},{"type":"text","text":"it."}]}],
 "max_tokens":60,"temperature":0,"stop":[", no"]}'
ask POST /v1/chat/completions "$chat"
answered "a chat" 200 '"\(.object) \(.choices[0].message.role) \(.choices[0].message.content)|\(.choices[0].finish_reason)"' \
    "chat.completion assistant The key is 7302941|stop"
ask POST /v1/chat/completions "$(jq -c '.messages += [{role: "assistant", content: "The key is 73"}]' <<<"$chat")"
answered "an answer that has begun goes on" 200 '.choices[0] | "\(.message.content)|\(.finish_reason)"' "02941|stop"
ask POST /apply-template "$chat"
answered "its prompt" 200 .prompt "$(printf '<|im_start|>system\nYou know a key.<|im_end|>\n<|im_start|>user\nSay\nit.<|im_end|>\n%s\n%s\n' \
    '<|im_start|>assistant' 'The key is 7302941, no other.<|im_end|>
<|im_start|>user
Say
it.<|im_end|>
<|im_start|>assistant')"
whole=$(jq .prompt "$work/answer")
ask POST /apply-template "$(jq -c '{messages, chat_template_kwargs: {enable_thinking: false}}' <<<"$chat")"
answered "a template that knows no thinking ignores its switch" 200 '.prompt | tojson' "$whole"
ask POST /apply-template "$(jq -c '.temperature = "x"' <<<"$chat")"
refused "a chat's field of a wrong type" 400 'temperature has to be'
stream() { # BODY-FILTER PATH: the events' JSON, one a line, in $work/events
    ask POST "$2" "$(jq -c "$1 | .stream = true" <<<"$chat$body")" -N
    sed -n 's/^data: //p' "$work/answer" >"$work/lines"
    grep -v '^\[DONE\]$' "$work/lines" >"$work/events"
}
stream 'select(.messages) | .stream_options = {include_usage: true} | .return_progress = true' /v1/chat/completions
expect "a stream: status and type" "$code $(grep -ci '^content-type: text/event-stream' "$work/head")" "200 1"
expect "a stream is not to be held back" "$(grep -ci '^x-accel-buffering: no' "$work/head")" 1
expect "a stream says the same" "$(jq -sr '[.[].choices[0].delta.content // ""] | add' "$work/events")" "The key is 7302941"
expect "its first role, its end" "$(jq -sr '"\(.[0].choices[0].delta.role) \([.[].choices[0].finish_reason | select(.)] | @csv)"' "$work/events")" 'assistant "stop"'
expect "its usage comes once, at the end" "$(jq -sr '"\([.[] | select(.usage)] | length) \(.[-1].choices | length) \(.[-1].usage.completion_tokens)"' "$work/events")" "1 0 22"
expect "progress of the prompt" "$(jq -sr '[.[].prompt_progress | select(.)] | last | "\(.processed == .total)"' "$work/events")" true
expect "the last event" "$(tail -n 1 "$work/lines")" '[DONE]'
expect "all chunks have one id" "$(jq -r .id "$work/events" | sort -u | wc -l)" 1
stream 'select(.prompt)' /v1/completions
expect "a completion's stream" "$(jq -sr '[.[].choices[0].text] | add' "$work/events")" "$(jq -r .text "$work/wanted")"

# ---- answers that are JSON ----
json='{"prompt":"a key {\"k\":\"ab ab ab ab ab\"} of ","max_tokens":600,"temperature":0,"response_format":{"type":"json_object"}}'
for seed in 0 1 2 3; do # 0: greedy
    ask POST /v1/completions "$(jq -c --argjson seed "$seed" '.prompt = "Say it: " | .seed = $seed | .temperature = ([$seed, 1] | min)' <<<"$json")"
    answered "an answer held to JSON, seed $seed" 200 '.choices[0] | select(.finish_reason == "stop") | .text | fromjson | type' object
done
ask POST /v1/chat/completions "$(jq -c '.max_tokens = 600 | .response_format = {type: "json_object"} | del(.stop)' <<<"$chat")"
answered "a chat's" 200 '.choices[0] | "\(.finish_reason) \(.message.content | fromjson | type)"' "stop object"
ask POST /v1/completions "$json"
jq -r '.choices[0].text' "$work/answer" >"$work/json"
answered "a longer one is cut at its length" 200 '.choices[0] | "\(.finish_reason) \(.text | startswith(" {\"k\":\"ab ab"))"' "length true"
curl -s -m 60 -o "$work/json.beside" -D "$work/json.head" --data-binary "$json" "$url/v1/completions" &
client=$!
wait_for 20 decoding 1 50 || fail "the answer does not decode"
number=$(status | jq '.requests[0].request')
kill_worker gpu_worker
wait "$client"
expect "over the GPU worker's death it is the same" "$(jq -r '.choices[0].text' "$work/json.beside" | cmp - "$work/json" && echo same)" same

# ---- one number for a request, in all its attempts: of the coordinator, and no other ----
log=$state_dir/hillinfer.log
expect "the answer's head names the request" "$(tr -d '\r' <"$work/json.head" | sed -n 's/^X-Request-Id: //p')" "$number"
expect "and its id" "$(jq -r .id "$work/json.beside" | cut -d- -f1,2)" "cmpl-$number"
for worker in gpu-worker cpu-scorer; do
    expect "hill-$worker's log names it" "$(grep -c "hill-$worker: .*request $number\b" "$log" | sed 's/[1-9][0-9]*/some/')" some
    expect "and requests that there are" "$(grep "hill-$worker: " "$log" | grep -oE '\brequest [0-9]+' | sort -u |
        grep -vxFf <(sed -nE 's/.*hill-coordinator: info: (request [0-9]+): .* at most .*/\1/p' "$log"))" ""
done
# some: on a loaded machine a late heartbeat costs another attempt
expect "it was begun again under it" "$(grep -c "hill-coordinator: info: request $number: starting it again" "$log" | sed 's/[1-9][0-9]*/some/')" some

ask POST /v1/chat/completions "$(jq -c '.response_format = {type: "json_schema", json_schema: {schema: {type: "object"}}}' <<<"$chat")"
refused "a schema" 400 'no schema'
expect "its field" "$(jq -r .error.param "$work/answer")" response_format

# ---- how an answer came about ----
head -c 3000 "$text" >"$work/document"
shown=$(jq -Rsc '{prompt: ., max_tokens: 120, temperature: 0, ignore_eos: true, alpha: 0.05, return_selection: true, return_timeline: true}' "$work/document")
# on a busy machine workers may hear of the watch too late: no timeline
shows_a_timeline() {
    ask POST /v1/completions "$shown"
    [ "$(jq '.timeline != null' "$work/answer")" = true ]
}
wait_for 30 shows_a_timeline || fail "no timeline"
expect "its passages are the prompt and the answer, but for what the last queries have not seen" \
    "$(jq -j '.choices[0].text' "$work/answer" | cat "$work/document" - | head -c "$(jq -j '[.selection.passages[].text] | add' "$work/answer" | wc -c)" | cmp - <(jq -j '[.selection.passages[].text] | add' "$work/answer") && echo same)" same
answered "shares are of the queries, and some passage was chosen" 200 '.selection | [.passages[].share] | all(. >= 0 and . <= 1) and add > 0' true
answered "each step asks in each layer" 200 '.selection.queries % 119' 0
answered "the token's path is all of its time" 200 '.timeline | (([.path_us[]] | add) - .us | fabs) < 1 and .path_us.gpu_worker > 0 and .path_us.cpu_scorer > 0' true
answered "it has the request's number" 200 '"cmpl-\(.timeline.request)" == (.id | split("-")[:2] | join("-"))' true
answered "its spans lie within it" 200 '.timeline | .us as $whole | [.spans[] | .at_us >= 0 and .at_us + .us <= $whole + 0.2 and .path_us <= .us + 0.2] | all and length > 5' true
streams_both() {
    ask POST /v1/completions "$(jq -c '.stream = true' <<<"$shown")" -N
    sed -n 's/^data: {/{/p' "$work/answer" | jq -se '[.[] | select(.selection)] | length == 1 and (.[0].timeline.spans | length > 5)' >/dev/null
}
if wait_for 30 streams_both; then pass "a stream has them once"; else fail "a stream has them not, or more than once"; fi
curl -sN -o /dev/null --data-binary '{"prompt":"one two three one two","max_tokens":16000,"ignore_eos":true,"stream":true}' "$url/v1/completions" &
client=$!
wait_for 20 decoding 1 5 || fail "the request beside it does not decode"
wait_for 30 shows_a_timeline || fail "no timeline beside another request"
kill "$client"
wait "$client"
answered "a step that is shared: the whole step's waits, and what the other row takes" 200 '.timeline | ([.spans[] | select(.other == null) | .stage] | contains(["await_selection", "attend", "logits"])) and ([.spans[] | select(.other) | .stage] | contains(["query"])) and .path_us.others > 0 and (([.path_us[]] | add) - .us | fabs) < 1' true
ask POST /v1/completions "$body"
answered "who does not ask has none" 200 'has("selection") or has("timeline")' false

# ---- tools ----
tools='[{"type":"function","function":{"name":"add","description":"sums","parameters":{"type":"object"}}}]'
calls='{"messages":[{"role":"user","content":"Say it."},{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function",
 "function":{"name":"add","arguments":"{\"a\": 1}"}}]},{"role":"tool","tool_call_id":"c","content":"Say it."}],"max_tokens":80,"temperature":0,"alpha":1}'
ask POST /apply-template "$(jq -c --argjson tools "$tools" '{messages, tools: $tools}' <<<"$calls")"
answered "tools are told as the template has them" 200 '.prompt | contains("<tools>\n{\"type\": \"function\"") and contains("<tool_response>\nSay it.\n</tool_response>")' true
# the same question again, and a call that has to be: the wired model goes on as it did before
calls=$(jq -c --argjson tools "$tools" '.tools = $tools | .messages[2] = .messages[0] | .tool_choice = {type: "function", function: {name: "add"}}' <<<"$calls")
ask POST /v1/chat/completions "$(jq -c '.stop = "</tool_call>"' <<<"$calls")"
answered "a call" 200 '.choices[0] | "\(.finish_reason) \(.message.content) \(.message.tool_calls | length) \(.message.tool_calls[0].function.name) \(.message.tool_calls[0].function.arguments)"' \
    'tool_calls null 1 add {"a": 1}'
ask POST /v1/chat/completions "$(jq -c '.stop = "</tool_call>" | .stream = true' <<<"$calls")" -N
sed -n 's/^data: {/{/p' "$work/answer" >"$work/events"
expect "a call in a stream" "$(jq -sr '[.[].choices[0] | .delta.tool_calls // empty | .[] | "\(.index) \(.type) \(.function.name)"] | @csv' "$work/events")" '"0 function add"'
expect "its end" "$(jq -sr '.[-1].choices[0].finish_reason' "$work/events")" tool_calls
ask POST /v1/chat/completions "$(jq -c '.max_tokens = 2' <<<"$calls")"
answered "one that is cut is text" 200 '.choices[0] | "\(.finish_reason) \(.message.content | startswith("<tool_call>\n{\"name\": \"add\", \"arguments\": {"))"' "length true"

# ---- reasoning ----
# the wired model goes on as it did before: with a thought, and a call behind it
thinks='{"messages":[{"role":"user","content":"Say it."},{"role":"assistant","content":"\n<think>\nA key, I say.\n</think>\n\nThe key is 7302941, no other."},
 {"role":"user","content":"Say it."}],"max_tokens":80,"temperature":0,"alpha":1,"stop":", no"}'
parts='.choices[0] | "\(.finish_reason)|\(.message.reasoning_content)|\(.message.content)"'
ask POST /v1/chat/completions "$thinks"
answered "reasoning stands beside the answer" 200 "$parts" 'stop|A key, I say.|The key is 7302941'
used=$(jq .usage.completion_tokens "$work/answer")
ask POST /v1/chat/completions "$(jq -c '.reasoning_format = "deepseek" | .messages[1].reasoning_content = "sent back"' <<<"$thinks")"
answered "as deepseek's" 200 "$parts" 'stop|A key, I say.|The key is 7302941'
ask POST /v1/chat/completions "$(jq -c '.reasoning_format = "none"' <<<"$thinks")"
answered "none: as it was written" 200 '.choices[0].message | "\(.reasoning_content)|\(.content | tojson)"' \
    'null|"\n<think>\nA key, I say.\n</think>\n\nThe key is 7302941"'
expect "usage counts both" "$(jq .usage.completion_tokens "$work/answer")" "$used"
ask POST /v1/chat/completions "$(jq -c '.max_tokens = 15' <<<"$thinks")"
answered "an answer that is cut is reasoning" 200 "$parts" 'length|A key,|'
ask POST /v1/chat/completions "$(jq -c '.stop = "I say"' <<<"$thinks")"
answered "a stop string in it ends the answer" 200 "$parts" 'stop|A key,|'
ask POST /v1/chat/completions "$(jq -c '.stream = true | .logprobs = true' <<<"$thinks")" -N
sed -n 's/^data: {/{/p' "$work/answer" >"$work/events"
deltas='[.[].choices[0].delta | keys[] | select(. != "role")] | reduce .[] as $k ([]; if .[-1] == $k then . else . + [$k] end) | @csv'
expect "a stream: first the one, then the other" "$(jq -sr "$deltas" "$work/events")" '"content","reasoning_content","content"'
expect "they are the same" "$(jq -sr '[.[].choices[0].delta] | "\(map(.reasoning_content // "") | add)|\(map(.content // "") | add)"' "$work/events")" \
    'A key, I say.|The key is 7302941'
expect "log-probabilities are of all tokens" "$(jq -sr '[.[].choices[0].logprobs.content // [] | .[].token] | add | tojson' "$work/events")" \
    '"\n<think>\nA key, I say.\n</think>\n\nThe key is 7302941"'
ask POST /v1/chat/completions "$(jq -c '.stream = true | .logprobs = true | .stop = "The"' <<<"$thinks")" -N
expect "also where no text follows" "$(sed -n 's/^data: {/{/p' "$work/answer" | jq -sr '[.[].choices[0].logprobs.content // [] | .[].token] | add | endswith("</think>\n\n")')" true
ask POST /v1/chat/completions "$(jq -c '.messages += [{role: "assistant", content: "\n<think>\nA key,"}]' <<<"$thinks")"
answered "a thought that has begun goes on" 200 "$parts" 'stop| I say.|The key is 7302941'
ask POST /v1/chat/completions "$(jq -c '.response_format = {type: "json_object"}' <<<"$thinks")"
answered "JSON has no reasoning" 200 '.choices[0].message | "\(has("reasoning_content")) \(.content | test("^\\s*\\{"))"' "false true"
call='<tool_call>{"name":"add","arguments":{"a":1}}' # the answer's end takes the place of the last tag
# said more often than what tells of tools, which has tags, too
thinks_of_tools=$(jq -c --argjson tools "$tools" '.tools = $tools | .max_tokens = 200 | .stop = "|" | .messages = [.messages[:2][], .messages[:2][], .messages[:2][], .messages[:2][], .messages[2]]' <<<"$thinks")
ask POST /v1/chat/completions "$(jq -c --arg call "$call" '.messages[1, 3, 5, 7].content = "<think>\nI add.\n</think>\n\n" + $call + "|"' <<<"$thinks_of_tools")"
answered "a call behind it" 200 '.choices[0] | "\(.finish_reason)|\(.message.reasoning_content)|\(.message.content)|\(.message.tool_calls[0].function.arguments)"' 'tool_calls|I add.|null|{"a":1}'
ask POST /v1/chat/completions "$(jq -c --arg call "$call" '.messages[1, 3, 5, 7].content = "<think>\nI add: " + $call + "|"' <<<"$thinks_of_tools")"
answered "a call within it is none" 200 '.choices[0] | "\(.finish_reason)|\(.message.reasoning_content)|\(.message.content)|\(.message.tool_calls)"' "stop|I add: $call||null"
ask POST /v1/chat/completions "$(jq -c --arg call "$call" '.reasoning_format = "none" | .messages[1, 3, 5, 7].content = "<think>\nI add: " + $call + "|"' <<<"$thinks_of_tools")"
answered "also where the text has it" 200 '.choices[0] | "\(.finish_reason)|\(.message.content)|\(.message.tool_calls)"' $'stop|<think>\nI add: '"$call|null"
ask POST /v1/completions "$(jq -c '.prompt = "a <think>b</think> c, a" | .reasoning_format = "auto"' <<<"$body")"
answered "a completion is its text" 200 '.choices[0] | .text | startswith(" <think>b</think> c")' true
ask POST /v1/chat/completions "$(jq -c '.reasoning_format = "deepseek-legacy"' <<<"$thinks")"
refused "another format" 400 'not none, auto or deepseek'

# a template that begins the answer with a thought
if /usr/bin/python3 -c 'import jinja2' 2>/dev/null; then
    served_url=$url served_gateway=$gateway
    printf '%s\n' "${template%"' }}{% endif %}"}<think>\n' }}{% endif %}" >"$work/thinking"
    gateway --chat-template-file "$work/thinking"
    wait_for 30 healthy "$url/health" || fail "a gateway with a template of its own"
    ask POST /apply-template "$(jq -c '{messages}' <<<"$thinks")"
    answered "a template that begins with a thought" 200 '.prompt | endswith("assistant\n<think>\n")' true
    ask POST /v1/chat/completions "$thinks"
    answered "its answer begins in it" 200 "$parts" 'stop|A key, I say.|The key is 7302941'
    ask POST /v1/chat/completions "$(jq -c '.stream = true' <<<"$thinks")" -N
    expect "its stream, too" "$(sed -n 's/^data: {/{/p' "$work/answer" | jq -sr "$deltas")" '"content","reasoning_content","content"'
    ask POST /v1/chat/completions "$(jq -c '.reasoning_format = "none"' <<<"$thinks")"
    answered "none: as the model has written it" 200 '.choices[0].message | "\(.reasoning_content)|\(.content)"' $'null|A key, I say.\n</think>\n\nThe key is 7302941'
    ask POST /v1/chat/completions "$(jq -c '.max_tokens = 7' <<<"$thinks")"
    answered "cut, it is reasoning" 200 "$parts" 'length|A key,|'
    ask POST /v1/chat/completions "$(jq -c '.max_tokens = 0' <<<"$thinks")"
    answered "no token, no reasoning" 200 "$parts" 'length|null|'
    ask POST /v1/chat/completions "$(jq -c '.response_format = {type: "json_object"}' <<<"$thinks")"
    answered "its JSON is no reasoning" 200 '.choices[0].message | "\(has("reasoning_content")) \(.content | test("^\\s*\\{"))"' "false true"
    kill "$gateway"
    wait "$gateway"
    url=$served_url gateway=$served_gateway
else
    echo "skipped: a template that begins with a thought (python3-jinja2 is not there)"
fi

# ---- what is refused, and by which name ----
ask POST /v1/chat/completions '{"messages":'
refused "JSON that is cut" 400 'line 1'
ask POST /v1/chat/completions "$(printf '[%.0s' $(seq 200))"
refused "JSON that nests too deep" 400 deeper
ask POST /v1/chat/completions "$(jq -c '.max_tokens = "7"' <<<"$chat")"
refused "a wrong type" 400 'max_tokens has to be'
expect "its field" "$(jq -r .error.param "$work/answer")" max_tokens
ask POST /v1/chat/completions "$(jq -c '.nonsense = 1' <<<"$chat")"
refused "an unknown field" 400 nonsense
ask POST /v1/chat/completions "$(jq -c '.tools = [{}]' <<<"$chat")"
refused "tools" 400 'tools\[0\]'
ask POST /v1/chat/completions '{"messages":[{"role":"assistant","content":"x"}]}'
refused "turns that are no chat" 400 "has no user's text"
ask POST /v1/completions "{\"prompt\":\"$(head -c 17000 /dev/zero | tr '\0' x)\"}"
refused "a prompt longer than the context" 400 'context of 16384'
expect "its code" "$(jq -r .error.code "$work/answer")" context_length_exceeded
ask POST /v1/embeddings '{}'
refused "embeddings" 501 embeddings
ask GET /etc/passwd
refused "no such path" 404 passwd
ask GET /v1/completions
refused "the wrong method" 405 POST
ask GET /health '' -H 'Host: evil.example'
refused "a name that is not this machine's" 403 'this machine'
ask GET /health '' -H 'Origin: https://evil.example'
refused "another origin's page" 403 origin

# ---- what no well-made client sends, on a bare socket ----
port=${url##*:}
raw() { # TEXT: what comes back until the connection ends; "-" at its end: the sender stays, and says nothing more
    exec {socket}<>"/dev/tcp/127.0.0.1/$port"
    (printf '%b' "${1%-}" >&"$socket") 2>/dev/null # who closes early makes it SIGPIPE
    timeout 30 cat <&"$socket" >"$work/raw"
    raw_ended=$?
    exec {socket}>&-
}
raw 'GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n'
expect "two requests at once are two answers" "$(grep -o 'HTTP/1.1 200' "$work/raw" | wc -l)" 2
raw 'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"prompt":-'
expect "a body that does not go on ends its connection" "$raw_ended" 0
raw 'GET /health HTTP/1.1\r\nHost-'
expect "so does a head" "$raw_ended" 0
trickle() { # a head that goes on and on, a byte at a time: its connection must be ended
    exec {socket}<>"/dev/tcp/127.0.0.1/$port"
    (while printf x 1>&"$socket"; do sleep 0.3; done 2>/dev/null) &
    writer=$!
    if [ "$1" = late ]; then # bytes lie unread when the head's time is over
        sleep 3
        kill -STOP "$gateway"
        sleep 1.5 # less than --idle-timeout: the connection is not silent
        kill -CONT "$gateway"
    fi
    timeout 30 cat <&"$socket" >/dev/null 2>&1
    raw_ended=$?
    exec {socket}>&-
    kill "$writer" 2>/dev/null
    wait "$writer"
}
trickle at_once
expect "and one that goes on and on" "$([ "$raw_ended" != 124 ] && echo ended)" ended
trickle late
expect "and one with bytes unread when its time is over" "$([ "$raw_ended" != 124 ] && echo ended)" ended
raw "GET /$(head -c 60000 /dev/zero | tr '\0' x) HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n"
expect "a path without end is no request" "$(grep -c 'HTTP/1.1 200' "$work/raw")" 0 # 414, or a reset on the way
raw 'POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n'
expect "a length and chunks: one answer, and the end" "$(grep -o 'HTTP/1.1 [0-9]*' "$work/raw")" "HTTP/1.1 400"
raw 'GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nxx'
expect "two lengths" "$(grep -o 'HTTP/1.1 [0-9]*' "$work/raw")" "HTTP/1.1 400"
raw 'nonsense\r\n\r\n'
ask GET /health
answered "and the gateway lives" 200 .status ok

# ---- the shapes of many answers ----
cases_ask "$url" "$work/cases" | cases_group >"$work/shapes"
expect "cases that have an answer" "$(jq '.cases[]' "$work/shapes" | wc -l)" "$(wc -l <tests/gateway/http_cases.jsonl)"
if diff tests/gateway/http_shapes.jsonl "$work/shapes" >"$work/shapes.diff"; then
    pass "their statuses and shapes"
else
    fail "their statuses and shapes: $(head -c 4000 "$work/shapes.diff")"
fi

# ---- the page, in a browser ----
ask GET /
expect "the page" "$code $(grep -ci '^content-type: text/html' "$work/head") $(grep -ci '^content-security-policy:' "$work/head")" "200 1 1"
expect "it takes nothing from outside" "$(grep -cE '(src|href)="?(https?:)?//|@import' "$work/answer")" 0
say() { # TEXT: typed and sent
    browser_eval '$("say").focus()' >/dev/null && browser_type "$1" && browser_key Enter $'\r'
}
seen() { # DESCRIPTION EXPRESSION
    if browser_until "$2"; then pass "the page: $1"; else fail "the page: $1: $(browser_eval 'JSON.stringify(chat.turns.slice(-2)) + document.body.innerText.slice(-300)')"; fi
}
if ! browser_there; then
    echo "skipped: the page in a browser (chromium is not there)"
elif ! browser_open "$work/browser" "$url/" 1100 700; then
    fail "chromium: $(tail -n 3 "$work/browser/log")"
else
    seen "it finds the pipeline" '$("health").textContent === "ready" && $("model").textContent.includes("16,384")'
    seen "the tiers" 'document.querySelectorAll(".tier").length >= 2'
    seen "what flash was written" '/written to flash\s*[0-9.]+ [KM]?i?B\s*a day, at this rate\s*[0-9.]+ [KMGT]?i?B/.test($("saved").innerText)'
    browser_eval 'for (const [name, value] of [["max_tokens", 24], ["temperature", 0], ["alpha", 1]]) {
        $(name).value = value; $(name).dispatchEvent(new Event("change")); }
        chat.turns.push({role: "user", text: "Say it."}, {role: "assistant", text: "The key is 7302941, no other."})' >/dev/null
    say "Say it."
    seen "an answer" '!running && chat.turns.length === 4 && chat.turns[3].text.includes("7302941")'
    seen "which passages it read" 'looks.get(chat.turns[3])?.selection?.passages.length > 3 && document.querySelectorAll(".turn details").length === 2'
    browser_eval 'for (const box of document.querySelectorAll(".turn details")) box.open = true' >/dev/null
    seen "they are the prompt" 'document.querySelector(".passages")?.textContent.includes("The key is 7302941, no other.")'
    seen "one token on three lanes" '[...document.querySelectorAll(".token svg:first-of-type text")].map(t => t.textContent).join(" ").startsWith("GPU Scorer Drive") && document.querySelectorAll(".token rect").length > 5'
    seen "it is shown, with its rate" '/7302941[^]*tokens, [0-9.]+ a second/.test([...document.querySelectorAll(".assistant")].at(-1).innerText)'
    browser_eval 'for (const name of ["max_tokens", "alpha"]) { $(name).value = ""; $(name).dispatchEvent(new Event("change")); }' >/dev/null
    say "one two three"
    seen "a long one streams" 'running && chat.turns.at(-1).text.length > 10'
    browser_key Escape
    seen "Esc stops it" '!running && chat.turns.at(-1).note === "Stopped."'
    browser_key ArrowUp
    browser_type " four"
    browser_key Enter $'\r'
    seen "an edited question is asked again" 'chat.turns.length === 6 && chat.turns[4].text.endsWith(" four") && chat.turns[5].text'
    browser_eval '$("new").click()' >/dev/null
    seen "a new chat leaves the answer so far" '!running && !chat.turns.length && store.get("chats", [])[0].turns[5]?.note === "Stopped."'
    browser_eval '$("say").value = "x".repeat(17000); attach({name: "a.txt", text: "y"}); say()' >/dev/null
    seen "a question for which there is no room" '!running && chat.turns[1]?.error?.startsWith("There is no room for more. ")'
    seen "it is noted, and back in the input with its file" 'chat.turns[0].note === "Not answered." && $("say").value.length === 17000 && attached?.name === "a.txt"'
    browser_eval '$("new").click()' >/dev/null
    seen "but in no other chat's" '!$("say").value && !attached && !chat.turns.length'
    browser_eval 'show_chat(chats[0])' >/dev/null
    seen "it waits in its own" '$("say").value.length === 17000 && attached?.name === "a.txt"'
    browser_eval 'fill_input("", null)
        for (let i = 0; i < 101; i++) { chat = {id: new_id(), turns: [{role: "user", text: "q"}, {role: "assistant", text: "a"}]}; keep(); }
        new_chat()' >/dev/null
    seen "more than 100 chats stay" '!chat.turns.length && store.get("chats", []).length > 101'
    browser_eval 'for (const [name, value] of [["max_tokens", 80], ["alpha", 1]]) { $(name).value = value; $(name).dispatchEvent(new Event("change")); }
        chat.turns.push({role: "user", text: "Say it."}, {role: "assistant", text: "\n<think>\nA key, I say.\n</think>\n\nThe key is 7302941, no other."})' >/dev/null
    say "Say it."
    seen "reasoning above its answer" '!running && chat.turns[3]?.reasoning === "A key, I say." && chat.turns[3].text.startsWith("The key is 7302941")'
    seen "it is folded" '!document.querySelector(".turn:last-child .reasoning").closest("details").open'
    seen "it is not sent back" 'JSON.parse(body_of()).messages.at(-1).content === chat.turns[3].text'
    browser_call Page.reload
    seen "the chat is there after a reload" 'document.readyState === "complete" && document.querySelector("#turns").innerText.includes("7302941")'
    browser_eval 'store.set = () => false; keep()' >/dev/null
    seen "a full storage is said, and the chat stays" '$("unkept").textContent.startsWith("This browser") && chats.includes(chat)'
    browser_size 360 640
    seen "it fits a narrow screen" 'document.documentElement.scrollWidth <= 360 && getComputedStyle($("past")).display === "none"'
    browser_close
fi
idle() {
    [ "$(status | jq '.requests_running + .requests_waiting')" = 0 ]
}
wait_for 30 idle || fail "a request of the page runs on"

# ---- clients that go away; a bound of requests ----
long='{"prompt":"one two three one two","max_tokens":16000,"ignore_eos":true,"stream":true}'
running() { # HOW-MANY
    [ "$(status | jq '.requests_running + .requests_waiting')" = "$1" ]
}
kill "$gateway"
wait "$gateway"
expect "SIGTERM: exit code" $? 0
gateway --connections 2
wait_for 30 healthy "$url/health" || fail "a gateway with two connections"
exec {first}<>"/dev/tcp/127.0.0.1/${url##*:}" {second}<>"/dev/tcp/127.0.0.1/${url##*:}"
expect "a third connection of two waits" "$(healthy -m 2 "$url/health" || echo waits)" waits
exec {first}>&-
expect "until there is room" "$(wait_for 10 healthy "$url/health" && echo yes)" yes
exec {second}>&-
kill "$gateway"
wait "$gateway"
printf '# the keys of two people\nkey-of-ann\nkey-of-bob\n' >"$work/keys"
gateway --requests 2 --max-body-mb 0.1 --api-key-file "$work/keys" --cors https://chat.example
ask GET /v1/models
refused "no key" 401 'key is needed'
expect "it says how" "$(grep -ci '^www-authenticate: bearer' "$work/head")" 1
ask GET /v1/models '' -H 'Authorization: Bearer key-of-an'
refused "a wrong key" 401 wrong
ann=(-H 'Authorization: Bearer key-of-ann') bob=(-H 'X-Api-Key: key-of-bob')
wait_for 30 healthy "$url/health" || fail "health needs no key"
ask GET /v1/models '' "${bob[@]}"
answered "a key" 200 '.data[0].id' wired
ask OPTIONS /v1/chat/completions '' -H 'Origin: https://chat.example' -H 'Access-Control-Request-Method: POST'
expect "a page that may ask" "$code $(grep -ci '^access-control-allow-origin: https://chat.example' "$work/head")" "204 1"
ask OPTIONS /v1/chat/completions '' -H 'Origin: https://chat.example' -H 'Access-Control-Request-Headers: x-api-key, x-stainless-os'
expect "with a library's headers" "$(grep -ci '^access-control-allow-headers: x-api-key, x-stainless-os' "$work/head")" 1
head -c 200000 /dev/zero | tr '\0' x >"$work/large"
ask POST /v1/completions "@$work/large" "${ann[@]}"
refused "a body that is too large" 413 'larger than'
ask POST /v1/completions "@$work/large" "${ann[@]}" -H 'Transfer-Encoding: chunked'
refused "the same, of unknown length" 413 'larger than'
ask GET /health "@$work/large" -H 'Transfer-Encoding: chunked'
answered "a body that nobody asked for is not kept" 200 .status ok
holding=() # four bodies that have not ended, and leave no room for a fifth
for _ in 1 2 3 4; do
    exec {socket}<>"/dev/tcp/127.0.0.1/${url##*:}"
    printf 'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer key-of-ann\r\nContent-Length: 104001\r\n\r\n' >&"$socket"
    head -c 104000 "$work/large" >&"$socket"
    holding+=("$socket")
done
sent() { # STATUS: of a fifth one
    ask POST /v1/completions "$(head -c 50000 "$work/large")" "${bob[@]}"
    [ "$code" = "$1" ]
}
wait_for 10 sent 429
refused "a body beside four that have not ended" 429 'too much is being sent'
expect "when to send it again" "$(grep -ci '^retry-after: 1' "$work/head")" 1
for socket in "${holding[@]}"; do exec {socket}>&-; done
expect "without them there is room: its JSON is looked at" "$(wait_for 10 sent 400 && echo yes)" yes
clients=()
for i in 1 2; do
    curl -sN -m 120 -o "$work/stream$i" "${ann[@]}" --data-binary "$long" "$url/v1/completions" &
    clients+=($!)
done
streaming() { # FILE
    grep -q '^data: ' "$1" 2>/dev/null
}
for i in 1 2; do
    wait_for 20 streaming "$work/stream$i" || fail "stream $i did not begin"
done
ask POST /v1/completions "$body" "${bob[@]}"
refused "one request too many" 429 'under way'
expect "when to come again" "$(grep -ci '^retry-after: 1' "$work/head")" 1
ask GET /slots '' "${ann[@]}"
answered "who asks sees its own requests" 200 '[.[] | has("n_prompt_tokens")] | @csv' "true,true"
ask GET /slots '' "${bob[@]}"
answered "and not those of another key" 200 '[.[] | "\(.is_processing) \(has("n_prompt_tokens"))"] | @csv' '"true false","true false"'
kill "${clients[@]}"
if wait_for 30 running 0; then pass "clients that went away are cancelled"; else fail "requests of clients that are gone run on"; fi
jq -Rsc '{prompt: ., max_tokens: 2300, ignore_eos: true}' <(head -c 14000 "$text") >"$work/prompt"
curl -s -o /dev/null "${ann[@]}" --data-binary "@$work/prompt" "$url/v1/completions" &
client=$!
wait_for 30 status_is '.requests | any(.prefill_tokens_done > 0)' || fail "no prompt is computed"
kill "$client"
# its answer alone would take 11.5 s
if wait_for 8 running 0; then pass "one that goes within its prompt, too"; else fail "a prompt of nobody is computed"; fi
ask POST /v1/completions "$body" "${bob[@]}"
ask POST /v1/completions "$(jq -c '.return_selection = true' <<<"$body")" "${bob[@]}"
answered "who asks sees its own text alone" 200 '[.selection.passages[].text] | add | startswith("Mary had a little lamb")' true
answered "the bound is free again" 200 '.choices[0].text' "$(jq -r .text "$work/wanted")"
answered "two keys: nothing of another key's is reused" 200 '.usage.prompt_tokens_details.cached_tokens' 0
ask GET /metrics '' "${ann[@]}"
expect "metrics: status" "$code" 200
expect "metrics: this contract's names" "$(sed -n 's/^# TYPE hillinfer_\([a-z_]*\) .*/\1/p' "$work/answer" | grep -cxE 'prompt_tokens_total|generation_tokens_total|requests_running|requests_waiting|time_to_first_token_seconds|inter_token_latency_seconds|kv_tier_bytes|kv_tier_cap_bytes|kv_hits_total|link_bytes_total|stage_seconds_total|moves_total|beta|worker_up|worker_restarts_total')" 15
expect "metrics: every line is Prometheus'" "$(grep -vcE '^(# (HELP|TYPE) hillinfer_[a-z_]+ .+|hillinfer_[a-z_]+(\{[a-z]+="[a-zA-Z_0-9.+]+"\})? -?[0-9.e+-]+)$' "$work/answer")" 0
expect "metrics: all workers are up" "$(grep -c '^hillinfer_worker_up{worker="[a-z_]*"} 1$' "$work/answer")" 3

# ---- deaths ----
hillctl generate -p "$prompt" -n 1000 --temp 0 --ignore-eos --json >"$work/alone" || fail "a long answer"
expect "the long answer: tokens" "$(jq '.tokens | length' "$work/alone")" 1000
served=$(pgrep -f -- "hill-gateway .*--host unix:$work/http.sock")
coordinator=$(coordinator_pid)
curl -sN --unix-socket "$work/http.sock" -o "$work/stream3" --data-binary "$long" http://localhost/v1/completions &
client=$!
wait_for 20 streaming "$work/stream3" || fail "the stream did not begin"
hillctl generate -p "$prompt" -n 1000 --temp 0 --ignore-eos --json >"$work/beside" &
asking=$!
kill -9 "$served"
wait "$client"
wait "$asking"
expect "kill -9 of the gateway: hillctl's exit code" $? 0
expect "kill -9 of the gateway: hillctl's answer" "$(hashes "$work/beside")" "$(hashes "$work/alone")"
expect "the coordinator is the same" "$(coordinator_pid)" "$coordinator"
if wait_for 30 running 0; then pass "the dead gateway's request has ended"; else fail "the dead gateway's request runs on"; fi
expect "there is another gateway" "$(wait_for 30 healthy --unix-socket "$work/http.sock" http://localhost/health && echo yes)" yes
away() {
    ask GET /health
    [ "$code" = 503 ]
}
for _ in 1 2 3; do # it is back half a second after it was seen: whoever is not asked meanwhile does not tell
    signal_worker STOP cpu_scorer
    wait_for 10 away && break
    wait_for 20 healthy "$url/health" || fail "a scorer that hung does not come back"
done
[ "$code" = 503 ] || fail "health does not tell of a worker that hangs"
refused "health with a worker away" 503 'cpu_scorer is'
wait_for 20 healthy "$url/health" || fail "it did not come back"
curl -sN -m 120 -o "$work/stream4" "${ann[@]}" --data-binary "$(jq -c '.stream = true | .max_tokens = 1000 | .ignore_eos = true' <<<"$body")" \
    "$url/v1/completions" &
client=$!
wait_for 20 streaming "$work/stream4" || fail "the stream did not begin"
kill -9 "$coordinator"
wait "$client"
expect "a stream over the coordinator's death" "$(sed -n 's/^data: {/{/p' "$work/stream4" | jq -sr '[.[].choices[0].text] | add' | md5sum)" "$(jq -r .text "$work/alone" | md5sum)"

down || fail "down"
ended() {
    ! kill -0 "$gateway" 2>/dev/null
}
wait_for 30 ended || fail "a gateway outlives its pipeline"
expect "the socket is gone" "$([ -e "$work/http.sock" ] && echo there)" ""
expect_nothing_left

# ---- installed outside /usr: its template helper may be read; a socket without a folder in its name goes, too, though the gateway
# neither reads nor writes what lies beside it ----
mkdir -p "$work/prefix/bin" "$work/prefix/share/hillinfer"
cp "$bin/hill-gateway" "$work/prefix/bin"
small_model "$work/own.gguf" --metadata general.sampling.temp=0.0 --metadata general.sampling.top_k=20 \
    --tokens '<|fim_prefix|>,<|fim_suffix|>,<|fim_middle|>,<|repo_name|>,<|file_sep|>,<think>' --chat-template chatml
echo '{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<answer>{% if enable_thinking == false %}</think>{% endif %}' >"$work/template"
up -m "$work/own.gguf" -c 512 || fail "up"
(cd "$work" && exec "$work/prefix/bin/hill-gateway" --host unix:gw.sock --chat-template-file template --run-dir "$run_dir" --log-level debug 2>"$work/own.err") &
gateway=$!
wait_for 30 healthy --unix-socket "$work/gw.sock" http://localhost/health || fail "an installed gateway: $(tail -n 1 "$work/own.err")"
url=http://localhost
# how this model's file wants it sampled holds where nobody says otherwise
ask GET /props '' --unix-socket "$work/gw.sock"
answered "props: how the model's file has it sampled" 200 '.default_generation_settings.params | "\(.temperature) \(.top_k) \(.top_p)"' "0 20 0.95"
sampled() { # FIELDS [OPTIONS...]: the answer by HTTP, and hillctl's tokens
    ask POST /v1/completions "{\"prompt\":\"one fish\",\"max_tokens\":12,\"seed\":3,\"ignore_eos\":true$1}" --unix-socket "$work/gw.sock"
    jq -c '.choices[0].text' "$work/answer"
    hillctl generate -p "one fish" -n 12 -s 3 --ignore-eos --json "${@:2}" | jq -c .tokens
}
greedy=$(sampled ',"temperature":0' --temp 0)
expect "twelve tokens" "$(tail -n 1 <<<"$greedy" | jq length)" 12
expect "the file's temperature" "$(sampled "")" "$greedy"
warm=$(sampled ',"temperature":0.8' --temp 0.8)
expect "another one that was asked for: by HTTP" "$([ "$(head -n 1 <<<"$warm")" != "$(head -n 1 <<<"$greedy")" ] && echo other)" other
expect "another one that was asked for: by hillctl" "$([ "$(tail -n 1 <<<"$warm")" != "$(tail -n 1 <<<"$greedy")" ] && echo other)" other
if [ -x /usr/bin/python3 ] && grep -q 'confined by seccomp, Landlock' "$work/own.err"; then
    # its helper is confined as the gateway is
    cat >"$work/prefix/share/hillinfer/chat-template-helper.py" <<EOF
import json
may = []
for name, mode in ("template", "r"), ("template", "a"), ("new", "x"):
    try:
        open("$work/" + name, mode)
        may.append(mode)
    except PermissionError:
        pass
print(json.dumps({"error": f"opened: {len(may)} {may}"}))
EOF
    ask POST /apply-template '{"messages":[{"role":"user","content":"Hi"}]}' --unix-socket "$work/gw.sock"
    refused "an installed gateway: opens no file beside its socket" 400 'opened: 0'
else
    echo "skipped: what an installed gateway opens (no Landlock, or no python3)"
fi
if /usr/bin/python3 -c 'import jinja2' 2>/dev/null; then
    cp scripts/chat-template-helper.py "$work/prefix/share/hillinfer"
    ask POST /apply-template '{"messages":[{"role":"user","content":"Hi"}]}' --unix-socket "$work/gw.sock"
    answered "an installed gateway: a template that is not built in, of a file" 200 .prompt '<user>Hi<answer>'
    ask POST /apply-template '{"messages":[{"role":"user","content":"Hi"}],"chat_template_kwargs":{"enable_thinking":false}}' --unix-socket "$work/gw.sock"
    answered "its thinking is off" 200 .prompt '<user>Hi<answer></think>'
else
    echo "skipped: an installed gateway's templates (python3-jinja2 is not there)"
fi
# conversations that wait for the helper, which takes as many seconds as it is told
asking=()
render() { # SECONDS NUMBER-OF-CLIENTS: their answers in $work/rendered-SECONDS-NUMBER
    for ((i = 1; i <= $2; i++)); do
        curl -s -m 30 --unix-socket "$work/gw.sock" -o "$work/rendered-$1-$i" --data-binary "{\"messages\":[{\"role\":\"user\",\"content\":\"$1\"}]}" \
            "$url/apply-template" &
        asking+=($!)
    done
}
if [ -x /usr/bin/python3 ]; then
    cat >"$work/prefix/share/hillinfer/chat-template-helper.py" <<'EOF'
import json, sys, time
seconds = json.load(sys.stdin)["messages"][0]["content"]
time.sleep(float(seconds))
print(json.dumps({"pieces": [{"text": seconds, "kind": "words"}], "answer_end": ""}))
EOF
    render 0.5 6
    wait "${asking[@]}"
    expect "conversations beside those that are being rendered wait" "$(jq -s -c 'map(.prompt)' "$work"/rendered-0.5-?)" '["0.5","0.5","0.5","0.5","0.5","0.5"]'
    asking=()
    render 19 8
    sleep 1
    kill "${asking[@]}"
    wait "${asking[@]}"
    ask POST /apply-template '{"messages":[{"role":"user","content":"0"}]}' --unix-socket "$work/gw.sock" -m 12
    answered "clients that went away keep nobody waiting" 200 .prompt 0
    asking=()
    render 19 6
    sleep 1
fi
installed=$gateway own_url=$url
gateway
wait_for 30 healthy "$url/health" || fail "a gateway beside it"
# a vocabulary with marks: of what is filled in, and of reasoning
fill='{"input_prefix":"a","prompt":"b","input_suffix":"c","n_predict":4,"ignore_eos":true,"temperature":0}'
ask POST /infill "$fill"
answered "an infill: its end, and its prompt: BOS, three marks, a token a letter" 200 \
    '"\(.content | type) \(.stop_type) \(.tokens_predicted) \(.tokens_evaluated)"' "string limit 4 7"
filled=$(jq .content "$work/answer")
ask POST /v1/completions '{"prompt":"<|fim_prefix|>ab<|fim_suffix|>c<|fim_middle|>","parse_special":true,"max_tokens":4,"ignore_eos":true,"temperature":0}'
answered "it is the prompt's continuation" 200 '.choices[0].text | tojson' "$filled"
ask POST /infill "$(jq -c '.stream = true' <<<"$fill")" -N
expect "its stream says the same, and has no [DONE]" "$(sed -n 's/^data: //p' "$work/answer" | jq -s 'map(.content) | add')" "$filled"
ask POST /infill "$(jq -c '.input_extra = [{filename: "x", text: "yz"}]' <<<"$fill")"
answered "beside another file" 200 '.tokens_evaluated' $((7 + 1 + 10 + 1 + 2 + 2 + 1 + 9)) # its marks, the names, the text
ask POST /infill "$(jq -c '.input_suffix += "<|fim_middle|>"' <<<"$fill")"
answered "a mark that was sent is text" 200 .tokens_evaluated $((7 + 14))
begun() { # TEXT: tokens of a prompt that ends with it
    ask POST /v1/chat/completions "$(jq -nc --arg text "$1" '{messages: [{role: "user", content: "<think>"}, {role: "assistant", content: $text}], max_tokens: 1}')"
    jq .usage.prompt_tokens "$work/answer"
}
expect "an answer that has begun: a mark of reasoning is the token that the model wrote" "$(($(begun '<think>a') - $(begun a)))" 1
expect "a control token spelt out is text" "$(($(begun '<|endoftext|>a') - $(begun a)))" 13
kill "$gateway"
wait "$gateway"
gateway=$installed url=$own_url
kill -TERM "$gateway"
gateway_ended=$SECONDS
wait "$gateway"
expect "an installed gateway: its exit code" $? 0
wait "${asking[@]}"
expect "it waits for no conversation" "$((SECONDS - gateway_ended < 12))" 1
expect "an installed gateway: its socket is gone" "$([ -e "$work/gw.sock" ] && echo there)" ""
down || fail "down"
expect_nothing_left
finish
