#!/bin/sh
# Installs Debian packages: as root, or through sudo when that asks no question. Otherwise prints the
# one command that would, and fails.
set -eu
command="apt-get install -y --no-install-recommends $*"
if ! command -v apt-get >/dev/null 2>&1; then
    echo "calla needs these packages (Debian's names): $*" >&2
    exit 1
fi
if [ "$(id -u)" = 0 ]; then
    run=""
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    run="sudo"
else
    echo "calla needs some packages. Please run:" >&2
    echo "    sudo apt-get update && sudo $command" >&2
    exit 1
fi
echo "installing: $*" >&2
export DEBIAN_FRONTEND=noninteractive
# A machine may have no package lists yet, or old ones.
$run apt-get install -y --no-install-recommends "$@" >/dev/null 2>&1 || {
    $run apt-get update -qq
    $run apt-get install -y --no-install-recommends "$@"
}
