#!/usr/bin/env bash
# wheel_root.sh FOLDER [PROCESSOR]: unpacks Debian's Python for another processor into a new folder, for WHEEL_ROOT of `make wheel`.
#
# PROCESSOR is Debian's name of it, arm64 unless it is given. The packages come from this machine's sources of packages (apt),
# which check their signatures. They are not installed: apt works in a folder of its own, and this machine's settings and lists
# of packages stay as they are. Root is not needed.
set -euo pipefail
[ "${1:-}" != --help ] || exec "$(dirname "$0")/usage.sh" "$0"

fail() { # cause, hint
    echo "error: $1" >&2
    echo "hint: $2" >&2
    exit 1
}

[ -n "${1:-}" ] || fail "no folder is named" "scripts/wheel_root.sh FOLDER"
for program in apt-get dpkg-deb; do
    command -v "$program" >/dev/null || fail "there is no $program" "Do this on Debian or Ubuntu"
done
processor=${2:-arm64}
[ ! -e "$1" ] || fail "$1 is there already" "Name a new folder, or remove this one"
mkdir -p "$1"
root=$(cd "$1" && pwd)
own=$(mktemp -d)
unfinished=$root
trap 'rm -rf "$own" $unfinished' EXIT

# apt with an empty list of installed packages, and for that processor alone.
mkdir -p "$own/lists/partial" "$own/archives/partial"
touch "$own/status"
own_apt() {
    apt-get -q=2 -o APT::Architecture="$processor" -o APT::Architectures="$processor" -o APT::Sandbox::User="$(id -un)" \
        -o Debug::NoLocking=1 -o Dir::State="$own" -o Dir::State::lists="$own/lists" -o Dir::State::status="$own/status" \
        -o Dir::Cache="$own" -o Dir::Cache::archives="$own/archives" -o Acquire::Retries=2 "$@"
}
own_apt update
# NumPy's wheels need the library of C++.
own_apt install --download-only --yes --no-install-recommends python3 libstdc++6
for package in "$own"/archives/*.deb; do dpkg-deb --extract "$package" "$root"; done
# Programs name the loader in /lib. It is a link to usr/lib, which no package brings where all files are in usr/lib.
[ -e "$root/lib" ] || ln -s usr/lib "$root/lib"
unfinished=
echo "$(echo "$root"/usr/bin/python3.[0-9]*) is for $processor; the folder has $(du -sm "$root" | cut -f 1) MB"
