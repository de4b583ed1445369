#!/usr/bin/env bash
# Runs every libFuzzer target of a build folder for some seconds from its seeds, as many at once as
# there are processors. New inputs are kept in the build folder; a failing input is left in the build
# folder and named.
# usage: run.sh BUILD_FOLDER SECONDS
set -euo pipefail
build=$1 seconds=$2
here=$(dirname "$0")
fuzz() {
    local name
    name=$(basename "$1")
    mkdir -p "$build/corpus/$name"
    echo "-- $name"
    # An input that hangs takes for ever, one on a busy machine may take seconds.
    "$1" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048 -max_len=65536 \
        -artifact_prefix="$build/$name-" -print_final_stats=0 -verbosity=0 \
        "$build/corpus/$name" "$here/corpus/${name#fuzz_}" >"$build/$name.log" 2>&1 || {
        echo "-- $name failed:"
        cat "$build/$name.log"
        return 1
    }
}
export -f fuzz
export build seconds here
find "$build/tests" -name 'fuzz_*' -type f -executable -print0 | sort -z |
    xargs -0 -P "$(nproc)" -I '{}' bash -c 'fuzz "$1"' fuzz '{}'
