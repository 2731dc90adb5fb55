#!/usr/bin/env bash
# deb_root.sh - the Debian package in a bare root: built of this tree's commit, checked by lintian, installed by apt in a
# debootstrap root, where its unit is verified and it answers a chat. Minutes, and no part of make check.
#
# usage: tests/long/deb_root.sh      environment: HILL_MIRROR (of Debian; else apt's own), HILL_SUITE=bookworm
# Exit codes: 0; 1 it failed; 77 SKIP, saying why: not root, a tool or the mirror is not there, no root can be made here.
set -u
cd "$(dirname "$0")/../.." || exit 1
skip() {
    echo "SKIP: $*"
    exit 77
}
fail() {
    echo "FAILED: $*"
    tail -n 15 "$work/log"
    exit 1
}
[ "$(id -u)" = 0 ] || skip "only root can make a root"
for tool in debootstrap dpkg-buildpackage unshare git; do
    command -v "$tool" >/dev/null || skip "$tool is not there"
done
suite=${HILL_SUITE:-bookworm}
# shellcheck disable=SC2016  # the $ of apt-get
mirror=${HILL_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' "Codename: $suite" "Created-By: Packages" 2>/dev/null | head -n 1)}
mirror=${mirror:-http://deb.debian.org/debian}
work=$(mktemp -d)
root=$work/root
clean() {
    rm -rf --one-file-system "$work" # mounts are gone with their namespace
}
trap clean EXIT

debootstrap --variant=minbase --components=main "$suite" "$root" "$mirror" >"$work/log" 2>&1 ||
    skip "debootstrap cannot make a root of $suite from $mirror here: $(tail -n 1 "$work/log")"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
cp -r /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/" # a proxy, perhaps
echo "ok: a root of $suite"

git clone -q . "$work/source" || fail "git clone"
(cd "$work/source" && dpkg-buildpackage -us -uc -b) >"$work/log" 2>&1 || fail "dpkg-buildpackage"
if command -v lintian >/dev/null; then
    lintian --fail-on error,warning "$work"/*.changes >"$work/log" 2>&1 || fail "lintian"
    echo "ok: lintian"
else
    echo "skipped: lintian is not there"
fi
cp "$work"/hillinfer_*.deb "$root/tmp/"
echo "ok: the package is built"

inside() { # COMMAND: by sh, in the root, with what a running system mounts
    # shellcheck disable=SC2016  # $1 and $2 are the inner shell's
    unshare --mount --pid --fork sh -c 'mount -t proc proc "$1/proc" && mkdir -p "$1/dev/shm" && mount -t tmpfs tmpfs "$1/dev/shm" && mount --rbind /sys "$1/sys" &&
        exec chroot "$1" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 sh -c "$2"' \
        - "$root" "$1" >"$work/log" 2>&1
}
inside true || skip "no program can be run in the root here: $(tail -n 1 "$work/log")"
inside 'apt-get update && apt-get install -y --no-install-recommends systemd && apt-get install -y /tmp/hillinfer_*.deb' ||
    fail "apt install"
echo "ok: apt installs it"
inside 'XDG_RUNTIME_DIR=/tmp systemd-analyze --user --man=no verify /usr/lib/systemd/user/hillinfer.service' || fail "systemd-analyze verify"
[ ! -s "$work/log" ] || fail "systemd-analyze verify has something to say"
echo "ok: its unit"
cat >"$root/tmp/template" <<'END'
{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
END
cat >"$root/tmp/first" <<'END'
cd
hill-mkmodel -o wired.gguf --chat-template "$(cat /tmp/template)"
hillinfer doctor || echo "doctor: $?"
hillctl --version
hillinfer run -m wired.gguf -p "one fish two fish one fish" -n 8 --temp 0 --json
printf 'Say it.\nSay it again.\n' | hillinfer chat -m wired.gguf -c 2048 -n 8 --temp 0 --ignore-eos
echo "chat: $?"
END
inside 'useradd -m somebody && su somebody -c "sh -e /tmp/first"' || fail "a run and a chat"
grep -q '"finish_reason": *"length"' "$work/log" || fail "an answer"
grep -qx 'chat: 0' "$work/log" || fail "a chat"
echo "ok: somebody's first answer, and a chat"
inside 'apt-get purge -y hillinfer && ! ls /usr/bin/hill* /usr/share/hillinfer 2>/dev/null' || fail "purge leaves something"
echo "ok: nothing is left of it"
