#!/usr/bin/env bash
# Bad input: one clear line, the right exit code, nothing left behind.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

"$bin/hill-mkmodel" -o "$work/good.gguf" || fail "mkmodel"
export HILL_LOG_LEVEL=error

# refused NAME CODE WORD ARGUMENTS...: the exit code, and one error line that holds WORD
refused() {
    local name=$1 code=$2 word=$3 got lines
    shift 3
    "$hillinfer" run --run-dir "$run_dir" --state-dir "${state:-$state_dir}" -n 4 --temp 0 "$@" >"$work/out" 2>"$work/err"
    got=$?
    lines=$(wc -l <"$work/err")
    if [ "$got" -eq "$code" ] && [ "$lines" -eq 1 ] && grep -qi -- "$word" "$work/err"; then
        pass "$name: $(cat "$work/err")"
    else
        fail "$name: exit $got (wanted $code), $lines lines: $(head -n 5 "$work/err")"
    fi
    [ ! -s "$work/out" ] || fail "$name: wrote to stdout"
    expect_nothing_left >"$work/left" || true
    ! grep FAILED "$work/left" || failures=$((failures + 1))
}

size=$(stat -c %s "$work/good.gguf")
truncated() { # BYTES WORD
    head -c "$1" "$work/good.gguf" >"$work/cut.gguf"
    refused "truncated at $1" 1 "cut.gguf: .*$2" -m "$work/cut.gguf" -p x
}
truncated 3 "only 3 bytes long"
truncated 20 "only 20 bytes long"
truncated 200 "metadata keys in 176 bytes"
truncated 5000 "the file ends in tensor"
for bytes in $((size / 2)) $((size - 1)); do truncated $bytes "ends outside the file of $bytes bytes"; done
: >"$work/empty.gguf"
refused "empty model" 1 "empty.gguf: it is only 0 bytes long" -m "$work/empty.gguf" -p x
{ printf 'FUGG'; tail -c +5 "$work/good.gguf"; } >"$work/magic.gguf"
refused "wrong magic" 1 "magic.gguf: it does not start with GGUF" -m "$work/magic.gguf" -p x
{ head -c 4 "$work/good.gguf"; printf '\144'; tail -c +6 "$work/good.gguf"; } >"$work/version.gguf"
refused "another version" 1 "version.gguf: it is GGUF version 100" -m "$work/version.gguf" -p x
{ head -c 8 "$work/good.gguf"; printf '\377\377\377\377\377\377\377\177'; tail -c +17 "$work/good.gguf"; } >"$work/count.gguf"
refused "absurd tensor count" 1 "count.gguf: it claims [0-9]* tensors" -m "$work/count.gguf" -p x
sed 's/blk\.1\.attn_k\.weight/blk.1.attn_q.wrong_/' "$work/good.gguf" >"$work/missing.gguf"
refused "missing tensor" 1 "missing.gguf: tensor blk.1.attn_k.weight is missing" -m "$work/missing.gguf" -p x
sed 's/general\.architecture\(.\{12\}\)llama/general.architecture\1mamba/' "$work/good.gguf" >"$work/arch.gguf"
refused "unsupported architecture" 1 "arch.gguf: its architecture is 'mamba'" -m "$work/arch.gguf" -p x
refused "no such model" 100 "nothere.gguf: No such file" -m "$work/nothere.gguf" -p x
refused "model is a folder" 1 "$work: it is no regular file" -m "$work" -p x
mkfifo "$work/fifo.gguf"
refused "model is a fifo" 1 "fifo.gguf: it is no regular file" -m "$work/fifo.gguf" -p x

"$bin/hill-mkmodel" -o "$work/tempered.gguf" --metadata llama.attention.temperature_scale=0.1 \
    --metadata llama.rope.scaling.original_context_length=512 || fail "mkmodel"
refused "a context in which queries would have to be scaled" 100 "1024 tokens, above 512: .*attention.temperature_scale" -m "$work/tempered.gguf" -c 1024 -p x
HILL_LOG_LEVEL=warn run_json "$work/tempered" -m "$work/tempered.gguf" -p x -n 2
expect "the context that is left" "$? $(grep -c 'a context of 512 tokens, not 131072: .*attention.temperature_scale' "$work/tempered.err")" "0 1"

