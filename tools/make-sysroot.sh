#!/bin/sh
# make-sysroot.sh ARCHITECTURE FOLDER PACKAGE...: Debian packages of another architecture and all
# they depend on, unpacked below FOLDER for a cross compiler and an emulator. Nothing is installed,
# no script of a package is run, and the machine's own package lists stay as they are; root is not
# needed. What FOLDER holds already is left alone if it was made for the same packages.
set -eu
architecture=$1 folder=$2
shift 2
made_for="$architecture: $*"
[ "$(cat "$folder/made-for" 2>/dev/null)" = "$made_for" ] && exit 0
echo "unpacking below $folder: $* ($architecture)" >&2
rm -rf "$folder"
mkdir -p "$folder"
apt=$(mktemp -d)
trap 'rm -rf "$apt"' EXIT
mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial"
: >"$apt/status"
# An apt of its own: nothing counts as installed, so that every dependency is fetched.
own_apt() {
    DEBIAN_FRONTEND=noninteractive apt-get -qq \
        -o APT::Architecture="$architecture" -o APT::Architectures::="$architecture" \
        -o APT::Install-Recommends=false -o APT::Sandbox::User= \
        -o Dir::State="$apt/state" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" "$@"
}
# A source without this architecture is no matter as long as the packages are found.
own_apt update || true
own_apt install -y --download-only "$@" >/dev/null
for package in "$apt"/cache/archives/*.deb; do
    dpkg-deb -x "$package" "$folder"
done
# Links from the root, as libm.so's, stay inside.
find "$folder" -type l -lname '/*' | while read -r link; do
    ln -sfn "$(realpath "$folder")$(readlink "$link")" "$link"
done
printf '%s\n' "$made_for" >"$folder/made-for"
