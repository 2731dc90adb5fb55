#!/usr/bin/env bash
# test_chat.sh - hillctl chat on a terminal of its own and with lines from a script, on a small real model: turns that
# know of each other, Ctrl-C within an answer, /clear, Ctrl-D; what a person types is never a control token.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"

name=SmolLM2-135M-Instruct.Q4_1.gguf
model=${HILL_CHAT_MODEL:-$(model_file "$name")} # another file of it
[ -n "$model" ] || skip "$name is not there (scripts/hillinfer get-models smollm2)"

# ---- without a pipeline, without a template ----
expect_one_line "chat without a pipeline and a model" 100 "$hillinfer" chat --run-dir "$run_dir" --state-dir "$state_dir"
expect_one_line "chat with an unknown option" 100 "$hillinfer" chat --run-dir "$run_dir" --nonsense
expect_one_line "a chat has no JSON" 100 "$bin/hillctl" chat --run-dir "$run_dir" --json
expect_one_line "--system without --chat" 100 "$bin/hillctl" generate --run-dir "$run_dir" -p x --system y
expect_one_line "--special with --chat" 100 "$bin/hillctl" generate --run-dir "$run_dir" -p x --chat --special
"$bin/hill-mkmodel" -o "$work/wired.gguf" >/dev/null || fail "hill-mkmodel"
up -m "$work/wired.gguf" -c 512 || fail "up"
expect_one_line "a model without a template" 1 "$bin/hillctl" chat --run-dir "$run_dir"
expect "it says so" "$(grep -c 'has no chat template' "$work/err")" 1
# ---- a template of a file, in place of the model's; without either nothing is started ----
template='{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<answer>'
echo "$template" >"$work/template"
if /usr/bin/python3 -c 'import jinja2' 2>/dev/null; then
    echo 'Say hello.' | hillctl chat --chat-template-file "$work/template" -n 4 --temp 0 --ignore-eos >"$work/said" || fail "chat --chat-template-file"
    echo "$template{% if enable_thinking == false %}<thought>{% endif %}" >"$work/thinks"
    hillctl generate --chat --no-think --chat-template-file "$work/thinks" -p 'Say hello.' -n 4 --temp 0 --ignore-eos >"$work/thought" || fail "--no-think"
    expect "--no-think is the template's switch" "$(cat "$work/thought")" "$(hillctl generate -p '<user>Say hello.<answer><thought>' -n 4 --temp 0 --ignore-eos)"
    expect_one_line "--no-think without a switch" 1 "$bin/hillctl" generate --chat -p x --no-think --chat-template-file "$work/template" --run-dir "$run_dir"
    expect "a file's template is the prompt, spelt out" "$(cat "$work/said")" "$(hillctl generate -p '<user>Say hello.<answer>' -n 4 --temp 0 --ignore-eos)"
fi
# ---- llama.cpp's name of a format in place of a template ----
echo chatml >"$work/name"
hillctl generate --chat --chat-template-file "$work/name" -p 'Say hello.' -n 4 --temp 0 --ignore-eos >"$work/said" || fail "a format by its name"
expect "a format by its name is the prompt, spelt out" "$(cat "$work/said")" \
    "$(hillctl generate -p $'<|im_start|>user\nSay hello.<|im_end|>\n<|im_start|>assistant\n' -n 4 --temp 0 --ignore-eos)"
echo vicuna >"$work/name"
expect_one_line "a name that is not known" 1 "$bin/hillctl" generate --chat --chat-template-file "$work/name" -p x --run-dir "$run_dir"
expect "it says which" "$(grep -c "is 'vicuna': no template" "$work/err")" 1
: >"$work/empty"
for file in empty nowhere; do
    expect_one_line "--chat-template-file $file" 100 "$bin/hillctl" generate --chat -p x --chat-template-file "$work/$file" --check
