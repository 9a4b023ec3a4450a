#!/usr/bin/env bash
# usage.sh SCRIPT: prints the comment that a shell script begins with.
set -euo pipefail
awk 'NR > 1 && !/^#/ { exit } NR > 1 { sub(/^# ?/, ""); print }' "$1"
