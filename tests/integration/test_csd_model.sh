#!/usr/bin/env bash
# A modelled drive changes times, never results: the same selection and logits without a model, under a slow and a fast one,
# and when it is changed while a request runs; what was obtained under a model says so; bad figures are refused.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
requests_last 5

pass_key_prompt 1200 1200 >"$work/prompt"
"$bin/hill-mkmodel" -o "$work/wired.gguf" || fail "mkmodel"
model=(-m "$work/wired.gguf" -c 8192 --budget 256 --beta 0.25)
request=(-f "$work/prompt" --temp 0 --ignore-eos)
# 20 ms a command: what is to happen while a request runs has seconds to happen
slow="flash=0.5,write=1,link=0.5,score=2,dram=0,latency_us=20000"

# ---- one run each ----
run_json "$work/native" "${model[@]}" "${request[@]}" -n 12 || fail "native: $(cat "$work/native.err")"
expect "without a model" "$(field "$work/native" .csd_model)" null
first=$(hashes "$work/native")
for m in "$slow" "latency_us=42" "flash=100,write=100,link=100,score=100,latency_us=0" "dram=0"; do
    run_json "$work/out" "${model[@]}" "${request[@]}" -n 12 --csd-model "$m" --log-level info || fail "$m: $(cat "$work/out.err")"
    expect "$m: hashes" "$(hashes "$work/out")" "$first"
    expect "$m: JSON says so" "$(field "$work/out" '.csd_model.on and .csd_model.commands > 0 and .csd_model.flash_ms > 0
        and .csd_model.score_ms > 0 and .csd_model.link_ms > 0')" true
    expect "$m: the log says so" "$(grep -c 'device model flash=.*modelled, not the real' "$work/out.err")" 1
    [ "$m" != "$slow" ] || cp "$work/out" "$work/slow"
done
run_json "$work/out" "${model[@]}" "${request[@]}" -n 12 --csd-device 0 --csd-model "$slow" || fail "an OpenCL device: $(cat "$work/out.err")"
expect "an OpenCL device: hashes" "$(hashes "$work/out")" "$first"
expect "an OpenCL device: modelled, too" "$(field "$work/out" '.csd_model.on and .csd_model.commands > 0 and .csd_model.score_ms > 0')" true
expect "the default figures" "$(run_json "$work/out" "${model[@]}" "${request[@]}" -n 1 --csd-model link=5 &&
    field "$work/out" '.csd_model | [.flash, .write, .link, .gpu_link, .score, .dram, .dram_read, .latency_us] == [2.9, 1, 5, 25, 44.5, 4294967296, 13.7, 42]')" true
# every query of the decode waits for its latency: 12 steps less the first, each layer
expect "a slow drive is slow" "$(jq -n --slurpfile s "$work/slow" '$s[0].stages.score_cold_ms >= 11 * 20')" true

expect "the link to the GPU is modelled" "$(field "$work/slow" '.csd_model.gpu_link_modelled and .bytes.link_gpu > 0 and .bytes.link_gpu == .bytes.gpu_upload
    and (.stages.link_gpu_ms * 25e6 / .bytes.link_gpu | . > 0.99 and . < 1.2)')" true
expect "without a model there is none" "$(field "$work/native" '"\(.bytes.link_gpu) \(.stages.link_gpu_ms)"')" "0 0"
# a slow host and a slow link to the GPU: each waits as long as its bytes take
run_json "$work/out" "${model[@]}" "${request[@]}" -n 12 --csd-model "cpu=0.02,gpu_link=0.02" || fail "cpu, gpu_link: $(cat "$work/out.err")"
expect "a slow host and GPU link: hashes" "$(hashes "$work/out")" "$first"
expect "a slow host and GPU link: the JSON says so" "$(field "$work/out" '.csd_model.cpu == 0.02 and .stages.score_hot_ms > 0
    and .stages.link_gpu_ms * 0.02e6 + 0.5 >= .bytes.link_gpu and .stages.gpu_idle_ms >= .stages.score_hot_ms + .stages.link_gpu_ms')" true

# digests in the drive's DRAM, modelled or a file's: less is read from flash, the answer is the same
expect "digests in DRAM are modelled" "$(run_json "$work/dram" "${model[@]}" "${request[@]}" -n 12 --csd-model latency_us=42 &&
    run_json "$work/flash" "${model[@]}" "${request[@]}" -n 12 --csd-model latency_us=42,dram=0 &&
    jq -n --slurpfile d "$work/dram" --slurpfile f "$work/flash" '$d[0].csd_model.dram_ms > 0 and $f[0].csd_model.dram_ms == 0
        and $d[0].csd_model.flash_ms < $f[0].csd_model.flash_ms and $d[0].bytes.flash_read < $f[0].bytes.flash_read')" true
