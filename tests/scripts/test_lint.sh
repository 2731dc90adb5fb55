#!/usr/bin/env bash
# Each lint of scripts/lint passes a small tree that is in order, and fails on each fault put into
# it, naming the place.
# shellcheck disable=SC2016  # the backquotes are Markdown's
set -eu
cd "$(dirname "$0")/../.."
lint=$PWD/scripts/lint
for tool in git nm "${CC:-gcc}"; do
    command -v "$tool" >/dev/null || { echo "$tool is not installed"; exit 77; }
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "test_lint: $1" >&2; exit 1; }

# A tree of two libraries and a process, all lints quiet.
new_tree() {
    rm -rf "$folder/tree"
    mkdir -p "$folder/tree/scripts/lint" "$folder/tree/docs"
    cd "$folder/tree"
    git init -q .
    mkdir low high tool
    printf 'low:\nhigh: low\ntool: low high\n' >scripts/lint/layers
    : >scripts/lint/known_circles
    printf 'int low(void);\n' >low/low.h
    printf '#include "low/low.h"\nint low(void)\n{\n    return 1; /* [I2] */\n}\n' >low/low.c
    printf '#include "low/low.h"\nint high(void);\nint high(void)\n{\n    return low();\n}\n' >high/high.c
    printf '/* as docs/decode-step.md says [I1], [I2] */\nint main(void)\n{\n    return 0;\n}\n' >tool/main.c
    printf 'Low.\n\n**May use**: nothing.\n' >low/README.md
    printf 'High, over low/low.h.\n\n**May use**: `low`. **Tests**: `none`.\n' >high/README.md
    printf 'A tool.\n\n**May use**: `low`,\n`high`.\n' >tool/README.md
    printf -- '- **I1** one\n- **I2** two\n' >docs/decode-step.md
    git add -A
}

