#!/usr/bin/env bash
# The pages and the completion that are made of --help: every option of a command is described and offered; the pages have no
# fault that groff knows; --version names the commit. The programs are those that are built already (HILL_BIN_DIR).
set -u
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
expect() { # DESCRIPTION GOT WANTED
    if [ "$2" = "$3" ]; then
        echo "ok: $1"
    else
        echo "FAILED: $1: got '$2', wanted '$3'"
        failed=1
    fi
}
bin=${HILL_BIN_DIR:-build/bin}
scripts/manual "$work" || exit 1
expect "--version names the commit" "$("$bin/hillctl" --version)" \
    "hillctl $(sed -n 's/^VERSION := //p' Makefile)$(git rev-parse --short=12 HEAD >/dev/null 2>&1 && git describe --always --abbrev=12 --exclude '*' | sed 's/.*/ (&)/')"

# ---- pages ----
for program in hillctl "hillctl generate" hill-gateway hill-coordinator hill-csd-agent hill-mkmodel; do
    page=$work/man1/${program// /-}.1
    # shellcheck disable=SC2086  # a program and its command
    for option in $("$bin"/$program --help | sed -nE 's/^  (-[a-z]+, )?--([a-z-]+).*/\2/p'); do
        grep -q -- "\\\\-\\\\-${option//-/\\\\-}" "$page" || expect "$program: --$option has a place in its page" no yes
    done
    # shellcheck disable=SC2086
    expect "$program --help: headings of exit codes" "$("$bin"/$program --help | grep -c '^exit codes')" 1
done
expect "pages name no program by a folder of the source" "$(grep -l 'build/bin\|scripts/' "$work"/man1/*.1)" ""
installs() { # PREFIX: the folders of the pages, of zsh's completion and of what the pages name
    make -sn install PREFIX="$1" DESTDIR=/image | sed -nE 's#^install -m644 .*(man1/\*.1|_hillinfer|http.md .*) (/[^ ]*)$#\2#p' | tr '\n' ' '
}
expect "where Debian looks, of a package" "$(installs /usr)" \
    "/image/usr/share/doc/hillinfer /image/usr/share/man/man1 /image/usr/share/zsh/vendor-completions "
expect "where Debian looks, of what is installed by hand" "$(installs /usr/local)" \
    "/image/usr/local/share/doc/hillinfer /image/usr/local/share/man/man1 /image/usr/local/share/zsh/site-functions "
if command -v groff >/dev/null; then
    expect "faults that groff finds" "$(groff -man -Tutf8 -ww -z "$work"/man1/*.1 2>&1 | grep -v "can't break line\|cannot adjust line")" ""
else
    echo "skipped: groff is not there to read the pages"
fi

# ---- completion ----
complete() { # WORDS...: what bash offers for the last one
    bash -c '. "$1/bash/hillinfer"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _hillinfer; echo "${COMPREPLY[*]}"' - "$work" "$@"
}
expect "commands" "$(complete hillinfer ge)" "generate get-models"
expect "an option" "$(complete hillinfer generate --temp)" "--temp"
expect "a pipeline's and a request's option of run" "$(complete hillinfer run --hot-m) $(complete hillinfer run --see)" "--hot-mb --seed"
expect "an option of HTTP" "$(complete hillinfer serve --api-key-f)" "--api-key-file"
expect "options that only hillinfer has" "$(complete hillinfer up --det) $(complete hillinfer up --ht) $(complete hillinfer run --session-r) $(complete hillinfer perf --sec)" \
    "--detach --http --session-restore --seconds"
expect "a choice" "$(complete hillinfer up --policy hil)" "hillinfer"
expect "no word follows an option whose value may be left out" "$(grep -h -- '--http\[\|-l http ' "$work/zsh/_hillinfer" "$work/fish/hillinfer.fish" | grep -c -- ':--http:\| -x')" 0
words_of() { # COMMAND: all that its completion offers
    complete hillinfer "$1" -- | tr ' ' '\n' | sort
}
for command in $(complete hillinfer ""); do # what its help describes, on lines of an option's own
    missing=$(comm -23 <(scripts/hillinfer "$command" --help | sed -nE 's/^  (-[a-z]+, )?(--[a-z-]+).*/\2/p' | sort -u) <(words_of "$command"))
    expect "$command: options of its help that completion lacks" "$missing" ""
done
expect "the second command of a line of the help" "$(complete hillinfer det)" "detach"
expect "what only hillinfer takes" "$(complete hillinfer down --run) $(complete hillinfer perf --st) $(complete hillinfer record --session-s)" \
    "--run-dir --state-dir --session-save"
expect "a chat starts a pipeline" "$(complete hillinfer chat --hot)" "--hot-mb"
expect "what is another command's, or no person's" "$(complete hillinfer logs --det)$(complete hillinfer attach --hot)$(complete hillinfer profile --beta)$(
    complete hillinfer run --after)$(complete hillinfer chat --check)" ""
expect "a file is left to readline, whatever its name" "$(cd "$work" && complete hillinfer up -m mod) $(
    bash -c '. "$1/bash/hillinfer"; complete -p hillinfer' - "$work")" " complete -o default -F _hillinfer hillinfer"
for shell in zsh fish; do
    file=$(echo "$work/$shell"/*)
    expect "$shell: a line for --budget" "$(grep -q -- "budget" "$file" && echo yes)" yes
    if command -v "$shell" >/dev/null; then
        expect "$shell reads it" "$("$shell" -n "$file" 2>&1)" ""
    else
        echo "skipped: $shell is not there to read its completion"
    fi
done
if command -v fish >/dev/null; then
    # shellcheck disable=SC2016  # the $ of fish
    offered() { HOME=$work fish --no-config -c 'source $argv[1]; complete -C $argv[2]' "$work/fish/hillinfer.fish" "$1" | cut -f1 | tr '\n' ' '; }
    expect "fish offers" "$(offered 'hillinfer ge')$(offered 'hillinfer up --det')$(offered 'hillinfer up --policy hil')" \
        "generate get-models --detach hillinfer "
fi
if command -v zsh >/dev/null; then
    # shellcheck disable=SC2016  # the $ of zsh
    offered() { zsh -fc 'compadd() { print -rl -- "$@" }; _arguments() { print -rl -- "$@" }; _files() {}; file=$1; shift
        words=("$@"); CURRENT=$#; source "$file"' - "$work/zsh/_hillinfer" "$@"; }
    expect "zsh offers" "$(offered hillinfer x | grep -cx 'generate\|get-models') $(offered hillinfer up x | grep -c '^--\(detach\|hot-mb\)\[') $(
        offered hillinfer up x | grep -c '^--policy\[.*:(.*hillinfer.*)')" "2 2 1"
fi
exit "$failed"
