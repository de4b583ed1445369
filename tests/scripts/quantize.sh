#!/usr/bin/env bash
# calla quantize: what it writes, and how it refuses.
. "$3/tests/support/command.sh"
set -e -o pipefail
command=quantize
model=$source/tests/data/oracle-a

"$calla" quantize --help | grep -q '^usage: calla quantize' || fail "help"
"$calla" quantize "$model/bf16" "$work/a" >"$work/out" 2>"$work/err"
[ ! -s "$work/out" ] && [ ! -s "$work/err" ] || fail "silent unless on a terminal"
"$calla" info -m "$work/a" >/dev/null
"$calla" quantize --shard-size 1 "$model/bf16" "$work/b"
[ -e "$work/b/model-00002-of-00002.safetensors" ] || fail "two shards of 1 MB"
"$calla" info -m "$work/b" >/dev/null
refused 1 "$work/a is not empty" "$model/bf16" "$work/a"
"$calla" quantize -f "$model/bf16" "$work/b"
[ "$(ls "$work/b" | wc -l)" = 3 ] || fail "overwriting leaves files of before: $(ls "$work/b")"
cmp "$work/a/model.safetensors" "$work/b/model.safetensors" || fail "not the same bytes"

refused 2 'two directories' "$work/a"
refused 2 'two directories' "$model/bf16" "$work/c" "$work/d"
refused 2 -- --bogus --bogus
refused 2 --shard-size --shard-size x "$model/bf16" "$work/c"
refused 1 "quantized already" "$model/mlx4" "$work/c"
refused 1 'cannot open directory /nowhere:' /nowhere "$work/c"
refused 1 'cannot create directory' "$model/bf16" "$work/no/such"
cp -r "$model/bf16" "$work/cut"
truncate -s 1000000 "$work/cut/model.safetensors"
refused 1 "$work/cut/model.safetensors" "$work/cut" "$work/c"
# A limit on file sizes stands for a disk that fills up.
(ulimit -f 1000; refused 1 "$work/c/model.safetensors: File too large" "$model/bf16" "$work/c")
[ ! -e "$work/c" ] || fail "something was left in $work/c"
finish
