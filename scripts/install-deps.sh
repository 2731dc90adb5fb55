#!/bin/sh
# install-deps.sh - install the Debian packages the project needs, only those that are missing.
#
# usage: scripts/install-deps.sh [--check | --also PACKAGE]
#   --check  list what is missing, install nothing
#   --also   one more, which only some target wants
# Exit codes: 0 everything there; 100 wrong use; 111 something is missing and could not be installed.
set -eu

packages="gcc make pkg-config git jq procps libzmq3-dev liburing-dev ocl-icd-opencl-dev opencl-headers
pocl-opencl-icd libprotobuf-c-dev protobuf-c-compiler libnuma-dev libinih-dev libjansson-dev
libxxhash-dev xxhash libpcre2-dev libedit-dev libmicrohttpd-dev libcmocka-dev systemtap-sdt-dev
curl"
case $#${1:-} in
0 | 1--check) ;;
2--also) packages="$packages $2" ;;
*) echo "install-deps.sh: wrong use: [--check | --also PACKAGE]" >&2; exit 100 ;;
esac

missing=""
for package in $packages; do
    # whatever is wanted of a package (hold, say): is one there, of some architecture, and whole?
    dpkg-query -W -f '${db:Status-Eflag} ${db:Status-Status}\n' "$package" 2>/dev/null |
        grep -qx 'ok installed' ||
        missing="$missing $package"
done
[ -n "$missing" ] || exit 0
if [ "${1:-}" = --check ]; then
    echo "missing:$missing"
    exit 111
fi
sudo=""
[ "$(id -u)" -eq 0 ] || sudo="sudo DEBIAN_FRONTEND=noninteractive" # which empties the environment
if [ -n "$sudo" ] && ! command -v sudo >/dev/null; then
    echo "install-deps.sh: these packages are missing and installing them needs root:$missing" >&2
    exit 111
fi
echo "installing:$missing" >&2
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086  # a list of words on purpose
{ $sudo apt-get update -q && $sudo apt-get install -q -y --no-install-recommends $missing; } >&2 || {
    echo "install-deps.sh: installing failed:$missing" >&2
    exit 111
}
