#!/usr/bin/env bash
# Builds the wheel and the source distribution in dist/, audits and tests them. The wheel is for any Linux with glibc 2.28 or
# later and Python 3.10 or later. zig compiles C and C++, and links with that glibc, for this or another processor.
#
# WHEEL_TARGET is Rust's name of the target, as aarch64-unknown-linux-gnu; without it the wheel is for this machine. Rust's
# standard library for that target has to be there (rustup target add). A wheel for another processor is audited. It is run under
# qemu-user (scripts/test_emulated.py) if WHEEL_ROOT is a folder with a Linux of that processor and its Python, such as
# scripts/wheel_root.sh makes.
# WHEEL_PROFILE is cargo's profile: release unless it is set. WHEEL_EXTRAS are the extras that are tried, each in an
# environment of its own; all of them bring several gigabytes.
set -euo pipefail
[ "${1:-}" != --help ] || exec "$(dirname "$0")/usage.sh" "$0"
cd "$(dirname "$0")/.."
unset PYTHONHOME PYTHONPATH CONDA_PREFIX
export VIRTUAL_ENV="$PWD/.venv"
export PATH="$VIRTUAL_ENV/bin:$PATH:$HOME/.cargo/bin"
export UV_NO_CONFIG=1 UV_NO_PROGRESS=1 UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-1}"
tools=$PWD/.venv/.wheel
target=${WHEEL_TARGET:-$(rustc -vV | sed -n 's/^host: //p')}
machine=${target%%-*}
platform=manylinux_2_28_$machine

cmp -s requirements/wheel.lock "$tools/wheel.lock" || {
    rm -rf "$tools"
    python -m uv pip install --quiet --require-hashes --target "$tools" -r requirements/wheel.lock
    cp requirements/wheel.lock "$tools"
}
# Tools of that folder run with it, and nothing else does.
tool() { PYTHONPATH="$tools" PATH="$tools/bin:$PATH" python -m "$@"; }

THALWEG_COMMIT=$(git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null || true)
export THALWEG_COMMIT
[ -n "$THALWEG_COMMIT" ] || unset THALWEG_COMMIT
rm -f dist/thalweg-*.tar.gz dist/thalweg-*_"$machine".whl
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
# The core's unwinder must be libgcc_s.so.1, which each Linux with glibc has: Python ends threads by unwinding them with it. zig links
# one of its own, with which such a thread crashes. So the linker finds this stand-in first: the library's name, symbols and versions.
unwind() { local name; for name in "$@"; do printf 'void _Unwind_%s(void) {}\n' "$name"; done; }
names() { printf ' _Unwind_%s;' "$@"; }
v3_0=(Resume RaiseException DeleteException ForcedUnwind GetGR SetGR GetIP SetIP GetLanguageSpecificData GetRegionStart
    GetDataRelBase GetTextRelBase)
v3_3=(Resume_or_Rethrow Backtrace GetCFA FindEnclosingFunction)
v4_2=(GetIPInfo)
mkdir "$built/stub"
unwind "${v3_0[@]}" "${v3_3[@]}" "${v4_2[@]}" >"$built/stub/stub.c"
echo "GCC_3.0 {$(names "${v3_0[@]}") }; GCC_3.3 {$(names "${v3_3[@]}") } GCC_3.0; GCC_4.2.0 {$(names "${v4_2[@]}") } GCC_3.3;" \
    >"$built/stub/versions"
tool ziglang cc -target "$machine-linux-gnu.2.28" -shared -nostdlib -Wl,-soname,libgcc_s.so.1 \
    -Wl,--version-script="$built/stub/versions" -o "$built/stub/libthalweg_unwind.so" "$built/stub/stub.c"
tool maturin build --profile "${WHEEL_PROFILE:-release}" --zig --target "$target" --compatibility manylinux_2_28 --out "$built" \
    ${CI:+--locked} -- -L native="$built/stub" -l dylib=thalweg_unwind
tool maturin sdist --out dist
# It copies libraries that a user's machine may lack into the wheel; there are none today. It also refuses newer symbols. It knows
# the platforms of this machine's processor by name; for another processor it takes the oldest one that the symbols allow.
[ "$machine" = "$(uname -m)" ] || platform=auto
tool auditwheel repair --only-plat --plat "$platform" --wheel-dir dist "$built"/thalweg-*.whl
wheel=$(echo dist/thalweg-*_"$machine".whl)
tool auditwheel show "$wheel"
tool abi3audit --strict --verbose "$wheel"
tool twine check --strict "$wheel" dist/thalweg-*.tar.gz

if [ "$machine" != "$(uname -m)" ] && [ -n "${WHEEL_ROOT:-}" ]; then
    python scripts/test_emulated.py "$wheel" "$WHEEL_ROOT"
    exit
elif [ "$machine" != "$(uname -m)" ]; then
    echo "$wheel is audited, and not run: this machine is $(uname -m)"
    exit
fi
tests=()
for extra in ${WHEEL_EXTRAS-report data,torch flower lm ray}; do tests+=(--extra "$extra"); done
python scripts/test_wheel.py "$wheel" --locked ${tests[@]+"${tests[@]}"}