head -c 3000 LICENSE >"$work/long"
refused "prompt longer than the context" 1 "exceed the context of 1024" -m "$work/good.gguf" -c 1024 -f "$work/long"
refused "prompt file not there" 100 "nofile" -m "$work/good.gguf" -f "$work/nofile"
for alpha in 0 1.5 -0.1 nan 0.2x ""; do
    refused "alpha '$alpha'" 100 "alpha" -m "$work/good.gguf" -p x --alpha "$alpha"
done
refused "M_0 too small" 100 "--hot-mb is too small" -m "$work/good.gguf" -c 4096 -p x --hot-mb 64K
refused "GPU cap too small" 100 "--gpu-kv-mb: .* do not hold" -m "$work/good.gguf" -c 4096 -p x --gpu-kv-mb 64K
refused "cold pool larger than the disk" 111 "no room" -m "$work/good.gguf" -c 4096 -p x --cold-mb 500T
refused "unknown option" 100 "bogus" -m "$work/good.gguf" -p x --bogus 1
refused "an option of llama.cpp" 100 "-ngl: .*leave it out" -m "$work/good.gguf" -p x -ngl 99
refused "an option of llama.cpp with =" 100 "--temperature: say --temp" -m "$work/good.gguf" -p x --temperature=0
refused "a drive without file:" 100 "file:/dev/null" -m "$work/good.gguf" -p x --csd /dev/null
refused "a SmartSSD without its card" 111 "csd_agent: cannot open drive 'xrt:$work/none': no OpenCL device is called 'Xilinx'" \
    -m "$work/good.gguf" -c 1024 -p x --csd "xrt:$work/none,xclbin=$work/none.xclbin" --cold-mb 64
[ ! -e "$work/none" ] || fail "a SmartSSD without its card: a pool was made"
refused "more DRAM than there is" 100 "this machine has [0-9]* MiB" -m "$work/good.gguf" -p x --hot-mb 900T
# config NAME TEXT WORDS: a file that is refused by its line, and by the key if it has one
config() {
    printf '%b' "$2" >"$work/config.ini"
    refused "a --config $1" 100 "config.ini line $3" -m "$work/good.gguf" -p x --config "$work/config.ini"
}
config "with a request's option" 'temp = warm\n' "1: temp: 'warm'"
config "that is cut short" '# a comment\nalpha' "2: not 'name = value'"
config "with a value out of range" 'alpha = 7\n' "1: alpha: 7 is out of range"
config "of another version" 'no-such-key = 1\n' "1: no-such-key: unknown key"
config "that is no text" '\001\377\000\003= x\n' "1: "
refused "a --config that is not there" 100 "none.ini: No such file" -m "$work/good.gguf" -p x --config "$work/none.ini"
refused "a --config that is a folder" 100 "$work: Is a directory" -m "$work/good.gguf" -p x --config "$work"
printf 'hang-ms = 5000\nstall-ms = 40000\nport = 8091\napi-key-file = keys\nno-slots = yes\n' >"$work/http.ini"
refused "options of HTTP in --config are the gateway's alone: the model" 100 "nothere" -m "$work/nothere.gguf" -p x --config "$work/http.ini"
expect_one_line "so it is for hillctl: no pipeline" 111 "$bin/hillctl" status --config "$work/http.ini" --run-dir "$run_dir"
for command in "generate -p x" "restore $work/none.session" chat; do
    # shellcheck disable=SC2086  # words
    "$bin/hillctl" $command --check --config "$work/http.ini" >"$work/out" 2>&1
    expect "hillctl $command: keys that it does not know" "$(grep -c 'unknown key' "$work/out")" 0
done
refused "leftover argument" 100 "extra" -m "$work/good.gguf" -p x extra
refused "unknown policy" 100 "nonsense" -m "$work/good.gguf" -p x --policy nonsense
refused "no prompt" 100 "no prompt: -p TEXT" -m "$work/good.gguf"
refused "no model" 100 "no model: -m FILE" -p x
refused "impossible pair" 100 "--alpha and --budget exclude" -m "$work/good.gguf" -p x --alpha 0.1 --budget 100
refused "unknown device" 111 "no OpenCL device is called 'no-such-device'" -m "$work/good.gguf" -c 1024 -p x --device no-such-device

