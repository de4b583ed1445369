#!/usr/bin/env bash
# docs/calla.service as systemd reads it.
. "$3/tests/support/command.sh"
trap 'rm -rf "$work"' EXIT
if ! command -v systemd-analyze >/dev/null; then
    echo "SKIP: no systemd-analyze"
    exit 77
fi
sed "s|/usr/local/bin/calla|$calla|" "$source/docs/calla.service" >calla.service
systemd-analyze verify ./calla.service >out 2>&1 || fail "it is refused: $(cat out)"
[ ! -s out ] || fail "systemd says: $(cat out)"
# Every option in it is one of the command's.
"$calla" serve --help >help
for option in $(grep ExecStart= calla.service | grep -o -e ' --[a-z-]*' | sort -u); do
    grep -q -e "$option" help || fail "calla serve has no option $option"
done
finish
