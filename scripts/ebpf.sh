#!/usr/bin/env bash
# ebpf.sh [FOLDER]: compiles the eBPF programs of crates/ebpf/programs into FOLDER, crates/ebpf/objects unless it is given,
# and writes there which compiler made them of which sources (MADE_OF, lines of sha256sum).
set -euo pipefail
[ "${1:-}" != --help ] || exec "$(dirname "$0")/usage.sh" "$0"
cd "$(dirname "$0")/../crates/ebpf"
folder=${1:-objects}
clang=${CLANG:-clang}
command -v "$clang" >/dev/null || {
    echo "error: $clang is not installed" >&2
    echo "hint: Install clang; on Debian, as root: apt install clang" >&2
    exit 1
}
for program in unifl route; do
    # The object must not depend on where the repository lies. Debian keeps headers of a processor in a folder of its own.
    "$clang" -O2 -g -Wall -Werror -mcpu=v3 -target bpfel -ffile-prefix-map="$PWD"=. -I"/usr/include/$(uname -m)-linux-gnu" \
        -c "programs/$program.c" -o "$folder/$program.o"
done
{
    echo "# $("$clang" --version | sed -n 1p), $(uname -m)"
    LC_ALL=C sha256sum programs/*
    (cd "$folder" && sha256sum route.o unifl.o | sed 's#  #  objects/#')
} >"$folder/MADE_OF"
