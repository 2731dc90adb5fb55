#!/usr/bin/env bash
# The selection and the logits do not depend on where the entries lie, nor on the code path that scores them, nor on whether the
# attention reads hot entries in place or copies of them; a wrong score shows. Kernels of work groups do as those of register tiles.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

pass_key_prompt 800 800 >"$work/licence"
{
    printf 'Once upon a time, there was a little girl named Lily. %.0s' 1 2 3 4 5 6
    printf 'She loved to play outside in the park with her dog. One day, she saw a big, red ball. %.0s' 1 2 3 4 5
} >"$work/story"

# check NAME PROMPT N ARGUMENTS...: seven runs (of one model with each placement), equal hashes; with copies of hot entries too; one with a wrong score for a cold entry differs
check() {
    local name=$1 prompt=$2 n=$3 first="" hashes placement hot cold entries uploads hits others=()
    shift 3
    [ "$name" != random ] || others=("--beta 0.25 --placement paper" "--beta 0.25 --placement lru" "--beta 0.25 --placement lfu")
    for placement in "--csd none" "--beta 4 --placement bkp" "--beta 0.25 --placement bkp" "--beta 0.25 --placement recency" "--beta 0.25 --placement bkp --csd-device 0" "--beta 0.25 --placement bkp --pin 0.02 --simd reference" "--csd none --simd reference" "${others[@]}"; do
        # shellcheck disable=SC2086  # words on purpose
        run_json "$work/out" "$@" -f "$prompt" -n "$n" --temp 0 --ignore-eos $placement || fail "$name $placement: $(cat "$work/out.err")"
        hashes=$(field "$work/out" '"\(.selection_hash) \(.logits_hash)"')
        [ -n "$first" ] || first=$hashes
        expect "$name, $placement: hashes" "$hashes" "$first"
        read -r hot cold <<<"$(field "$work/out" '"\(.tiers.hot.tokens) \(.tiers.cold.tokens)"')"
        entries=$((hot + cold))
        case $placement in
        *none*) expect "$name, $placement: cold entries" "$cold" 0 ;;
        *4*)
            if [ $((cold * 100)) -lt $((entries * 15)) ] || [ $((cold * 100)) -gt $((entries * 25)) ]; then
                fail "$name, $placement: $cold of $entries entries cold, wanted about 20 %"
            fi
            ;;
        *) [ $((cold * 100)) -ge $((entries * 75)) ] || fail "$name, $placement: $cold of $entries entries cold, wanted about 80 %" ;;
        esac
        expect "$name, $placement: keys over the link" "$(field "$work/out" .bytes.link_key)" 0
        [ "$placement" != "--csd none" ] || [ "$name" = stories ] || # its heads of 8 values are copied
            expect "$name, $placement, in place: uploaded bytes" "$(field "$work/out" .bytes.gpu_upload)" 0
    done
    for placement in "--csd none" "--beta 0.25 --placement bkp"; do
        # shellcheck disable=SC2086  # words on purpose
        HILL_TEST_COPY_HOT=1 run_json "$work/copied" "$@" -f "$prompt" -n "$n" --temp 0 --ignore-eos $placement || fail "$name $placement: $(cat "$work/copied.err")"
        expect "$name, $placement, copied: hashes" "$(field "$work/copied" '"\(.selection_hash) \(.logits_hash)"')" "$first"
        read -r uploads hits <<<"$(field "$work/copied" '"\(.bytes.gpu_upload) \(.tiers.hot.hits)"')"
        [ "$hits" -gt 0 ] || fail "$name, $placement, copied: no hot entries: this checks nothing"
        [ "$uploads" -ge "$hits" ] || fail "$name, $placement, copied: nothing was uploaded"
    done
    HILL_TEST_WRONG_SCORE=100 run_json "$work/out" "$@" -f "$prompt" -n "$n" --temp 0 --ignore-eos --beta 0.25 || fail "$name: $(cat "$work/out.err")"
    [ "$(field "$work/out" .selection_hash)" != "${first% *}" ] || fail "$name: a wrong score for a cold entry did not change the selection"
}

# importances PROMPT N ARGUMENTS...: each selects differently, and the same with most entries on the drive
importances() {
    local prompt=$1 n=$2 importance placement hash seen=""
    shift 2
    for importance in sum max norm heads; do
        hash=""
        for placement in "--csd none --simd reference" "--beta 0.25 --placement bkp"; do
            # shellcheck disable=SC2086  # words on purpose
            run_json "$work/out" "$@" -f "$prompt" -n "$n" --temp 0 --ignore-eos --importance "$importance" $placement || fail "$importance $placement: $(cat "$work/out.err")"
            [ -n "$hash" ] || hash=$(field "$work/out" .selection_hash)
            expect "$importance, $placement: hash" "$(field "$work/out" .selection_hash)" "$hash"
        done
        case $seen in *"$hash"*) fail "$importance selects what another one does" ;; esac
        seen="$seen $hash"
    done
}

