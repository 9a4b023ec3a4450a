#!/usr/bin/env bash
# As cargo's RUSTC_WORKSPACE_WRAPPER: compiles this repository's crates with clippy's checks; each warning is an error.
# CI uses it, because clippy by itself would analyse all crates a second time. Cargo calls it with rustc's path and arguments.
exec clippy-driver "$@" -D warnings
