#!/usr/bin/env bash
# Prepares what `make run` and `make test` need: a virtual environment, its packages, the compiled core.
# A step whose inputs have not changed since it last succeeded is skipped. In a new environment, packages are installed while the
# core is compiled: the first waits for the network and the disk, the second for the processor.
#
# With BASELINES=1 the core also has the baselines: the ways of papers that experiments compare with. With BASELINES=0 it
# has none. Unless it is set, the core stays as it was chosen before; at first it has none. CORE_PROFILE is cargo's profile of
# the core. It is not remembered: release unless it is set. With dev, the core and Rust's tests share compiled libraries.
set -euo pipefail
[ "${1:-}" != --help ] || exec "$(dirname "$0")/usage.sh" "$0"
cd "$(dirname "$0")/.."

# Packages are compiled when they are installed. Without that, importing PyTorch takes seconds each time.
unset PYTHONDONTWRITEBYTECODE PYTHONHOME PYTHONPATH CONDA_PREFIX
export VIRTUAL_ENV="$PWD/.venv"
export PATH="$VIRTUAL_ENV/bin:$PATH:$HOME/.cargo/bin"
# The certificates of the system, as pip and cargo take them: behind a proxy there are no others.
export UV_NO_CONFIG=1 UV_NO_PROGRESS=1 UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-1}"
python=.venv/bin/python
stamps=.venv/.stamps
baselines=${BASELINES:-$(cat "$stamps/baselines" 2>/dev/null || echo 0)}
profile=${CORE_PROFILE:-release}

fail() { # cause, hint
    echo "error: $1" >&2
    echo "hint: $2" >&2
    exit 1
}

step() { scripts/step.sh "$@" || exit; }

# Prints the first Python that is new enough. A name that exists may still not run (pyenv's shims).
find_python() {
    local name
    for name in "${THALWEG_PYTHON:-python3}" python3 python3.13 python3.12 python3.11 python3.10 python3.14; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    return 1
}

check_tools() {
    command -v cargo >/dev/null || fail "cargo is not installed" "Install Rust, for example with rustup"
    command -v cc >/dev/null || fail "there is no C compiler (cc)" "Install one, as gcc; on Debian: apt install gcc"
    command -v "${CXX:-c++}" >/dev/null ||
        fail "there is no C++ compiler (c++), which libzmq is built with" "Install one, as g++; on Debian: apt install g++"
    local need have
    need=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    have=$(rustc --version | cut -d ' ' -f 2)
    [ "$(printf '%s\n' "$need" "$have" | sort -V | head -n 1)" = "$need" ] ||
        fail "Rust $have is older than $need" "Install a newer one, for example with rustup update"
}

# Whether the environment is one, of this folder: its programs hold the folder's path.
venv_is_good() {
    [ "$(cat "$stamps/folder" 2>/dev/null)" = "$PWD" ] &&
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

make_venv() {
    local base
    base=$(find_python) ||
        fail "no Python of 3.10 or newer was found" "Install one, or name it: THALWEG_PYTHON=/path/to/python3 make setup"
    rm -rf .venv
    "$base" -m venv .venv ||
        fail "$base cannot make virtual environments" "Install its venv module; on Debian: apt install python3-venv"
    mkdir -p "$stamps"
    echo "$PWD" >"$stamps/folder"
}

# uv and maturin in the versions that the lock file pins, with their hashes.
install_tools() {
    awk '/^(maturin|uv)==/ { on = 1 } on { print } !/\\$/ { on = 0 }' requirements/dev.lock >"$stamps/tools.txt"
    "$python" -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r "$stamps/tools.txt"
}

install_packages() {
    "$python" -m uv pip sync --quiet --require-hashes --compile-bytecode requirements/dev.lock
    cp requirements/dev.lock "$stamps/dev.lock"
}

# Whether nothing that the core is built from is newer than the core. New and removed files change their folder.
core_is_good() {
    [ "$(cat "$stamps/baselines" 2>/dev/null || echo 0)" = "$baselines" ] &&
        [ "$(cat "$stamps/profile" 2>/dev/null || echo release)" = "$profile" ] &&
        [ -e "$stamps/core" ] && [ -e python/thalweg/_core.abi3.so ] && [ "$stamps/core" -nt "$stamps/dev.lock" ] &&
        [ -z "$(find Cargo.toml Cargo.lock pyproject.toml crates \
            \( -name tests -o -name examples -o -name conformance -o -name '*.md' \) -prune \
            -o -newer "$stamps/core" -print -quit)" ]
}

# The commit is part of the build, and changes when the core is built, not with each commit.
develop() { # more options of maturin
    THALWEG_COMMIT=$(git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null || true)
    export THALWEG_COMMIT
    [ -n "$THALWEG_COMMIT" ] || unset THALWEG_COMMIT
    local features=()
    [ "$baselines" = 0 ] || features+=(--features baselines)
    [ "$profile" = release ] || features+=(--features as-in-tests)
    maturin develop --profile "$profile" --uv ${CI:+--locked} ${features[@]+"${features[@]}"} "$@"
}

# Compiles the core while packages are installed. Another program that installs would be in their way.
compile_core() { develop --skip-install; }

# Installs the core. What is compiled already is not compiled again.
install_core() {
    touch "$stamps/core.next"
    develop
    echo "$baselines" >"$stamps/baselines"
    echo "$profile" >"$stamps/profile"
    mv "$stamps/core.next" "$stamps/core"
}

# The steps, each with its title.
packages() { step "packages of requirements/dev.lock, PyTorch among them" "$0" install_packages; }
core() { step "compiled core, a $profile build$([ "$baselines" = 0 ] || echo " with baselines")" "$0" "${1:-install_core}"; }
core_beside() { core compile_core; }

# xargs, unlike a shell's background, lets Ctrl-C end both.
side_by_side() { printf '%s\n' "$@" | xargs -n 1 -P "$#" "$0"; }

# A step is this script with the name of a function, so that step.sh can time it.
if [ $# -gt 0 ]; then
    "$@"
    exit
fi

# One set-up of this folder at a time.
if command -v flock >/dev/null; then
    exec 9<Cargo.toml
    flock 9
fi

case $baselines in 0 | 1) ;; *) fail "BASELINES is $baselines" "Set it to 1 or 0" ;; esac
case $profile in release | dev) ;; *) fail "CORE_PROFILE is $profile" "Set it to release or dev" ;; esac
check_tools
venv_is_good || step "virtual environment in .venv" "$0" make_venv
{ [ -x .venv/bin/maturin ] && "$python" -m uv --version >/dev/null 2>&1; } ||
    step "uv and maturin, which install the packages and the core" "$0" install_tools
if cmp -s requirements/dev.lock "$stamps/dev.lock"; then
    core_is_good || core
elif [ -e "$stamps/dev.lock" ]; then
    packages # may bring another maturin
    core
else
    side_by_side packages core_beside
    step "core, installed" "$0" install_core
fi
