#!/usr/bin/env bash
# step.sh TITLE COMMAND...: runs a command, says what it is for, and how many seconds it took.
set -uo pipefail
[ "${1:-}" != --help ] || exec "$(dirname "$0")/usage.sh" "$0"

title=$1
shift
echo "==> $title"
begin=$(date +%s%N)
"$@"
code=$?
tenths=$((($(date +%s%N) - begin) / 100000000))
verdict=done
[ "$code" -eq 0 ] || verdict="FAILED with exit code $code"
echo "==> $title: $verdict in $((tenths / 10)).$((tenths % 10)) s"
exit "$code"
