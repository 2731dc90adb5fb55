# tests/gateway/http_cases.sh - requests of http_cases.jsonl to a server, and the shapes of its answers; sourced, not run.
#
# A shape is the JSON with "text", 0, true and null for all texts, numbers, truth values and nulls; of a list that of its
# first item; of a stream those of its events, each once. test_gateway.sh holds the answers of a pipeline with the wired
# model against http_shapes.jsonl (a line for each status and shape, with the names of its cases); compare_peer.sh asks
# llama-server the same.
# shellcheck shell=bash

# cases_ask URL FOLDER: a line of JSON for each case: name, status and shape. FOLDER has the answers afterwards.
cases_ask() {
    mkdir -p "$2"
    jq -rn --arg url "$1" --arg folder "$2" '[inputs] | to_entries[] | .key as $i | .value |
        if $i > 0 then "next" else empty end, "url = \($url + .path | @json)", "output = \("\($folder)/\(1000 + $i)" | @json)", "write-out = \"%{http_code}\\n\"",
        if .method == "HEAD" then "head" else "request = \(.method)" end,
        if has("body") then "header = \"Content-Type: application/json\"", "data-binary = \(.body | @json)" else empty end,
        "max-time = 60", "silent"' tests/gateway/http_cases.jsonl >"$2/config"
    curl -q -K "$2/config" >"$2/statuses"
    # a file for each, also where there was no answer, and a line in each
    for ((i = 1000; i < 1000 + $(wc -l <tests/gateway/http_cases.jsonl); i++)); do echo >>"$2/$i"; done
    jq -Rnc --slurpfile cases tests/gateway/http_cases.jsonl --rawfile statuses "$2/statuses" '
        def shape: if type == "object" then with_entries(.value |= shape) elif type == "array" then (.[:1] | map(shape))
            elif type == "string" then "text" elif type == "number" then 0 elif type == "boolean" then true else null end;
        def read: if any(.[]; startswith("data: {")) then map(select(startswith("data: {"))[6:] | fromjson | shape) | unique
            else add | (try (fromjson | shape) catch "no JSON") end;
        ($statuses | split("\n")) as $status
        | reduce (inputs | {file: input_filename, line: .}) as $l ({}; .[$l.file] += [$l.line])
        | to_entries | sort_by(.key) | to_entries[]
        | {name: $cases[.key].name, status: ($status[.key] | tonumber), shape: (.value.value | read)}' "$2"/1???
}

cases_group() { # of cases_ask's lines
    jq -sc 'group_by([.status, .shape])[] | {status: .[0].status, shape: .[0].shape, cases: map(.name)}'
}
