#!/usr/bin/env bash
# soak.sh - make soak: mixed requests for an hour; memory, descriptors, segments, files and step time must stay flat.
#
# usage: tests/long/soak.sh [-o FILE]         environment: MINUTES (default 60), SEED (default: the clock), QUIET (15)
# Three askers at a time draw, one after the other: a short prompt, a long document of a few that the prefix store keeps
# chunks of, a chat (where the model has a template), a request that is cancelled, one that is saved and then restored; over
# HTTP an answer in one piece, a stream, and one whose client goes; and the second of two drives is detached and comes back.
# Every SAMPLE seconds (default 10) they wait, and when none of their requests is under way there is a line of the table (FILE,
# tab-separated): of each process its PSS, what of that is its own (anonymous memory), and its descriptors; bytes of segments;
# of the state folder, without the token logs of requests, and how many of these there are; of the prefix store's folder; of a
# probe request milliseconds a token, milliseconds of CPU a token (of all but the gateway), and the share of the CPUs that
# others had meanwhile, in percent.
# Flat: the median of the last third is at most that of the middle third, and this much more (the first third warms up):
# own memory 2 % and 2 MiB, descriptors 2, segments and files 0 %, token logs 4, time and CPU time a token 20 %. PSS is not
# judged: segments are allocated whole, and a process's share of them grows until it has touched all of them. The time a token
# is judged from probes beside which others had less than QUIET percent of the CPUs, if there are three in each third: beside
# other work a step waits for its turn. At least 9 samples.
# SmolLM2 where its file is there, else the shipped model. Exit codes: 0 flat and every request right, 1 not, 100 wrong use.
# shellcheck source=../integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"
unset HILL_HANG_MS # as users have it

out=/dev/null
[ "${1:-}" != -o ] || { out=$2 && shift 2; }
[ $# -eq 0 ] || { echo "usage: tests/long/soak.sh [-o FILE]" >&2 && exit 100; }
for number in "${MINUTES:-60}" "${SAMPLE:-10}" "${SEED:-1}"; do
    case $number in '' | *[!0-9]*) echo "soak: '$number' is not a number" >&2 && exit 100 ;; esac
done
seed=${SEED:-$(date +%s)}
chat=--chat
model=$(model_file SmolLM2-135M-Instruct.Q4_1.gguf) || { model=$PWD/models/hill-ref.gguf && chat=""; }
workers=(gpu_worker cpu_scorer csd_agent) second=file:$work/second.pool
table=$work/table
end=$(($(date +%s) + ${MINUTES:-60} * 60))
echo "seed $seed, ${MINUTES:-60} minutes, $(basename "$model")"

over() { [ "$(date +%s)" -ge "$end" ]; }
prompt() { # BYTES FILE: some text from anywhere
    tail -c +$((1 + RANDOM % 20000)) "$text" | head -c "$1" >"$2"
}
ask() { hillctl generate --temp 0.8 -s $((RANDOM + 1)) --ignore-eos "$@" >/dev/null 2>"$mine.err" </dev/null; }
post() { # TOKENS STREAM CURL-OPTIONS...: the prompt's file over HTTP; what comes back on stdout
    local tokens=$1 stream=$2
    shift 2
    jq -n --rawfile prompt "$mine.prompt" --argjson n "$tokens" --argjson stream "$stream" \
        '{prompt: $prompt, max_tokens: $n, ignore_eos: true, stream: $stream}' |
        curl -sS --fail-with-body "$@" -d @- "$url/v1/completions" 2>"$mine.err"
}

