#!/usr/bin/env bash
# Both sides are measured at the first start and kept for the next; beta is Eq. 4 of the rates; `hillctl profile` measures again,
# between requests alone; a damaged cache is measured anew; what is selected does not depend on any of it.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

pass_key_prompt 2500 0 >"$work/prompt"
"$bin/hill-mkmodel" -o "$work/wired.gguf" || fail "mkmodel"
model=(-m "$work/wired.gguf" -c 8192 --budget 256 --hot-mb 12)
request=(-f "$work/prompt" --temp 0 --ignore-eos)
cache=$state_dir/profile.json
# eq4 FILE: is .beta Eq. 4 of the rates (with a share for each side), and .beta_bounded not above it?
eq4() {
    # shellcheck disable=SC2016  # jq's variable
    field "$1" '((1 / .f_s + .alpha_s / .B_s) / (1 / .f_c + .alpha_c / .B_c)) as $beta
        | (.beta / $beta - 1 | fabs) < 1e-9 and .beta_bounded <= .beta and .beta_bounded > 0'
}

# ---- a fixed beta: nothing is measured ----
run_json "$work/fixed" "${model[@]}" "${request[@]}" -n 60 --beta 0.25 || fail "fixed: $(cat "$work/fixed.err")"
expect "fixed: nothing measured" "$(field "$work/fixed" '[.profile[]?] | map(select(type == "number")) | length')" 0
expect "fixed: no cache" "$([ -e "$cache" ] && echo there)" ""

# ---- the first start ----
run_json "$work/auto" "${model[@]}" "${request[@]}" -n 60 --log-level info || fail "auto: $(cat "$work/auto.err")"
expect "auto: hashes" "$(hashes "$work/auto")" "$(hashes "$work/fixed")"
expect "auto: four rates" "$(field "$work/auto" '.profile | [.f_c, .f_s, .B_c, .B_s] | all(type == "number" and . > 0)')" true
expect "auto: their spreads" "$(field "$work/auto" '.profile.spread | [.f_c, .f_s, .B_c, .B_s] | all(type == "number" and . >= 0)')" true
jq .profile "$work/auto" >"$work/profile"
expect "auto: measured now" "$(field "$work/profile" .cached)" false
expect "auto: soon" "$(field "$work/profile" '.took_ms < 20000')" true # half a second where nobody else works
expect "auto: one line says so" "$(grep -c ': beta .*, from speeds measured in ' "$work/auto.err")" 1
expect "auto: kept" "$(jq '.profiles | length' "$cache")" 1

# ---- the second start does not measure again ----
up "${model[@]}" || fail "up"
hillctl status --json >"$work/status"
expect "second start: the same rates" "$(jq -c '.profile | [.f_c, .f_s, .B_c, .B_s]' "$work/status")" "$(jq -c '[.f_c, .f_s, .B_c, .B_s]' "$work/profile")"
jq .profile "$work/status" >"$work/second"
expect "second start: beta is Eq. 4" "$(eq4 "$work/second")" true
expect "second start: not measured" "$(field "$work/status" .profile.cached)" true
expect "second start: beta in force" "$(field "$work/status" '.beta == .profile.beta_bounded and .beta_auto')" true

# ---- measured again ----
hillctl profile --json >"$work/again" || fail "hillctl profile"
expect "again: four rates" "$(field "$work/again" '[.f_c, .f_s, .B_c, .B_s] | all(type == "number" and . > 0)')" true
expect "again: beta is Eq. 4" "$(eq4 "$work/again")" true
expect "again: measured now" "$(field "$work/again" .cached)" false
expect "again: in force" "$(hillctl status --json | jq .profile.f_s)" "$(field "$work/again" .f_s)"
expect "again: in the cache" "$(jq -r '.profiles[].rates.f_s' "$cache")" "$(field "$work/again" .f_s)"
hillctl profile >"$work/out" || fail "hillctl profile"
expect "for people: both sides and beta" "$(grep -cE '^(CPU|drive) +scores|^beta ' "$work/out")" 3

# ---- a drive that is taken away takes its profile along, and brings it back ----
rate=$(hillctl status --json | jq .profile.f_s)
hillctl detach >"$work/out" || fail "detach"
expect "detached: null" "$(hillctl status --json | jq -c '.profile | [.f_c, .f_s, .B_c, .B_s]')" "[null,null,null,null]"
hillctl attach >"$work/out" || fail "attach"
expect "attached again: the same rates" "$(hillctl status --json | jq .profile.f_s)" "$rate"

