#!/usr/bin/env bash
# The systemd user unit, as `make install` writes it: systemd-analyze has nothing to say about it, and it would about a wrong one.
set -u
cd "$(dirname "$0")/../.." || exit 1
command -v systemd-analyze >/dev/null || {
    echo "skipped: systemd-analyze is not there"
    exit 77
}
work=$(mktemp -d /tmp/hill-test-XXXXXX)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/wrong"
cp scripts/hillinfer "$work/bin"
verify() { # FILE
    XDG_RUNTIME_DIR=$work systemd-analyze --user --man=no verify "$1" 2>&1
}
sed "s#@PREFIX@#$work#" packaging/hillinfer.service >"$work/hillinfer.service"
sed 's#/bin/hillinfer#/bin/nothing#; s/^WatchdogSec=.*/WatchdogSec=soon/' "$work/hillinfer.service" >"$work/wrong/hillinfer.service"
said=$(verify "$work/hillinfer.service")
case $said in
*"Failed to "*) echo "skipped: systemd-analyze does not work here: ${said%%$'\n'*}"; exit 77 ;;
"") ;;
*) echo "FAILED: systemd-analyze says: $said"; exit 1 ;;
esac
[ -n "$(verify "$work/wrong/hillinfer.service")" ] || {
    echo "FAILED: a wrong unit passes"
    exit 1
}
echo "ok: the unit"