# One request of a random kind; its kind when it went wrong.
one_request() {
    local pid
    case $((RANDOM % 10)) in
    0 | 1) prompt $((100 + RANDOM % 400)) "$mine.prompt" && { ask -f "$mine.prompt" -n 24 || echo short; } ;;
    2)
        tail -c +$((1 + RANDOM % 4 * 5000)) "$text" | head -c 3000 >"$mine.prompt"
        ask -f "$mine.prompt" -n 12 || echo long
        ;;
    3) # shellcheck disable=SC2086  # a flag or nothing
        ask $chat -p "What is a licence?" -n 24 || echo chat ;;
    4)
        prompt 2000 "$mine.prompt"
        ask -f "$mine.prompt" -n 400 &
        pid=$!
        sleep 0.$((RANDOM % 10)) # a moment of its own, not a wait for something
        pkill -INT -P $pid
        wait $pid
        case $? in 0 | 130) ;; *) echo cancelled ;; esac
        ;;
    5)
        prompt 600 "$mine.prompt"
        { ask -f "$mine.prompt" -n 8 --save "$mine.session" &&
            hillctl restore "$mine.session" -n 8 >/dev/null 2>"$mine.err" </dev/null; } || echo session
        rm -f "$mine.session"
        ;;
    6)
        prompt 500 "$mine.prompt"
        [ "$(post 16 false | jq .usage.completion_tokens)" = 16 ] || echo "http"
        ;;
    7)
        prompt 300 "$mine.prompt"
        [ "$(post 16 true -N | grep -c '^data: \[DONE\]')" = 1 ] || echo "http stream"
        ;;
    8)
        prompt 500 "$mine.prompt"
        post 400 true -N --max-time 0.$((1 + RANDOM % 9)) >/dev/null
        case $? in 0 | 28) ;; *) echo "http, a client that goes" ;; esac
        ;;
    9) # one at a time: the others draw something else
        exec 7>"$work/drive"
        flock -n 7 || { exec 7>&- && return; }
        prompt 2000 "$mine.prompt"
        { hillctl detach "$second" >"$mine.err" 2>&1 && ask -f "$mine.prompt" -n 24 7>&- &&
            hillctl attach "$second" >"$mine.err" 2>&1; } || echo drive
        exec 7>&-
        ;;
    esac
}

asker() { # NUMBER
    local wrong done=0
    mine=$work/asker$1
    RANDOM=$((seed + $1))
    until over; do
        while [ -e "$work/waits" ]; do sleep 0.05; done
        exec 8>"$work/askers"
        flock -s 8
        wrong=$(one_request 8>&-)
        exec 8>&-
        [ -z "$wrong" ] || echo "FAILED: $wrong: $(tail -n 1 "$mine.err")"
        done=$((done + 1))
    done
    echo "$done requests"
}

pss() { awk '/^Pss:/ {all = $2} /^Pss_Anon:/ {own = $2} END {print all "\t" own}' "/proc/$1/smaps_rollup"; }
descriptors() { find "/proc/$1/fd" -mindepth 1 2>/dev/null | wc -l; }

# Of CPU time so far, in ticks: what the pipeline has had, and all that this machine has done for anybody (steal included).
used_ticks() { awk '{s += $14 + $15} END {print s}' "${stats[@]}"; }
busy_ticks() { awk '$1 == "cpu" {print $2 + $3 + $4 + $7 + $8 + $9}' /proc/stat; }

# A request, beside which no other one of this pipeline runs: ms a token, CPU ms a token, percent that others had.
probe() {
    local used busy from=${EPOCHREALTIME/[.,]/}
    used=$(used_ticks) busy=$(busy_ticks)
    hillctl generate -p "The licence" -n 48 --temp 0 --ignore-eos --json >"$work/probe" 2>"$work/probe.err" </dev/null || return 1
    jq -r --argjson used $(($(used_ticks) - used)) --argjson busy $(($(busy_ticks) - busy)) --argjson tick $((1000 / $(getconf CLK_TCK))) \
        --argjson room $(((${EPOCHREALTIME/[.,]/} - from) * $(nproc) / 1000)) \
        '[.predicted_ms / (.predicted_tokens - 1), $used * $tick / .predicted_tokens, ($busy - $used) * $tick * 100 / $room] | @tsv' "$work/probe"
}

