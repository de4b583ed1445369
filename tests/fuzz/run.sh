#!/usr/bin/env bash
# Runs every libFuzzer target of a build folder for some seconds from its seeds. New inputs are kept
# in the build folder; a failing input is left in the build folder and named.
# usage: run.sh BUILD_FOLDER SECONDS
set -euo pipefail
build=$1 seconds=$2
here=$(dirname "$0")
for target in "$build"/tests/fuzz_*; do
    [ -x "$target" ] || continue
    name=$(basename "$target")
    mkdir -p "$build/corpus/$name"
    echo "-- $name"
    "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 \
        -artifact_prefix="$build/$name-" -print_final_stats=0 -verbosity=0 \
        "$build/corpus/$name" "$here/corpus/${name#fuzz_}"
done