build() { # every source of the tree into objects/
    for source in */*.c; do
        mkdir -p "objects/${source%/*}"
        "${CC:-gcc}" -I. -c -o "objects/${source%.c}.o" "$source"
    done
}

quiet() { # lint arguments...
    "$lint/$1" "${@:2}" >"$folder/said" 2>&1 || fail "$1 complains of a tree in order: $(cat "$folder/said")"
    [ ! -s "$folder/said" ] || fail "$1 says something of a tree in order: $(cat "$folder/said")"
}

complains() { # words lint arguments...: exit 1, and the words stand in what it says
    git add -A
    code=0
    "$lint/$2" "${@:3}" >"$folder/said" 2>&1 || code=$?
    [ $code = 1 ] || fail "$2 exits $code where it should say '$1': $(cat "$folder/said")"
    grep -qF -- "$1" "$folder/said" || fail "$2 does not say '$1' but: $(cat "$folder/said")"
}

new_tree
build
quiet includes
quiet circles objects
quiet columns
quiet names
quiet citations

# includes: up, sideways, nowhere; a table that has a circle; a folder without a row; READMEs.
new_tree; printf '#include "high/high.h"\n' >>low/low.c
complains "low/low.c:6: low may not include high/high.h" includes
new_tree; mkdir second; printf 'second: low\n' >>scripts/lint/layers
printf '**May use**: `low`.\n' >second/README.md; printf ' #  include "tool/main.h"\n' >second/a.h
complains "second/a.h:1: second may not include tool/main.h" includes
new_tree; printf '#include "low.h"\n' >>low/low.c
complains 'low/low.c:6: include "low.h" names no folder' includes
new_tree; sed -i 's/^low:/low: high/' scripts/lint/layers
complains "low may use high, which does not stand above it" includes
new_tree; mkdir new; printf 'int a;\n' >new/a.c
complains "new/a.c: folder new has no row" includes
new_tree; sed -i 's/`high`/`placement`/' tool/README.md
complains "tool/README.md: says that tool may use placement" includes
complains "tool/README.md: does not say that tool may use high" includes
new_tree; printf 'Low.\n' >low/README.md
complains 'low/README.md: no line "**May use**' includes

# circles: of two, of three; a known one passes; a known one that is gone does not.
new_tree
printf 'int b(void);\nint a(void);\nint a(void)\n{\n    return b();\n}\n' >low/a.c
printf 'int a(void);\nint b(void);\nint b(void)\n{\n    return a();\n}\n' >low/b.c
build
complains "a circle in low: a b" circles objects
grep -qF "a -> b (b)" "$folder/said" || fail "the circle is not printed: $(cat "$folder/said")"
grep -qF "b -> a (a)" "$folder/said" || fail "the circle is not printed: $(cat "$folder/said")"
printf 'low: a b\n' >scripts/lint/known_circles
quiet circles objects
printf 'int c(void);\nint b(void);\nint b(void)\n{\n    return c();\n}\n' >low/b.c
printf 'int a(void);\nint c(void);\nint c(void)\n{\n    return a();\n}\n' >low/c.c
build
complains "a circle in low: a b c" circles objects
complains "stale, there is no such circle any more: low: a b" circles objects
# Across folders there is no circle to see: that is what includes is for.
new_tree; build; printf 'high: high other\n' >scripts/lint/known_circles
complains "stale" circles objects
# Not built is wrong use, not a pass.
new_tree; code=0; "$lint/circles" objects >"$folder/said" 2>&1 || code=$?
[ $code = 2 ] || fail "circles without objects exits $code"

# columns: characters are counted, not bytes.
new_tree; printf '%0100d\n' 0 >low/README.md; git add -A; quiet columns
new_tree; for _ in $(seq 100); do printf '─'; done >low/README.md; git add -A; quiet columns
new_tree; printf '\n%0101d\n' 0 >low/README.md
complains "low/README.md: over 100 columns: line 2" columns
new_tree; printf "| %099d |\n" 0 >docs/page.md; git add -A; quiet columns
new_tree; printf "| %099d |\n" 0 >docs/README.md
complains "docs/README.md: over 100 columns: line 1" columns
new_tree; printf "%0101d\n" 0 >docs/page.md
complains "docs/page.md: over 100 columns: line 1" columns
new_tree; printf '// %0100d\n' 0 >low/kernel.cl; git add -A
complains "low/kernel.cl: over 100 columns: line 1" columns
new_tree; printf '/*%099d */\nint x = %0100d;\n' 0 0 >>low/low.c; git add -A
complains "low/low.c:6: a comment over 100 columns" columns
new_tree; mkdir -p scripts/lint; printf '#!/bin/sh\n# %0100d\n' 0 >scripts/lint/x; git add -A
complains "scripts/lint/x: over 100 columns: line 2" columns

# names: in two folders; README.md, main.c and tests have the same ones.
new_tree; cp low/low.h high/low.h
complains "low/low.h: has the name of high/low.h" names
new_tree; mkdir -p tests/low tests/high; touch tests/low/rig.c tests/high/rig.c tests/low.c high/main.c
git add -A; quiet names

# citations: an invariant, a path, a page, a section; the book itself.
new_tree; printf '/* [I3] */\n' >>low/low.c
complains "low/low.c:6: [I3] is no invariant of docs/decode-step.md" citations
new_tree; printf '%s\n' '- **I2** again' >>docs/decode-step.md
complains "I2 is defined twice" citations
new_tree; printf '%s\n' '- **I4** a gap' >>docs/decode-step.md
complains "I4 where I3 is next" citations
new_tree; printf '/* low/gone.h */\n' >>low/low.c
complains "low/low.c:6: low/gone.h is not in the tree" citations
new_tree; printf '#!/bin/sh\n# as low/gone.h\n' >tool/script
complains "tool/script:2: low/gone.h is not in the tree" citations
new_tree; printf 'see docs/gone.md.\n' >>low/README.md
complains "docs/gone.md is not in the tree" citations
new_tree; printf '/* contract.md */\n' >>low/low.c
complains "contract.md is not in the tree" citations
new_tree; printf '/* (architecture 3.1, the cut) */\n' >>low/low.c
complains 'cites "architecture 3.1" of no document' citations
new_tree; printf '| where | function | what |\n|---|---|---|\n| `low/low.c` | `low` | |\n' >>docs/decode-step.md
git add -A; quiet citations
printf '| | `gone` | |\n' >>docs/decode-step.md
complains "docs/decode-step.md:6: gone is no function of low/low.c" citations
new_tree; printf '/* ../shared/data/x.md, build/bin/x.sh, $models/a.md, low/low.h */\n' >>low/low.c
git add -A; quiet citations

echo "test_lint: passed"
