#!/usr/bin/env bash
# Builds the guest kernel, User Mode Linux with virtual time, from Debian's source of Linux and the patches that lie in
# patches/ under the kernel's licence. It is kept in the user's cache under a digest of this recipe. A build that was
# interrupted goes on where it was. `--where` prints the kernel's path.
# KERNEL_SOURCE=linux-source-6.12.tar.xz takes a source that is there, for machines without Debian's apt.
# FAILURE=FILE takes the lines cause=... and hint=... that the terminal gets otherwise if this script gives up.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
package=linux-source-6.12
digest=$(cat "$here/kernel.config" "$here/build.sh" "$here"/patches/*.patch | sha256sum | cut -c1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/thalweg/guest/$digest
[ "${1:-}" != --where ] || { echo "$cache/linux"; exit 0; }

fail() { # cause, hint
    if [ -n "${FAILURE:-}" ]; then
        printf 'cause=%s\nhint=%s\n' "$1" "$2" >"$FAILURE"
    else
        printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
    fi
    exit 1
}
[ ! -x "$cache/linux" ] || { echo "the guest kernel is there: $cache/linux"; exit 0; }
[ "$(uname -m)" = x86_64 ] || fail "the guest kernel is for x86_64, this is $(uname -m)" "build it on an x86_64 machine"
missing=()
for program in bc bison flex gcc make patch xz; do
    command -v "$program" >/dev/null || missing+=("$program")
done
[ ${#missing[@]} -eq 0 ] || fail "programs are missing: ${missing[*]}" "apt-get install ${missing[*]/%xz/xz-utils}"
source=$(realpath -m "${KERNEL_SOURCE:-$cache/build/linux.tar.xz}")
[ -z "${KERNEL_SOURCE:-}" ] || [ -e "$source" ] || fail "there is no $source" "name the file $package.tar.xz"

mkdir -p "$cache/build"
cd "$cache/build"
exec 9>lock
flock 9 # two builds at once would be in each other's way
[ ! -x "$cache/linux" ] || exit 0

if [ ! -e "$source" ]; then
    apt-get download -qq "$package" ||
        fail "apt has no $package" "run apt-get update on Debian 12 or 13, or give KERNEL_SOURCE=$package.tar.xz"
    dpkg-deb --fsys-tarfile "$package"_*.deb | tar -xO "./usr/src/$package.tar.xz" >linux.part
    mv linux.part "$source"
    rm -f "$package"_*.deb
fi
if [ ! -e unpacked ]; then
    # Of other architectures, and of drivers that nothing here compiles, only what configuration needs.
    xz -dc "$source" | tar -x --wildcards \
        --exclude='*/drivers/gpu/drm/*.[ch]' --exclude='*/drivers/media/*.[ch]' --exclude='*/drivers/staging/*.[ch]' \
        --exclude='*/drivers/net/ethernet/*.[ch]' --exclude='*/drivers/net/wireless/*.[ch]' \
        --exclude='*/drivers/scsi/*.[ch]' --exclude='*/sound/*.[ch]' --exclude='*/arch/[a-tv-wy-z]*/*.[chS]' \
        --exclude='*/arch/*/boot/dts/*' --exclude='*/Documentation/[a-z]*' --exclude='*/tools/testing/*' \
        --exclude='*/tools/perf/*'
    for patch in "$here"/patches/*.patch; do
        patch -s -p1 -d "$package" <"$patch" || fail "$(basename "$patch") does not fit this source" "take Debian's $package"
    done
    touch unpacked
fi
cd "$package"
make -s ARCH=um allnoconfig KCONFIG_ALLCONFIG="$here/kernel.config" >configure.log 2>&1 || { tail configure.log; exit 1; }
for option in HOSTFS INFINIBAND_USER_ACCESS NET_NS RDMA_RXE TUN UML_TIME_TRAVEL_SUPPORT; do
    grep -q "^CONFIG_$option=y" .config || fail "the configuration lost CONFIG_$option" "look at $PWD/.config"
done
make -s ARCH=um -j"$(nproc)" linux >make.log 2>&1 || { tail make.log; exit 1; }
strip -o "$cache/linux.part" linux
mv "$cache/linux.part" "$cache/linux"
cd "$cache"
rm -rf build
echo "built the guest kernel in $SECONDS s: $cache/linux"
