#!/usr/bin/env bash
# What the build says about CUDA before it compiles anything: with and without nvcc, with one too old,
# and with a setting that means nothing.
. "$3/tests/support/command.sh"
configure() {
    rm -rf build
    cmake -S "$source" -B build -G Ninja -DCALLA_TESTS=OFF "$@"
}
printf '#!/bin/sh\necho "Cuda compilation tools, release 11.8, V11.8.89"\n' >nvcc
chmod +x nvcc
old=-DCALLA_NVCC=$work/nvcc

# said NAME PART ARGUMENTS...: goes through, and says PART.
said() {
    local name=$1 part=$2
    shift 2
    configure "$@" >out 2>err || fail "$name: $(cat err)"
    grep -qF -- "-- CUDA backend: $part" out || fail "$name: no '$part' in: $(cat out)"
}
said "off" "left out, CALLA_CUDA is off" -DCALLA_CUDA=off
said "as CMake writes it" "left out, CALLA_CUDA is off" -DCALLA_CUDA=OFF
said "an old nvcc" "left out, $work/nvcc is version '11.8', 12.8 is needed" "$old"
check "an old nvcc that must be" 1 "CALLA_CUDA is on, but" \
    configure -DCALLA_CUDA=on "$old"
check "neither" 1 "CALLA_CUDA is 'yes', not auto, on or off" configure -DCALLA_CUDA=yes

finish