"$hillinfer" up --detach --run-dir "$run_dir" --state-dir "$state_dir" -m "$work/good.gguf" --budget 3 2>"$work/err"
expect "up --detach refuses: exit" $? 100
expect "up --detach refuses: one line that says why" "$(grep -c 'budget 3' "$work/err") of $(wc -l <"$work/err")" "1 of 1"

# a file system of 12 MiB in a namespace of our own, where the kernel lets us
small=$work/small
mkdir "$small"
cat >"$work/in_small" <<TXT
mount -t tmpfs -o size=12m none "$small"
"$hillinfer" run --run-dir "$run_dir" --state-dir "$small/state" -m "$work/good.gguf" -c 4096 -p x -n 2 --cold-mb 20 2>"$work/err"
code=\$?
find "$small" -name cold.pool -size +0 >"$work/left_in_small"
exit \$code
TXT
if unshare -rm mount -t tmpfs none "$small" 2>/dev/null; then
    unshare -rm sh "$work/in_small"
    expect "full disk under the cold pool: exit" $? 111
    expect "full disk: one line that says so" "$(grep -c 'no room' "$work/err") of $(wc -l <"$work/err")" "1 of 1"
    expect "full disk: nothing left on it" "$(cat "$work/left_in_small")" ""
else
    echo "without the small file system: no user namespaces here"
fi

printf 'this is not a cold pool' >"$work/foreign" && chmod 644 "$work/foreign"
refused "foreign file as cold pool" 1 "foreign" -m "$work/good.gguf" -c 1024 -p x --csd "file:$work/foreign"
expect "the foreign file is untouched" "$(cat "$work/foreign") $(stat -c %a "$work/foreign")" "this is not a cold pool 644"
: >"$work/open.pool" && chmod 644 "$work/open.pool"
run_json "$work/open" -m "$work/good.gguf" -c 1024 -p x -n 2 --cold-mb 16 --csd "file:$work/open.pool"
expect "a file that becomes a pool is closed to others" "$? $(stat -c %a "$work/open.pool")" "0 600"
# a pool of another shape holds nothing that outlives its pipeline: it is formatted anew, which a line says
run_json "$work/shape" -m "$work/good.gguf" -c 1024 -p x -n 2 --cold-mb 16 --csd "file:$work/shape.pool"
HILL_LOG_LEVEL=warn run_json "$work/shape" -m "$work/good.gguf" -c 1024 -p x -n 2 --cold-mb 32 --csd "file:$work/shape.pool"
expect "a pool of another shape: exit, a line" "$? $(grep -c "cold pool 'file:$work/shape.pool' has another shape; formatting it anew" "$work/shape.err")" "0 1"

# a block device smaller than what the context needs: its size is the default cap, not what is free in /dev
loop="" nobody=(setpriv --reuid 65534 --clear-groups)
trap '[ -z "$loop" ] || losetup -d "$loop"; cleanup' EXIT
if [ "$(id -u)" -eq 0 ] && truncate -s 16M "$work/disk" && loop=$(losetup -f --show "$work/disk" 2>/dev/null) && [ -b "$loop" ]; then
    HILL_LOG_LEVEL=info run_json "$work/device" -m "$work/good.gguf" -c 65536 -p x -n 2 --csd "file:$loop"
    expect "a small block device: exit" $? 0
    expect "a block device does not lie in memory, as its node does" "$(grep -c 'csd_agent.*is ready.*O_DIRECT' "$work/device.err") $(grep -c 'lies in memory' "$work/device.err")" "1 0"
    expect "a small block device: its cap" "$(jq '.tiers.cold.cap_bytes' "$work/device")" 16777216
    chmod 755 "$work" && mkdir "$work/nobody" && chown 65534 "$work/nobody"
    if "${nobody[@]}" test -x "$bin/hill-coordinator"; then
        "${nobody[@]}" "$bin/hill-coordinator" -m "$work/good.gguf" --run-dir "$work/nobody/run" --state-dir "$work/nobody/state" --csd "file:$loop" 2>"$work/err"
        expect "somebody else's block device: exit" $? 111
        expect "somebody else's block device: one line" "$(grep -c "cannot ask block device $loop for its size: Permission denied" "$work/err") of $(wc -l <"$work/err")" "1 of 1"
    fi