run_json "$work/out" "${model[@]}" "${request[@]}" -n 12 --csd-dram-mb 64 || fail "csd-dram-mb: $(cat "$work/out.err")"
expect "digests of a file in memory: hashes" "$(hashes "$work/out")" "$first"
expect "digests of a file in memory: bytes" "$(jq -n --slurpfile d "$work/out" --slurpfile n "$work/native" '$d[0].bytes.flash_read < $n[0].bytes.flash_read')" true
# keys that the drive casts: the same selection as from digests beside them; more is read for it
cast=("${request[@]}" -n 12 --csd-digests cast)
run_json "$work/cast" "${model[@]}" "${cast[@]}" || fail "cast: $(cat "$work/cast.err")"
expect "keys are cast: hashes" "$(hashes "$work/cast")" "$first"
expect "keys are cast: bytes" "$(jq -n --slurpfile c "$work/cast" --slurpfile n "$work/native" '$c[0].bytes.flash_read > $n[0].bytes.flash_read * 1.5')" true
run_json "$work/cast" "${model[@]}" "${cast[@]}" --csd-device 0 || fail "cast on an OpenCL device: $(cat "$work/cast.err")"
expect "keys are cast on an OpenCL device: hashes" "$(hashes "$work/cast")" "$first"
run_json "$work/four" "${model[@]}" "${request[@]}" -n 12 --score-bits 4 || fail "INT4: $(cat "$work/four.err")"
run_json "$work/cast" "${model[@]}" "${cast[@]}" --score-bits 4 --csd-model latency_us=42 || fail "cast to INT4: $(cat "$work/cast.err")"
expect "keys are cast to INT4: hashes" "$(hashes "$work/cast")" "$(hashes "$work/four")"
expect "what is written is counted" "$(field "$work/native" '.writes | .pages >= .payload and .payload > 0 and .amplification >= 1')" true

# ---- changed while a request runs ----
up "${model[@]}" || fail "up"
expect "what scores by default" "$(scores_on)" host
expect "no model at first" "$(hillctl csd-model)" off
expect "status without a model" "$(hillctl status --json | jq -c .csd_model)" null
hillctl generate "${request[@]}" -n 150 --json >"$work/long" 2>"$work/long.err" || fail "long: $(cat "$work/long.err")"
expect "set between requests" "$(hillctl csd-model "$slow")" "flash=0.5,write=1,link=0.5,gpu_link=25,score=2,dram=0,dram_read=13.7,latency_us=20000"
hillctl generate "${request[@]}" -n 150 --json >"$work/changed" 2>"$work/changed.err" &
client=$!
wait_for 60 decoding 1 2 || fail "the request does not decode"
expect "changed while it decodes" "$(hillctl csd-model flash=0.25)" "flash=0.25,write=1,link=0.5,gpu_link=25,score=2,dram=0,dram_read=13.7,latency_us=20000"
expect "off while it decodes" "$(hillctl csd-model off)" off
wait "$client" || fail "changed: $(cat "$work/changed.err")"
expect "changed in mid-request: hashes" "$(hashes "$work/changed")" "$(hashes "$work/long")"
expect "changed in mid-request: tokens" "$(field "$work/changed" '.tokens | @csv')" "$(field "$work/long" '.tokens | @csv')"
expect "changed in mid-request: the JSON says so" "$(field "$work/changed" '.csd_model | "\(.on) \(.changes) \(.commands > 0)"')" "false 2 true"

# ---- what is shown, and what is refused ----
figures="flash=0.25,write=1,link=3.2,gpu_link=25,score=44.5,dram=4G,dram_read=13.7,latency_us=42"
expect "on again" "$(hillctl csd-model flash=0.25)" "$figures"
for bad in flash=0 flash=fast speed=3 "" on flash=1,flash=2 latency_us=-1; do
    hillctl csd-model "$bad" >"$work/out" 2>"$work/err"
    expect "csd-model '$bad': exit code" $? 100
    expect "csd-model '$bad': one line" "$(grep -c '^hillctl: csd model: ' "$work/err") $(wc -l <"$work/err")" "1 1"
done
expect "nothing of it was taken" "$(hillctl csd-model)" "$figures"
hillctl top -n 1 | grep -q 'modelled   flash=0.25,' || fail "top does not say that the drive is modelled"
hillctl status | grep -q 'csd model  flash=0.25,' || fail "status does not say that the drive is modelled"
expect "status JSON" "$(hillctl status --json | jq '.csd_model | .on and .flash == 0.25 and .commands > 0')" true

# ---- a drive keeps its model, and has none of another's ----
model_of() { hillctl detach >/dev/null && hillctl attach "$@" >/dev/null && hillctl csd-model; }
expect "the same drive again" "$(model_of)" "$figures"
hillctl detach >/dev/null
echo "no pool" >"$work/foreign"
hillctl attach "file:$work/foreign" >/dev/null 2>&1 && fail "attached a file that is no pool"
expect "the same drive, after one that cannot be used" "$(hillctl attach >/dev/null && hillctl csd-model)" "$figures"
expect "another drive in its place" "$(model_of "file:$work/other.pool")" off
expect "that drive, with a model" "$(model_of "file:$work/other.pool" flash=0.5,dram=0)" "flash=0.5,write=1,link=3.2,gpu_link=25,score=44.5,dram=0,dram_read=13.7,latency_us=42"
hillctl detach >/dev/null
expect_one_line "a bad model of a drive" 100 hillctl attach "file:$work/other.pool" flash=fast
expect "nothing is attached" "$(hillctl status --json | jq .csd_attached)" false
expect "the first one, which was started without a model" "$(hillctl attach >/dev/null && hillctl csd-model)" off
down || fail "down"
rm "$work/other.pool"

# ---- refused at the start ----
run_json "$work/out" "${model[@]}" "${request[@]}" -n 1 --csd-digests cast --policy host-digest
expect "cast without a drive that scores: exit code" $? 100
expect "cast without a drive that scores: the line names both" "$(grep -c -- "--csd-digests cast and --policy host-digest" "$work/out.err")" 1
for bad in flash=0 flash=fast speed=3 flash latency_us=1e9; do
    run_json "$work/out" "${model[@]}" "${request[@]}" -n 1 --csd-model "$bad"
    expect "--csd-model $bad: exit code" $? 100
    expect "--csd-model $bad: the line names it" "$(grep -c -- "--csd-model: " "$work/out.err")" 1
done
expect_nothing_left
finish
