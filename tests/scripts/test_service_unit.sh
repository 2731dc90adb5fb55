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
# the script ends the rest in order, no load is too long, what another try cannot mend is not tried, and every command finds its folders
for line in KillMode=mixed TimeoutStartSec=infinity 'RestartPreventExitStatus=1 100' Restart=on-failure; do
    grep -qx "$line" "$work/hillinfer.service" || {
        echo "FAILED: the unit lacks $line"
        exit 1
    }
done
if grep -q 'HILL_RUN_DIR\|HILL_STATE_DIR' "$work/hillinfer.service"; then
    echo "FAILED: the unit has folders of its own"
    exit 1
fi
echo "ok: the unit"
