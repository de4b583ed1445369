#!/usr/bin/env bash
# calla quantize: what it writes, and how it refuses.
# usage: quantize.sh PROGRAM BUILD_FOLDER SOURCE_FOLDER
set -euo pipefail
program=$1 model=$3/tests/data/oracle-a
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

# refused CODE TEXT ARGUMENTS...: TEXT on stderr, nothing on stdout
refused() {
    local code=$1 text=$2 rc=0
    shift 2
    "$program" quantize "$@" >"$work/out" 2>"$work/err" || rc=$?
    [ "$rc" = "$code" ] || fail "quantize $*: exit $rc, expected $code"
    [ ! -s "$work/out" ] || fail "quantize $*: output although refused"
    grep -qF -- "$text" "$work/err" || fail "quantize $*: $(cat "$work/err") -- expected $text"
    [ "$code" != 1 ] || [ "$(wc -l <"$work/err")" = 1 ] || fail "quantize $*: more than one line"
}

"$program" quantize --help | grep -q '^usage: calla quantize' || fail "help"
"$program" quantize "$model/bf16" "$work/a" >"$work/out" 2>"$work/err"
[ ! -s "$work/out" ] && [ ! -s "$work/err" ] || fail "silent unless on a terminal"
"$program" info -m "$work/a" >/dev/null
"$program" quantize --shard-size 1 "$model/bf16" "$work/b"
[ -e "$work/b/model-00002-of-00002.safetensors" ] || fail "two shards of 1 MB"
"$program" info -m "$work/b" >/dev/null
refused 1 "$work/a is not empty" "$model/bf16" "$work/a"
"$program" quantize -f "$model/bf16" "$work/b"
[ "$(ls "$work/b" | wc -l)" = 3 ] || fail "overwriting leaves files of before: $(ls "$work/b")"
cmp "$work/a/model.safetensors" "$work/b/model.safetensors" || fail "not the same bytes"

refused 2 'two directories' "$work/a"
refused 2 'two directories' "$model/bf16" "$work/c" "$work/d"
refused 2 -- --bogus --bogus
refused 2 --shard-size --shard-size x "$model/bf16" "$work/c"
refused 1 "quantized already" "$model/mlx4" "$work/c"
refused 1 'cannot open /nowhere/config.json' /nowhere "$work/c"
refused 1 'cannot create directory' "$model/bf16" "$work/no/such"
cp -r "$model/bf16" "$work/cut"
truncate -s 1000000 "$work/cut/model.safetensors"
refused 1 "$work/cut/model.safetensors" "$work/cut" "$work/c"
# A limit on file sizes stands for a disk that fills up.
(ulimit -f 1000; refused 1 "$work/c/model.safetensors: File too large" "$model/bf16" "$work/c")
[ ! -e "$work/c" ] || fail "something was left in $work/c"
echo ok
