#!/usr/bin/env bash
# Installs what others made and some tests, experiments, the lab and brokered transports use: the programs chromium,
# stress-ng, iperf3, mosquitto, rabbitmq-server, clang, which compiles the eBPF programs again to check them, the data set
# Fashion-MNIST, for RDMA the library, its drivers and its headers, and what a guest kernel is built with. No service of
# theirs is started, now or at the next boot.
# Never fails: tests whose program is not there are skipped, and say so.
set -uo pipefail
[ "${1:-}" != --help ] || exec "$(dirname "$0")/usage.sh" "$0"

# On Debian and Ubuntu a package has its program's name.
wanted=(chromium stress-ng iperf3 mosquitto rabbitmq-server clang dataset-fashion-mnist
    libibverbs-dev ibverbs-providers bc bison flex patch xz-utils)
# What package scripts ask before they start a service (invoke-rc.d(8)): exit code 101 forbids it.
policy=${POLICY_RC_D:-/usr/sbin/policy-rc.d}
# Brokers are in sbin, which users other than root may not have in their PATH.
case ":$PATH:" in *:/usr/bin:*) PATH+=:/usr/sbin:/sbin ;; esac
options=(-o DPkg::Lock::Timeout=120 -o Acquire::Retries=2 -o Acquire::http::Timeout=30 -o Acquire::https::Timeout=30)
export DEBIAN_FRONTEND=noninteractive

give_up() { # cause, hint, packages
    echo "not installed: ${*:3}"
    echo "cause: $1"
    echo "hint: $2; until then tests that need them are skipped"
    exit 0
}

# Prints where a program is, or that a package without one is installed.
there() {
    command -v "$1" || { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ] && echo installed; }
}

missing=()
services=() # those that come with a package that was not there before
for program in "${wanted[@]}"; do
    if path=$(there "$program"); then
        echo "$program is there: $path"
    else
        missing+=("$program")
        case $program in mosquitto | rabbitmq-server) services+=("$program.service") ;; esac
    fi
done
[ ${#missing[@]} -gt 0 ] || exit 0
# Erlang's port mapper comes with RabbitMQ, and is started by it when it is needed.
command -v epmd >/dev/null || services+=(epmd.service epmd.socket)
command -v apt-get >/dev/null ||
    give_up "this system has no apt-get" "Install them with this system's own program" "${missing[@]}"
[ "$(id -u)" -eq 0 ] || give_up "only root installs packages" "sudo make system" "${missing[@]}"

log=$(mktemp)
own_policy=
trap 'rm -f "$log" $own_policy' EXIT
# The line that says what was wrong, or the last one there is.
cause() { grep -m 1 '^[EW]:' "$log" || tail -n 1 "$log"; }

echo "fetching the lists of packages: apt-get update"
apt-get "${options[@]}" update --quiet=2 >"$log" 2>&1 || echo "the lists may be old: $(cause)"
# A policy that is there already is the administrator's, and stays.
if [ ! -e "$policy" ] && printf '#!/bin/sh\nexit 101\n' 2>/dev/null >"$policy"; then
    own_policy=$policy
    chmod 755 "$policy"
fi
failed=()
for package in "${missing[@]}"; do
    echo "installing: apt-get install $package"
    if ! apt-get "${options[@]}" install --yes --quiet=2 --no-install-recommends "$package" >"$log" 2>&1; then
        echo "$package: $(cause)"
        failed+=("$package")
    fi
done
if [ ${#services[@]} -gt 0 ] && command -v systemctl >/dev/null; then
    systemctl disable --now --quiet "${services[@]}" >/dev/null 2>&1 || true
fi
[ ${#failed[@]} -eq 0 ] ||
    give_up "apt-get could not install them" "Correct what it says above, then: make system" "${failed[@]}"
exit 0
