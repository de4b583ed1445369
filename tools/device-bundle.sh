#!/usr/bin/env bash
# Collects what tests/cuda/device_check.sh needs on a machine with a GPU and nothing else.
#
#   tools/device-bundle.sh BUILD FILE.tar.xz
#
# There: tar xf FILE.tar.xz && calla-device-check/device_check.sh
# The C library is the machine's own, at least as new as this one's.
set -eu
build=$(readlink -f "$1") archive=$(readlink -f "$2") source=$(readlink -f "$(dirname "$0")/..")
[ -e "$build/tests/test_prefill" ] || {
    echo "$build has no CUDA backend to check: it is built where nvcc is" >&2
    exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bundle=$work/calla-device-check programs=$work/calla-device-check/programs
mkdir -p "$programs" "$bundle/source/models" "$bundle/source/tests"

for name in calla tests/compare_backends tests/test_prefill tests/test_decode tests/test_token \
    tests/test_device_errors tests/test_device_memory tests/test_oracle tests/test_tiny \
    tests/test_session tests/test_sequences tests/test_not_finite; do
    strip -o "$programs/$(basename "$name")" "$build/$name"
done
for program in "$programs"/*; do ldd "$program"; done | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' |
    sort -u | grep -vE '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*)\.so' |
    xargs -r cp -L -t "$programs"
cp "$source/tests/cuda/device_check.sh" "$bundle/"
cp -r "$source/models/tiny" "$bundle/source/models/"
cp -r "$source/tests/data" "$bundle/source/tests/"
git -C "$source" describe --always --dirty --abbrev=12 >"$bundle/commit" 2>/dev/null || rm -f "$bundle/commit"
tar -C "$work" -cJf "$archive" calla-device-check
echo "$archive: $(du -h "$archive" | cut -f1)"
