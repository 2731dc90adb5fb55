#!/bin/sh
# test_program.sh - hill-eval as a person runs it, before any pipeline: help, misuse, damaged files.
set -u
cd "$(dirname "$0")/../.." || exit 1
program=$PWD/build/bin/hill-eval
# shellcheck source=../program.sh
. tests/program.sh

task='{"task":"key","prompt":"a","answers":["b"]}'
echo "$task" >"$work/good.jsonl"
printf '%s\n{"task":"key"}\n' "$task" >"$work/bad.jsonl"
build/bin/hill-mkmodel -o "$work/m.gguf" 2>/dev/null || exit 1
cd "$work" || exit 1

expect 0 'hill-eval tasks.jsonl' --help
expect 0 '^hill-eval [0-9]' --version
expect 100 'no task file' && one_line
expect 100 'one of -m MODEL and --run-dir' good.jsonl && one_line
expect 100 'one of -m MODEL and --run-dir' good.jsonl -m m.gguf --run-dir x && one_line
expect 100 'pipeline goes with -m' good.jsonl --run-dir x --pipeline '-t 1' && one_line
expect 100 'no policy nonsense' good.jsonl -m m.gguf --policy nonsense && one_line
expect 100 'alpha: 2 ' good.jsonl -m m.gguf --alpha 2 && one_line
expect 100 'budget: 8 is less' good.jsonl -m m.gguf --budget 8 && one_line
expect 100 'of its own\|hill-eval.s own' good.jsonl --run-dir x --score-bits 8,4 && one_line
expect 100 'np: 0 is out of range' good.jsonl -m m.gguf -np 0 && one_line
expect 1 'bad.jsonl:2 is no task' bad.jsonl -m m.gguf && one_line
expect 100 'none.jsonl failed: No such file' none.jsonl -m m.gguf && one_line
expect 100 'none.txt failed: No such file' none.txt -m m.gguf && one_line
expect 100 'none.gguf: No such file' good.jsonl -m none.gguf && one_line
expect 1 'bad.jsonl' good.jsonl -m bad.jsonl && one_line
expect 111 'no pipeline runs in' good.jsonl --run-dir "$work/none" && one_line
expect 111 'nowhere/r.jsonl' good.jsonl -m m.gguf -o /nowhere/r.jsonl && one_line
echo 'x' >r.jsonl
expect 1 'r.jsonl:1 is no result' good.jsonl -m m.gguf -o r.jsonl && one_line
[ "$(cat r.jsonl)" = x ] || { echo "a damaged results file was changed"; failed=1; }
[ ! -e hill-eval.jsonl ] || { echo "a results file was left by a run that asked nothing"; failed=1; }
exit "$failed"
