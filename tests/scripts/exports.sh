#!/usr/bin/env bash
# libcalla.so exports the functions of the public headers and nothing else.
set -euo pipefail
program=$1 build=$2 source=$3
if nm "$build/libcalla.so" 2>/dev/null | grep -q ' __asan_\| __tsan_\|__ubsan_'; then
    echo "SKIP: a sanitizer's own symbols are in this build"
    exit 77
fi
exported=$(nm -D --defined-only "$build/libcalla.so" | awk '{print $3}' | sort)
declared=$(cat "$source"/include/calla/*.h | tr '\n' ' ' | grep -o 'CALLA_API [^;]*;' |
    grep -o 'calla_[a-z0-9_]*(' | tr -d '(' | sort -u)
if ! diff <(echo "$exported") <(echo "$declared"); then
    echo "left: exported by libcalla.so, right: declared in the public headers" >&2
    exit 1
fi
# A C program that includes each header alone compiles, as C17 and as C++.
for header in calla model; do
    printf '#include <calla/%s.h>\nint main(void) { return calla_version() == 0; }\n' "$header" >"$build/header.c"
    cc -std=c17 -Wall -Wextra -Werror -pedantic -I "$source/include" -c "$build/header.c" -o "$build/header.o"
done