# selects_anew NAME OPTION PROMPT N ARGUMENTS...: with the option it selects differently, and the same wherever entries lie
selects_anew() {
    local name=$1 option=$2 prompt=$3 n=$4 placement hash="" without
    shift 4
    run_json "$work/out" "$@" -f "$prompt" -n "$n" --temp 0 --ignore-eos --csd none || fail "without $option: $(cat "$work/out.err")"
    without=$(field "$work/out" .selection_hash)
    for placement in "--csd none" "--csd none --simd reference" "--csd none --simd avx2" "--beta 4 --placement bkp" "--beta 0.25 --placement bkp" "--beta 0.25 --placement bkp --csd-device 0" "--beta 0.25 --placement recency"; do
        # shellcheck disable=SC2086  # words on purpose
        run_json "$work/out" "$@" -f "$prompt" -n "$n" --temp 0 --ignore-eos $option $placement || fail "$name, $placement: $(cat "$work/out.err")"
        [ -n "$hash" ] || hash=$(field "$work/out" .selection_hash)
        expect "$name, $placement: hash" "$(field "$work/out" .selection_hash)" "$hash"
        expect "$name, $placement: keys over the link" "$(field "$work/out" .bytes.link_key)" 0
    done
    [ "$hash" != "$without" ] || fail "$name: the selection is that of without $option"
}

# largest_difference FILE FILE: of two files of floats, as a share of the first one's largest; nothing: no numbers, or not as many
largest_difference() {
    paste <(od -An -v -tf4 -w4 "$1") <(od -An -v -tf4 -w4 "$2") |
        awk 'NF != 2 || /n/ { most = 0; exit } { a = $1 < 0 ? -$1 : $1; d = $1 - $2; d = d < 0 ? -d : d; if (a > most) most = a; if (!(d <= worst)) worst = d }
            END { if (most > 0) print worst / most }'
}

# work_groups PROMPT N ARGUMENTS...: the kernels for GPUs give the tokens of the others, nearly their logits, and the same hashes
# again and elsewhere
work_groups() {
    local prompt=$1 n=$2 placement hashes="" share
    shift 2
    HILL_TEST_LOGITS=$work/tiles.f32 run_json "$work/tiles" "$@" -f "$prompt" -n "$n" --temp 0 --ignore-eos --csd none || fail "register tiles: $(cat "$work/tiles.err")"
    for placement in "--csd none" "--csd none" "--beta 0.25 --placement bkp"; do
        rm -f "$work/groups.f32"
        # shellcheck disable=SC2086  # words on purpose
        HILL_LOG_LEVEL=info HILL_TEST_WORK_GROUPS=1 HILL_TEST_LOGITS=$work/groups.f32 \
            run_json "$work/groups" "$@" -f "$prompt" -n "$n" --temp 0 --ignore-eos $placement || fail "work groups, $placement: $(cat "$work/groups.err")"
        grep -q 'loaded: .* (work groups) in' "$work/groups.err" || fail "work groups, $placement: the log does not name them"
        [ -n "$hashes" ] || hashes=$(hashes "$work/groups")
        expect "work groups, $placement: hashes" "$(hashes "$work/groups")" "$hashes"
        expect "work groups, $placement: tokens" "$(field "$work/groups" '.tokens | @csv')" "$(field "$work/tiles" '.tokens | @csv')"
        share=$(largest_difference "$work/tiles.f32" "$work/groups.f32")
        awk -v s="$share" 'BEGIN { exit !(s ~ /^[0-9.e-]+$/ && s + 0 < 1e-3) }' || fail "work groups, $placement: logits are '$share' of the largest off"
    done
}

"$bin/hill-mkmodel" -o "$work/wired.gguf" || fail "mkmodel"
check wired "$work/licence" 12 -m "$work/wired.gguf" -c 8192 --budget 256
small_model "$work/random.gguf" -s 7
head -c 900 "$text" >"$work/short"
check random "$work/short" 24 -m "$work/random.gguf" -c 2048 --alpha 0.1
work_groups "$work/short" 24 -m "$work/random.gguf" -c 2048 --alpha 0.1
importances "$work/short" 12 -m "$work/random.gguf" -c 2048 --alpha 0.1
selects_anew "four bits" "--score-bits 4" "$work/short" 12 -m "$work/random.gguf" -c 2048 --alpha 0.1
selects_anew "groups of 8" "--granularity 8" "$work/short" 12 -m "$work/random.gguf" -c 2048 --alpha 0.1
if [ -r "$models/stories260K.gguf" ]; then
    check stories "$work/story" 40 -m "$models/stories260K.gguf" -c 512 --alpha 0.1 --sinks 2 --window 8
else
    echo "without stories260K: the reference models are not in $models"
fi
expect_nothing_left
finish
