#!/usr/bin/env bash
# Installs the programs of other projects that some tests and the lab use: chromium, stress-ng, iperf3.
# Never fails: tests whose program is not there are skipped, and say so.
set -uo pipefail

wanted=(chromium stress-ng iperf3) # on Debian and Ubuntu a package has its program's name
options=(-o DPkg::Lock::Timeout=120 -o Acquire::Retries=2 -o Acquire::http::Timeout=30 -o Acquire::https::Timeout=30)
export DEBIAN_FRONTEND=noninteractive

give_up() { # cause, mend, packages
    echo "not installed: ${*:3}"
    echo "cause: $1"
    echo "mend: $2; until then tests that need them are skipped"
    exit 0
}

missing=()
for program in "${wanted[@]}"; do
    if path=$(command -v "$program"); then
        echo "$program is there: $path"
    else
        missing+=("$program")
    fi
done
[ ${#missing[@]} -gt 0 ] || exit 0
command -v apt-get >/dev/null ||
    give_up "this system has no apt-get" "Install them with this system's own program" "${missing[@]}"
[ "$(id -u)" -eq 0 ] || give_up "only root installs packages" "sudo make system" "${missing[@]}"

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The line that says what was wrong, or the last one there is.
cause() { grep -m 1 '^[EW]:' "$log" || tail -n 1 "$log"; }

echo "fetching the lists of packages: apt-get update"
apt-get "${options[@]}" update --quiet=2 >"$log" 2>&1 || echo "the lists may be old: $(cause)"
failed=()
for package in "${missing[@]}"; do
    echo "installing: apt-get install $package"
    if ! apt-get "${options[@]}" install --yes --quiet=2 --no-install-recommends "$package" >"$log" 2>&1; then
        echo "$package: $(cause)"
        failed+=("$package")
    fi
done
[ ${#failed[@]} -eq 0 ] ||
    give_up "apt-get could not install them" "Correct what it says above, then: make system" "${failed[@]}"
exit 0