done
# shellcheck disable=SC2086  # a command and its options
for command in "generate -f" "chat -f" "generate --chat -p x --chat-template-file"; do
    expect "$command of a pipe: what --check leaves in it" "$(printf all | { "$bin/hillctl" $command /dev/stdin --check && cat; })" all
    mkfifo "$work/fifo"
    timeout 20 "$bin/hillctl" $command "$work/fifo" --check
    expect "$command of a fifo that nobody writes: exit code of --check" $? 0
    rm "$work/fifo"
done
expect_one_line "--chat-template-file without --chat" 100 "$bin/hillctl" generate -p x --chat-template-file "$work/template" --check
down
for command in chat "run --chat -p x"; do
    # shellcheck disable=SC2086  # a command and its options
    expect_one_line "$command with a model without a template" 1 "$hillinfer" $command -m "$work/wired.gguf" --run-dir "$run_dir" --state-dir "$work/unused"
    expect "no pipeline was started" "$(grep -c 'has no chat template' "$work/err") $([ -e "$work/unused" ] && echo there)" "1 "
done
"$bin/hill-mkmodel" -o "$work/named.gguf" --chat-template vicuna >/dev/null 2>&1 || fail "hill-mkmodel"
expect_one_line "a model with a name that is not known" 1 "$hillinfer" chat -m "$work/named.gguf" --run-dir "$run_dir" --state-dir "$work/unused"
expect "no pipeline was started for it" "$(grep -c "is 'vicuna': no template" "$work/err") $([ -e "$work/unused" ] && echo there)" "1 "

# ---- lines of a script ----
HILL_LOG_LEVEL=info up -m "$model" -c 1024 --policy full || fail "up with a real model"
printf 'What is the capital of France?\nAnd what is that of \\\nGermany?\n/clear\nSay hello.\n' |
    hillctl chat --system 'You answer.' -n 48 --temp 0 >"$work/said" 2>"$work/said.err"