# ---- not while a request runs, which is long enough for all that follows ----
hillctl generate "${request[@]}" -n 240 --json >"$work/whole" 2>"$work/whole.err" || fail "whole: $(cat "$work/whole.err")"
hillctl csd-model "latency_us=20000" >"$work/out" || fail "csd-model"
hillctl generate "${request[@]}" -n 240 --json >"$work/long" 2>"$work/long.err" &
client=$!
wait_for 60 decoding 1 2 || fail "the request does not decode"
hillctl profile >"$work/out" 2>"$work/err"
expect "while a request runs: exit code" $? 100
expect "while a request runs: one line" "$(wc -l <"$work/err") $(grep -c 'between requests' "$work/err")" "1 1"
before=$(hillctl status --json | jq .profile.beta)
hillctl csd-model "latency_us=2000" >"$work/out" || fail "csd-model"
beta_fell() { # by more than the noise of a measurement
    status_is ".profile.beta < 0.7 * $before"
}
wait_for 30 beta_fell || fail "beta stays $before when the drive gets faster: $(hillctl status --json | jq -c .profile)"
wait "$client" || fail "long: $(cat "$work/long.err")"
expect "beta changed in mid-request: hashes" "$(hashes "$work/long")" "$(hashes "$work/whole")"
expect "beta changed in mid-request: within M_0" "$(field "$work/long" '.tiers.hot.bytes <= .tiers.hot.cap_bytes')" true
# two, or three: the second change may have been measured already, after the request
expect "another drive model is another profile" "$(jq '.profiles | length >= 2' "$cache")" true
down || fail "down"

# ---- a damaged cache ----
head -c 100 "$cache" >"$work/cut"
cp "$work/cut" "$cache"
run_json "$work/out" "${model[@]}" "${request[@]}" -n 2 || fail "damaged: $(cat "$work/out.err")"
expect "damaged cache: measured anew" "$(field "$work/out" '.profile.f_s > 0 and (.profile.cached | not)')" true
expect "damaged cache: one warning" "$(grep -c "$cache.*measuring anew" "$work/out.err")" 1
expect "damaged cache: whole again" "$(jq '.profiles | length' "$cache")" 1

# ---- M_0 has room for everything: the drive has a part only where that saves more than asking for it costs ----
roomy=(-m "$work/wired.gguf" -c 8192 --budget 256 --hot-mb 64)
slow_drive=(--csd-model "score=0.05,dram=0") # its part would save next to nothing on any machine
run_json "$work/roomy" "${roomy[@]}" "${slow_drive[@]}" "${request[@]}" -n 60 --log-level info || fail "roomy: $(cat "$work/roomy.err")"
expect "room for all: nothing is cold" "$(field "$work/roomy" '.tiers.cold.bytes')" 0
expect "room for all: one line says so" "$(grep -c ': beta 1e+06.*room for all' "$work/roomy.err")" 1
expect "room for all: hashes" "$(hashes "$work/roomy")" "$(hashes "$work/fixed")"
run_json "$work/slow" "${roomy[@]}" "${request[@]}" -n 60 --csd-model cpu=0.02,dram=0 || fail "slow host: $(cat "$work/slow.err")"
expect "room for all, a slow host: the drive has a part" "$(field "$work/slow" '.tiers.cold.bytes > 0 and .beta < 1000')" true
expect "room for all, a slow host: hashes" "$(hashes "$work/slow")" "$(hashes "$work/fixed")"
up "${roomy[@]}" "${slow_drive[@]}" || fail "up with room for all"
hillctl status >"$work/out"
expect "room for all: status says so" "$(grep -c '^beta .*: all hot (measured)' "$work/out")" 1
hillctl profile >"$work/out" || fail "hillctl profile"
expect "room for all: profile says so" "$(grep -c '^beta .*all hot: the drive would save too little' "$work/out")" 1
down || fail "down"

# ---- another device that scores, or digests in the drive's DRAM: other rates ----
run_json "$work/out" "${model[@]}" "${request[@]}" -n 2 --csd-dram-mb 64 || fail "digests in DRAM: $(cat "$work/out.err")"
expect "digests in DRAM: measured" "$(field "$work/out" .profile.cached)" false
run_json "$work/out" "${model[@]}" "${request[@]}" -n 2 || fail "again without: $(cat "$work/out.err")"
expect "without them: known" "$(field "$work/out" .profile.cached)" true

# ---- nothing to balance ----
up "${model[@]}" --csd none || fail "up without a drive"
hillctl profile >"$work/out" 2>"$work/err"
expect "without a drive: exit code" $? 100
expect "without a drive: one line" "$(wc -l <"$work/err") $(grep -c 'no CSD is attached' "$work/err")" "1 1"
expect "without a drive: null" "$(hillctl status --json | jq -c '.profile | [.f_c, .f_s, .B_c, .B_s]')" "[null,null,null,null]"
down || fail "down"
expect_nothing_left
finish