else
    echo "without a block device: no right to make one"
fi
printf 'not a folder' >"$work/plain"
state=$work/plain/state refused "state folder below a file" 111 "state" -m "$work/good.gguf" -p x
if [ "$(id -u)" -ne 0 ]; then
    mkdir "$work/locked" && chmod 0 "$work/locked"
    state=$work/locked refused "unreadable state folder" 111 "locked" -m "$work/good.gguf" -p x
    chmod 700 "$work/locked"
elif command -v setpriv >/dev/null; then
    # as root nothing is unreadable: run as nobody
    chmod 755 "$work" && mkdir -p "$work/locked" "$work/nobody" && chmod 700 "$work/locked" && chown 65534 "$work/nobody"
    if setpriv --reuid 65534 --clear-groups test -x "$bin/hill-coordinator"; then
        setpriv --reuid 65534 --clear-groups "$bin/hill-coordinator" -m "$work/good.gguf" --run-dir "$work/nobody/run" --state-dir "$work/locked" 2>"$work/err"
        expect "unreadable state folder: exit" $? 111
        expect "unreadable state folder: lines" "$(wc -l <"$work/err")" 1
        cp "$work/good.gguf" "$work/locked/good.gguf" && cp LICENSE "$work/locked/prompt"
        setpriv --reuid 65534 --clear-groups "$bin/hill-coordinator" -m "$work/locked/good.gguf" --run-dir "$work/nobody/run" --state-dir "$work/nobody/state" 2>"$work/err"
        expect "a model in a folder that may not be entered: exit, lines" "$? $(wc -l <"$work/err")" "111 1"
        setpriv --reuid 65534 --clear-groups "$bin/hillctl" generate -f "$work/locked/prompt" -n 1 --check 2>"$work/err"
        expect "a prompt that may not be read: exit, lines" "$? $(wc -l <"$work/err")" "111 1"
        : >"$work/its.pool" && chmod 600 "$work/its.pool"
        # kernels are built into a cache of its own, not into root's
        POCL_CACHE_DIR=$work/nobody/cache timeout 60 setpriv --reuid 65534 --clear-groups "$bin/hill-coordinator" -m "$work/good.gguf" -c 1024 --run-dir "$work/nobody/run" --state-dir "$work/nobody/state" \
            --csd "file:$work/its.pool" 2>"$work/err"
        expect "somebody else's cold pool: exit" $? 111
        expect "somebody else's cold pool: one line that names it" "$(grep -c "its.pool.*ermission denied" "$work/err") of $(wc -l <"$work/err")" "1 of 1"
    else
        echo "without the unreadable state folder: the build is not readable to other users"
    fi
fi

# standard descriptors that are closed: no file or fifo of ours gets their numbers
for closed in '>&- 2>&-' '<&- 2>&-' '<&- >&- 2>&-'; do
    eval "timeout 60 '$hillinfer' run --run-dir '$run_dir' --state-dir '$state_dir' -m '$work/good.gguf' -c 1024 -p x -n 1 $closed"
    expect "run $closed: exit" $? 0
done
timeout 60 "$hillinfer" up --run-dir "$run_dir" --state-dir "$state_dir" -m "$work/good.gguf" -c 1024 >&- 2>&- &
up=$!
if wait_for 30 "$bin/hillctl" generate -p x -n 1 --run-dir "$run_dir" >"$work/out" 2>&1; then
    down || fail "down"
    wait "$up"
    expect "up >&- 2>&-: exit" $? 0
else
    fail "up >&- 2>&-: $(cat "$work/out")"
fi
expect_nothing_left

if up -m "$work/good.gguf" -c 1024; then
    "$hillinfer" run --run-dir "$run_dir" --state-dir "$work/state2" -m "$work/good.gguf" -c 1024 -p x -n 1 >"$work/out" 2>"$work/err"
    expect "second pipeline in one run folder: exit" $? 100
    expect "second pipeline: lines" "$(wc -l <"$work/err")" 1
    expect "the first goes on" "$("$bin/hillctl" status --json --run-dir "$run_dir" | jq .ready)" true
    down || fail down
else
    fail "up"
fi
expect_nothing_left
finish
