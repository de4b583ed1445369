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
# libcalla.a has no other names either: they would meet those of the program and its libraries.
archived=$(nm -g --defined-only "$build/libcalla.a" | awk 'NF == 3 { print $3 }' | sort)
if ! diff <(echo "$archived") <(echo "$declared"); then
    echo "left: global in libcalla.a, right: declared in the public headers" >&2
    exit 1
fi
# Each header alone compiles, as C17 and, where there is a compiler for it, as C++.
work=$(mktemp -d)
# A library built with sanitizers needs their run-time.
sanitizers=$(sed -n 's/^CALLA_SANITIZE:STRING=//p' "$build/CMakeCache.txt")
trap 'rm -rf "$work"' EXIT
for header in calla model; do
    printf '#include <calla/%s.h>\nint main(void) { return calla_version() == 0; }\n' "$header" >"$work/header.c"
    cc -std=c17 -Wall -Wextra -Werror -pedantic -I "$source/include" -c "$work/header.c" -o "$work/header.o"
    # shellcheck disable=SC2046
    cc ${sanitizers:+-fsanitize=$sanitizers} "$work/header.o" "$build/libcalla.a" $(pkg-config --libs jansson libpcre2-8 libutf8proc) -lm -lpthread \
        -o "$work/program"
    "$work/program"
    if command -v c++ >/dev/null; then
        c++ -x c++ -std=c++17 -Wall -Wextra -Werror -pedantic -I "$source/include" -c "$work/header.c" \
            -o "$work/header.o"
    fi
done