expect "a script's chat: exit code" $? 0
expect "a script's chat: nothing on stderr" "$(cat "$work/said.err")" ""
ask() { # SYSTEM-AND-TURNS...: the template's rendering, spelt out; the answer
    local text="<|im_start|>system\n$1<|im_end|>\n" role=user
    shift
    for turn in "$@"; do
        text+="<|im_start|>$role\n$turn<|im_end|>\n"
        if [ "$role" = user ]; then role=assistant; else role=user; fi
    done
    printf '%b<|im_start|>assistant\n' "$text" >"$work/spelt"
    hillctl generate --special -f "$work/spelt" -n 48 --temp 0
}
first=$(ask 'You answer.' 'What is the capital of France?')
second=$(ask 'You answer.' 'What is the capital of France?' "${first//\\/\\\\}" 'And what is that of \nGermany?')
third=$(ask 'You answer.' 'Say hello.')
expect "three turns are the template, spelt out" "$(cat "$work/said")" "$first
$second
$third"
# ---- ten turns: each computes what is new in it, also when everything has ended in between, or one of its processes has died ----
down
requests_last 5
chat_up() {
    HILL_LOG_LEVEL=info up -m "$model" -c 1024 --policy full --prefix-dir "$work/store" --prefix-mb 200 || fail "up with a store"
}
chat_up
mkfifo "$work/turns"
HILL_NO_PREFIX_CACHE=false hillctl chat -n 8 --temp 0 --ignore-eos <"$work/turns" >"$work/said" 2>"$work/said.err" &
talker=$!
exec {turns}>"$work/turns"
trap '' PIPE # a chat that has ended is a failed turn
# of each turn: tokens that were taken, of the prompt; then those that stay (the last word of two is what is there)
told() {
    cat "$work/log" "$state_dir"/*.log 2>/dev/null | sed -n -e 's/.*: \([0-9]*\) of its [0-9]* prompt tokens are there.*/taken \1/p' \
        -e 's/.*the entries of \([0-9]*\) of its tokens stay.*/stays \1/p'
}
turns_over() { [ "$(told | grep -c stays)" -ge "$1" ] && [ "$(wc -l <"$work/said")" -ge "$1" ]; } # and the chat has it
all_ready() { [ "$(status 2>/dev/null | jq '[.workers[] | select(.state == "ready")] | length')" = 3 ]; }
: >"$work/log"
for i in 1 2 3 4 5 6 7 8 9 10; do
    echo "Name the colour number $i." >&"$turns"
    wait_for 60 turns_over "$i" || { fail "turn $i: $(tail -n 3 "$work/said.err")" && break; }
    case $i in
    3) down && cat "$state_dir"/*.log >>"$work/log" && rm -f "$state_dir"/*.log && chat_up ;;
    2 | 5 | 8)
        case $i in 2) worker=cpu_scorer ;; 5) worker=gpu_worker ;; *) worker=csd_agent ;; esac
        kill_worker $worker && wait_for 60 status_is ".workers.$worker.restarts > 0 and .ready"
        ;;
    7) kill -KILL "$(coordinator_pid)" && wait_for 60 ready ;;
    esac || fail "after turn $i"
done
echo /exit >&"$turns" # the pipeline has this end of the pipe, too
exec {turns}>&-
wait $talker
expect "ten turns: exit code" $? 0
told >"$work/told"
expect "each takes all that was read and said before it" \
    "$(awk '$1 == "taken" { taken = $2 } $1 == "stays" { if (n++ && taken == stays) same++; stays = $2; taken = 0 } END { print n, same }' "$work/told")" "10 9"
printf '/nonsense\n' | hillctl chat >"$work/said" 2>"$work/said.err"
expect "an unknown command: exit code" $? 100
expect "an unknown command: lines" "$(wc -l <"$work/said.err") $(wc -c <"$work/said")" "1 0"

# ---- /save ----
printf 'Say \377.\n/save %s\n' "$work/saved" | hillctl chat -n 2 --temp 0 >"$work/said" 2>"$work/said.err"
expect "a turn that is not UTF-8 is not saved: exit code" $? 100
expect "a turn that is not UTF-8 is not saved without a word" "$(grep -c 'not UTF-8' "$work/said.err") $([ -e "$work/saved" ] && echo there)" "1 "
printf '/system %02000d\n/save %s\n' 0 "$work/saved" | (ulimit -f 1 && trap '' XFSZ && hillctl chat >"$work/said" 2>"$work/said.err")
expect "a chat for which there is no room: exit code" $? 111
expect "nothing of it is left, and the name is free" "$(grep -c 'writing the chat to .*saved failed' "$work/said.err") $([ -e "$work/saved" ] && echo there)" "1 "

# ---- documents: before what is said next, as if it were typed; lines of a file from elsewhere ----
printf '\357\273\277The lamp is green.\nThe door is red.' >"$work/document"
printf '"""The lamp is green.\nThe door is red.\nWhich colour has the lamp?"""\nAnd the door?\n/save %s\n' "$work/typed" |
    hillctl chat -n 12 --temp 0 >"$work/wanted" || fail "a document that is typed"
printf '/read %s\r\nWhich colour has the lamp?\r\nAnd the door?\r\n/exit\r\n' "$work/document" | hillctl chat -n 12 --temp 0 >"$work/said" ||
    fail "/read, from lines that end in CRLF"
expect "/read: the answers" "$(cat "$work/said")" "$(cat "$work/wanted")"
printf 'Which colour has the lamp?\nAnd the door?\n/save %s\n' "$work/asked" | hillctl chat -f "$work/document" -n 12 --temp 0 >"$work/said" || fail "chat -f"
expect "chat -f: the chat" "$(cat "$work/asked")" "$(cat "$work/typed")"
expect_one_line "chat -f of no file" 100 "$hillinfer" chat --run-dir "$run_dir" -f "$work/nowhere"
expect_one_line "chat -f of stdin" 100 "$bin/hillctl" chat --run-dir "$run_dir" -f -
printf '/read %s\n/clear\nSay hello.\n/save %s\n' "$work/document" "$work/cleared" | hillctl chat -n 2 --temp 0 >"$work/said" || fail "/clear after /read"
expect "/clear forgets it" "$(jq -r '.[0].content' "$work/cleared")" "Say hello."
printf '\357\273\277Say hello.\n' >"$work/document"
expect "--chat -f: neither a byte order mark nor the file's last newline is said" \
    "$(hillctl generate --chat -f "$work/document" -n 1 --temp 0 --json | jq '[.prompt_tokens, .logits_hash]')" \
    "$(hillctl generate --chat -p 'Say hello.' -n 1 --temp 0 --json | jq '[.prompt_tokens, .logits_hash]')"

# ---- one turn; the template's rendering, spelt out, is the same prompt ----
hillctl generate --chat --system 'You answer.' -p 'Say hello.' -n 48 --temp 0 --json >"$work/chat"
hillctl generate --special -f "$work/spelt" -n 48 --temp 0 --json >"$work/special"
expect "a chat is the template, spelt out" "$(jq -c '[.prompt_tokens, .tokens, .logits_hash]' "$work/chat")" \
    "$(jq -c '[.prompt_tokens, .tokens, .logits_hash]' "$work/special")"
hillctl generate --chat -p 'Say hello.' -n 200 --temp 0 --json >"$work/chat"
expect "it stops at the template's end" "$(field "$work/chat" .finish_reason)" stop
rate_is_of_steps='(.predicted_per_second * .predicted_ms / 1000 + (if .finish_reason == "length" then 1 else 0 end) - .predicted_tokens | fabs) < 1e-6'
expect "its speed is of all steps: one made the stop token, none the first" "$(field "$work/chat" "$rate_is_of_steps")" true
expect "that of an answer that was cut, too" "$(hillctl generate --chat -p 'Say hello.' -n 3 --temp 0 --json | jq "$rate_is_of_steps")" true
expect "the end is no text" "$(field "$work/chat" .text | grep -c '<|')" 0

# ---- what is typed is text: as many tokens as in a prompt without control tokens ----
plain=$(hillctl generate --chat -p 'a' -n 1 --json | jq .prompt_tokens)
typed=$(hillctl generate --chat -p 'a<|im_end|>' -n 1 --json | jq .prompt_tokens)
token=$(hillctl generate --special -p '<|im_end|>' -n 1 --json | jq .prompt_tokens)
expect "a typed control token is text" "$((typed - plain > token))" 1

# ---- too long: one line, the chat is as it was ----
{
    echo 'My name is Ann.'
    printf '%4000s\n' '' | tr ' ' 'x '
    echo 'What is my name?'
} >"$work/long"
hillctl chat -n 32 --temp 0 <"$work/long" >"$work/said" 2>"$work/said.err"
expect "too long: exit code" $? 1
expect "too long: lines" "$(wc -l <"$work/said.err")" 1

# ---- a terminal ----
printf 'What is the capital of Italy?\nAnd the one of Spain?\n' | hillctl chat -n 120 --temp 0 >"$work/said"
mkfifo "$work/keys"
screen=$work/screen
: >"$screen"
exec {keys}<>"$work/keys"
open_terminal() {
    TERM=xterm script -qfec "'$bin/hillctl' chat --run-dir '$run_dir' --temp 0 -n 120" "$screen" <"$work/keys" >/dev/null 2>&1 &
    terminal=$!
}
open_terminal
shown() { # HOW-OFTEN PATTERN
    [ "$(tr -d '\r' <"$screen" 2>/dev/null | grep -c -- "$2")" -ge "$1" ]
}
press() {
    printf '%b' "$1" >&"$keys"
}
prompted() { # a line is waited for
    [[ $(tail -n 1 "$screen") == *'> '* ]]
}
entered() { # a line has been taken, and nothing has come since
    [ -z "$(tail -c 1 "$screen")" ]
}
took_int() { # it is not pending
    ! grep -q '^ShdPnd:.*[2367abef]$' "/proc/$talks/status"
}
answers() { # HOW-MANY DESCRIPTION
    if wait_for 90 shown "$1" 'tokens/s; [0-9]* of 1024'; then pass "$2"; else fail "$2: $(tail -n 3 "$screen")"; fi
}
wait_for 20 shown 1 '/help lists' || fail "the chat did not begin: $(cat "$screen")"
press 'What is the capital of Italy?\n'
answers 1 "a first answer, with its speed"
press 'And the one of Spain?\n'
answers 2 "a second answer"
expect "both are what a script is told" "$(tr -d '\r' <"$screen" | grep -cF -f "$work/said" -e NOTHING)" 2
press '/clear\n'
wait_for 30 shown 1 'the chat begins anew' || fail "/clear"
press 'Write a very long story about a lighthouse, a storm and a cat.\n'
wait_for 60 shown 3 "$(printf '\033')\[K[^p]" || fail "the story did not begin"
press '\003'
answers 3 "Ctrl-C ends the answer"
expect "as stopped, not the chat" "$(shown 1 '; stopped\]' && kill -0 "$terminal" && echo yes)" yes
press 'half a line\003'
wait_for 30 shown 1 'Ctrl-D or /exit' || fail "Ctrl-C at the prompt"
press '/clear\n'
wait_for 30 shown 2 'the chat begins anew' || fail "/clear"
press '"""/two\n\tlines"""\n'
answers 4 "a turn of several lines after /clear, with a slash and a tab"
expect "the context began anew" "$(used=$(tr -d '\r' <"$screen" | grep -o 'tokens/s; [0-9]* of' | tail -n 1 | tr -dc 0-9)
    [ "$used" -lt 165 ] && echo yes || echo "$used")" yes
press "/system $(printf '%1100s' '' | sed 's/ /x /g')\n/retry\n"
wait_for 60 shown 1 'the chat is as it was' || fail "/retry that is too long: $(tail -n 3 "$screen")"
press "/save $work/kept\n"
wait_for 30 test -s "$work/kept" || fail "/save"
expect "what /retry did not answer stays" "$(jq -c '[.[1:][] | .role, (.content | length > 0)]' "$work/kept") $(jq -c '.[1].content' "$work/kept")" \
    '["user",true,"assistant",true] "/two\n\tlines"'
press '\004'
wait "$terminal"
expect "Ctrl-D ends it: exit code" $? 0
: >"$screen"
open_terminal
wait_for 20 shown 1 '/help lists' || fail "the second chat did not begin: $(cat "$screen")"
press "/read $work/long\nWhat is my name?\n"
wait_for 30 shown 1 'what was read went with that turn' || fail "a document that is too long: $(tail -n 3 "$screen")"
# Ctrl-C that crosses the refusal of its turn is nobody's answer: the next turn has its own
coordinator=$(coordinator_pid)
kill -STOP "$coordinator"
press "/read $work/long\nWhat is my name?\n"
sleep 2
press '\003'
sleep 0.3
kill -CONT "$coordinator"
wait_for 30 shown 2 'what was read went with that turn' || fail "a refused turn that is stopped: $(tail -n 3 "$screen")"
press 'Say hello.\n'
answers 1 "the turn after it"
# two Ctrl-C leave a request to a coordinator that hangs: what comes for it later is not the next turn's
wait_for 30 prompted || fail "no prompt: $(tail -n 3 "$screen")"
kill -STOP "$coordinator"
press 'Say nothing.\n'
wait_for 30 entered || fail "the turn is not taken: $(tail -n 3 "$screen")"
talks=$(pgrep -f -- "hillctl chat --run-dir $run_dir")
for _ in 1 2; do
    kill -INT "$talks"
    wait_for 10 took_int || fail "the chat does not take SIGINT"
done
wait_for 30 shown 1 'stopped before the answer began' || fail "two Ctrl-C do not leave: $(tail -n 3 "$screen")"
press 'Say hello.\n'
kill -CONT "$coordinator"
answers 2 "the turn after one that was left"
press '/undo\n'
expect "where there is no turn /undo is not named" "$(shown 1 'the chat is as it was\]$' && echo yes)" yes
press "/system Be short.\n/save $work/nowhere/chat\n/save $work/terse\n"
wait_for 30 shown 1 "saved in $work/terse\]" || fail "/save on a terminal: $(tail -n 3 "$screen")"
expect "/system is told, and a /save that fails ends no chat" \
    "$(shown 1 'system text is set' && shown 1 'nowhere/chat: No such file' && jq -r '.[0].content' "$work/terse")" "Be short."
press 'Write a very long story about a lighthouse, a storm and a cat.\n'
wait_for 60 shown 1 "$(printf '\033')\[K[^p]" || fail "its story did not begin"
pkill -TERM -f -- "hillctl chat --run-dir $run_dir" # not the terminal's, which has it in quotes
wait "$terminal"
expect "SIGTERM in an answer ends the chat: exit code" $? 130
"$bin/hillctl" chat --run-dir "$run_dir" -n 8 <"$work/keys" >/dev/null 2>"$work/said.err" &
pid=$!
blocks_term() { # of hillctl: bash blocks SIGTERM too, in the child that becomes hillctl
    [ "$(cat "/proc/$1/comm")" = hillctl ] && grep -q 'SigBlk:.*[4-7c-f]...$' "/proc/$1/status"
}
wait_for 20 blocks_term "$pid" || fail "a chat does not block SIGTERM"
kill -TERM $pid
wait $pid
expect "SIGTERM of a chat whose lines do not come: exit code" $? 130
exec {keys}>&-

# ---- hillinfer chat uses what runs, and refuses another model ----
requests_done=$(status | jq .requests_done)
echo 'Say yes.' | "$hillinfer" chat --run-dir "$run_dir" --state-dir "$state_dir" -m "$model" -n 8 --temp 0 >"$work/said" 2>"$work/said.err"
expect "hillinfer chat on what runs: exit code" $? 0
expect "one request more" "$(status | jq .requests_done)" $((requests_done + 1))
for setting in "-c 8192" --hot-mb=64 --no-such-option leftover; do # are not dropped
    # shellcheck disable=SC2086  # an option and its value
    expect_one_line "hillinfer chat $setting on what runs" 100 "$hillinfer" chat --run-dir "$run_dir" -m "$model" $setting
    expect "it names it" "$(grep -c -e "${setting%%[ =]*}" "$work/err")" 1
done
expect_one_line "hillinfer chat with another model" 100 "$hillinfer" chat --run-dir "$run_dir" -m "$work/wired.gguf"
expect_one_line "hillinfer chat with another model in the environment" 100 env HILL_MODEL="$work/wired.gguf" "$hillinfer" chat --run-dir "$run_dir"
down
printf 'Say yes.\n/save %s\n' "$work/piped" |
    "$hillinfer" chat --run-dir "$run_dir" --state-dir "$state_dir" -m "$model" -c 512 -f <(echo 'The lamp is green.') -n 8 --temp 0 >"$work/said" 2>"$work/said.err"
expect "hillinfer chat with a pipeline of its own: exit code" $? 0
expect "its document from a pipe" "$(jq -r '.[0].content' "$work/piped")" "$(printf 'The lamp is green.\nSay yes.')"
expect "it says something, and nothing else" "$(wc -l <"$work/said") $(wc -l <"$work/said.err")" "1 0"
expect_nothing_left
finish
