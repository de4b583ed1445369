#!/usr/bin/env bash
# calla synth: what it writes, how it refuses, and what an interrupted run leaves: nothing.
. "$3/tests/support/command.sh"
set -e -o pipefail
command=synth

"$calla" synth --help | grep -q '^usage: calla synth' || fail "help"
"$calla" synth --shape tiny --seed 3 "$work/a" >"$work/out" 2>"$work/err"
[ ! -s "$work/out" ] && [ ! -s "$work/err" ] || fail "silent unless on a terminal"
"$calla" info -m "$work/a" >"$work/info"
grep -q 'layers  *8: 6 gated delta net, 2 attention; hidden size 256' "$work/info" || fail "shape"
"$calla" synth --shape tiny --seed 3 --layers 2 --layout bf16 "$work/b"
"$calla" info -m "$work/b" | grep -q 'layers  *2: 2 gated delta net, 0 attention' || fail "layers"
[ "$("$calla" tokenize -m "$work/a" -p ' the time of the world' | tr ',' '\n' | wc -l)" = 5 ] ||
    fail "common words are single tokens"

refused 2 '--shape' "$work/c"
refused 2 'one directory' --shape tiny
refused 2 '--layers' --shape tiny --layers 0 "$work/c"
refused 2 '--layout' --shape tiny --layout gguf "$work/c"
refused 2 -- --bogus --bogus
refused 1 'unknown shape 7b (known: 35b, tiny)' --shape 7b "$work/c"
refused 1 "$work/a is not empty" --shape tiny "$work/a"

# Interrupted while it writes 19.5 GB (a few of them, before the signal is handled).
if [ "$(df -Pk "$work" | awk 'NR==2 {print $4}')" -gt 22000000 ]; then
    "$calla" synth --shape 35b "$work/c" &
    pid=$!
    begun() { compgen -G "$work/c/model-00001-of-00004.safetensors.*" >/dev/null; }
    await "$pid" begun
    kill -INT "$pid"
    rc=0
    wait "$pid" || rc=$?
    [ "$rc" = 130 ] || fail "interrupted: exit $rc"
    [ ! -e "$work/c" ] || fail "interrupted: left $(ls "$work/c")"
fi
# A small file system of our own, where the system lets a user have one.
if unshare -rm true 2>/dev/null; then
    mkdir "$work/small"
    unshare -rm bash -c "mount -t tmpfs -o size=4m none '$work/small' &&
        '$calla' synth --shape tiny '$work/small/x' 2>'$work/err'; echo \$? >'$work/rc'
        ls '$work/small' >'$work/left'"
    [ "$(cat "$work/rc")" = 1 ] || fail "small disk: exit $(cat "$work/rc")"
    grep -q 'GB are needed; nothing was written' "$work/err" || fail "small disk: $(cat "$work/err")"
    [ ! -s "$work/left" ] || fail "small disk: left $(cat "$work/left")"
fi
finish
