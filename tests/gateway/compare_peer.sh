#!/usr/bin/env bash
# tests/gateway/compare_peer.sh - the requests of http_cases.jsonl to a gateway and to llama-server: where do they differ?
#
# usage: tests/gateway/compare_peer.sh OUR-URL PEER-URL
# Both run the same model already, the peer with --jinja --metrics --slots. Prints how many cases have the same status and
# the same shape, then each other pair of statuses with its cases, then each other pair of shapes. docs/http.md has the
# reasons. No test: nobody has to have a peer.
set -u
[ $# -eq 2 ] || {
    echo "usage: $0 OUR-URL PEER-URL" >&2
    exit 100
}
cd "$(dirname "$0")/../.." || exit 111
# shellcheck source=tests/gateway/http_cases.sh
. tests/gateway/http_cases.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cases_ask "$1" "$work/own" >"$work/own.jsonl" && cases_ask "$2" "$work/peer" >"$work/peer.jsonl" || exit 1
# shellcheck disable=SC2016  # the $ of jq
jq -nr --slurpfile own "$work/own.jsonl" --slurpfile peer "$work/peer.jsonl" '
    [range($own | length) | {name: $own[.].name, own: $own[.], peer: $peer[.]}]
    | "\(length) cases; same status \(map(select(.own.status == .peer.status)) | length)",
      "of these, same shape \(map(select(.own.status == .peer.status and .own.shape == .peer.shape)) | length)",
      (map(select(.own.status != .peer.status)) | group_by([.own.status, .peer.status])[]
        | "\n\(.[0].own.status) here, \(.[0].peer.status) there (\(length)): \(map(.name) | join("; "))"),
      (map(select(.own.status == .peer.status and .own.shape != .peer.shape)) | group_by([.own.shape, .peer.shape])[]
        | "\nshapes (\(length)): \(map(.name) | join("; "))\n  here  \(.[0].own.shape | tojson)\n  there \(.[0].peer.shape | tojson)")'
