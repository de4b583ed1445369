#!/usr/bin/env bash
# The direction of dependence: base <- model <- engine <- server, cli; the backends (cpu, cuda)
# include base and model and implement engine/backend.h; nothing includes a backend's headers but
# the backend, its tests and the list of backends; hybrid stands beside the server, which may use it,
# and knows base and the public headers; so does grammar, which the server uses and
# which has to know as what the values of a call are read (model/chat_value.h); cli uses the public headers only.
set -euo pipefail
cd "$3"
bad=0
# check FOLDER "ALLOWED INCLUDE PATTERN": every #include "..." of FOLDER's files matches.
check() {
    [ -d "$1" ] || return 0
    local found
    found=$(grep -rnE '^#include "' "$1" --include='*.[ch]' --include='*.cu' --include='*.cuh' |
        grep -vE "#include \"($2)" || true)
    if [ -n "$found" ]; then
        printf '%s may include only %s:\n%s\n' "$1" "$2" "$found" >&2
        bad=1
    fi
}
check src/base 'base/'
check src/model 'base/|model/'
check src/engine 'base/|model/|engine/'
check src/cpu 'base/|model/|engine/backend\.h|cpu/'
check src/cuda 'base/|model/|engine/backend\.h|cuda/'
check src/grammar 'base/|grammar/|model/chat_value\.h'
check src/server 'base/|model/|engine/|grammar/|server/|hybrid/'
check src/hybrid 'base/|hybrid/'
check src/hybrid/detect 'base/|hybrid/detect/'
check cli '[a-z_]+\.h|server/|hybrid/'
# Public headers include public headers only.
check include 'calla/'
if grep -rnE '#include <calla/calla.h>' src/base | grep -v 'error.h\|version.c'; then
    echo "src/base knows the public header through base/error.h only" >&2
    bad=1
fi
# exit belongs to the program.
if grep -rnE '\b(exit|abort)\(' src --include='*.[ch]'; then
    echo "the library must not exit" >&2
    bad=1
fi
exit $bad
