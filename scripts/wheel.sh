#!/usr/bin/env bash
# Builds the wheel in dist/, for any Linux on x86-64 with glibc 2.28 or later and Python 3.10 or later, and tests it. zig
# compiles C and C++, and links with that glibc; maturin looks (as auditwheel does) that nothing newer is asked for.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONHOME PYTHONPATH CONDA_PREFIX
export VIRTUAL_ENV="$PWD/.venv"
export PATH="$VIRTUAL_ENV/bin:$PATH:$HOME/.cargo/bin"
export UV_NO_CONFIG=1 UV_NO_PROGRESS=1 UV_NATIVE_TLS="${UV_NATIVE_TLS:-1}"
tools=$PWD/.venv/.wheel

cmp -s requirements/wheel.lock "$tools/wheel.lock" || {
    rm -rf "$tools"
    python -m uv pip install --quiet --require-hashes --target "$tools" -r requirements/wheel.lock
    cp requirements/wheel.lock "$tools"
}
THALWEG_COMMIT=$(git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null || true)
export THALWEG_COMMIT
[ -n "$THALWEG_COMMIT" ] || unset THALWEG_COMMIT
rm -f dist/thalweg-*.whl
PYTHONPATH="$tools" python -m maturin build --release --zig --compatibility manylinux_2_28 --out dist ${CI:+--locked}
python scripts/test_wheel.py dist/thalweg-*.whl