# A line of the table: time, then the columns of its head.
sample() {
    local pid row worker stats=()
    touch "$work/waits"
    exec 8>"$work/askers"
    flock -x 8
    row=$(($(date +%s) - started))
    for worker in coordinator "${workers[@]}"; do
        if [ "$worker" = coordinator ]; then pid=$(coordinator_pid); else pid=$(worker_pid "$worker"); fi
        row="$row	$(pss "$pid")	$(descriptors "$pid")"
        stats+=("/proc/$pid/stat")
    done
    row="$row	$(pss "$gateway")	$(descriptors "$gateway")"
    row="$row	$(find /dev/shm -name "$own_segments*" -printf '%s\n' | awk '{s += $1} END {print s + 0}')"
    row="$row	$(du -sk --exclude=hillinfer.log --exclude=requests "$state_dir" | cut -f1)	$(find "$state_dir/requests" -type f | wc -l)"
    row="$row	$(du -sk "$work/store" | cut -f1)"
    if probe >"$work/probed"; then echo "$row	$(cat "$work/probed")" >>"$table"; else fail "the probe: $(cat "$work/probe.err")"; fi
    exec 8>&-
    rm "$work/waits"
}

# judge COLUMN PERCENT MORE [QUIET]: the rule above, of all samples or of quiet ones
judge() {
    awk -F'\t' -v name="$1" -v percent="$2" -v more="$3" -v quiet="${4:-}" '
        function median(v, n,   i, j, t) {
            for (i = 2; i <= n; i++) for (j = i; j > 1 && v[j] < v[j - 1]; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
            return v[int((n + 1) / 2)]
        }
        NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) column = i; next }
        { value[++n] = $column + 0; counts[n] = quiet == "" || $NF < quiet }
        END {
            third = int(n / 3)
            for (i = third + 1; i <= n; i++)
                if (counts[i] && i <= 2 * third) middles[++n_middle] = value[i]
                else if (counts[i]) lasts[++n_last] = value[i]
            if (quiet != "" && (n_middle < 3 || n_last < 3)) {
                printf "%-24s not judged: %d and %d quiet samples in the middle and last third\n", name, n_middle, n_last
                exit
            }
            middle = median(middles, n_middle); last = median(lasts, n_last)
            flat = last <= middle * (1 + percent / 100) + more
            printf "%-24s middle %12.1f  last %12.1f  %s\n", name, middle, last, flat ? "flat" : "GROWN"
            exit !flat
        }' "$table" || fail "$1 has grown"
}

up -m "$model" -c 2048 --budget 128 --beta 0.25 -np 4 --prefix-dir "$work/store" --prefix-mb 24 \
    --csd "file:$work/first.pool" --csd "$second" || exit 1
"$bin/hill-gateway" --port 0 --run-dir "$run_dir" --ready-fd 3 3>"$work/address" 2>"$work/gateway.err" &
gateway=$!
wait_for 30 test -s "$work/address" || fail "the gateway: $(cat "$work/gateway.err")"
url=$(head -n 1 "$work/address")
own_segments=hill-$(printf %s "$(realpath -m "$run_dir")" | xxhsum -H64 | cut -d' ' -f1)-
started=$(date +%s)
printf 'seconds' >"$table"
for worker in coordinator "${workers[@]}" gateway; do printf '\t%s_pss_kib\t%s_own_kib\t%s_fds' "$worker" "$worker" "$worker" >>"$table"; done
printf '\tsegments_bytes\tstate_kib\ttoken_logs\tstore_kib\tms_a_token\tcpu_ms_a_token\tothers_percent\n' >>"$table"
askers=()
for i in 1 2 3; do
    asker $i >"$work/asker$i.log" 2>&1 &
    askers+=($!)
done
until over; do
    sample
    sleep "${SAMPLE:-10}"
done
wait "${askers[@]}"
cat "$work"/asker?.log
failures=$((failures + $(cat "$work"/asker?.log | grep -c '^FAILED')))
cp "$table" "$out"
samples=$(($(wc -l <"$table") - 1))
echo "$samples samples"
[ "$samples" -ge 9 ] || fail "$samples samples are too few to judge"
judge gateway_own_kib 2 2048
judge gateway_fds 0 2
judge store_kib 0 0
for worker in coordinator "${workers[@]}"; do
    judge "${worker}_own_kib" 2 2048
    judge "${worker}_fds" 0 2
    expect "restarts of $worker" "$(status | jq ".workers.$worker.restarts // 0")" 0
done
judge segments_bytes 0 0
judge state_kib 0 0
judge token_logs 0 4
judge cpu_ms_a_token 20 0
judge ms_a_token 20 0 "${QUIET:-15}"
kill "$gateway"
wait "$gateway"
down || fail "down"
expect_nothing_left
finish
