#!/bin/sh
# Serves a job, or goes on with it: for service managers, which start the same command again after a crash or an upgrade.
#
# usage: serve.sh RECORDS [ARGUMENTS of thalweg server]
#
# RECORDS is a folder for this job alone. If its newest record is complete, there is nothing to do. If it has a
# checkpoint, the server resumes it. Else it begins anew.
set -eu

[ $# -ge 1 ] || { echo "usage: $0 RECORDS [ARGUMENTS of thalweg server]" >&2; exit 2; }
records=$1
shift
newest=
for folder in "$records"/*/; do # names begin with the date, so the last one is the newest
    if [ -f "${folder}manifest.json" ]; then newest=${folder%/}; fi
done
if [ -n "$newest" ]; then
    if grep -q '"status": "complete"' "$newest/manifest.json"; then
        echo "the job is complete: $newest" >&2
        exit 0
    fi
    if [ -f "$newest/checkpoint.safetensors" ]; then
        exec "${THALWEG:-thalweg}" server --resume "$newest" "$@"
    fi
fi
exec "${THALWEG:-thalweg}" server --record "$records" "$@"
