#!/usr/bin/env bash
# calla logits: what is written, where, and what is refused.
. "$3/tests/support/command.sh"
model=$source/tests/data/oracle-a/mlx4
ids=$source/tests/data/oracle-a/ids.txt

logits=("$calla" logits -m "$model")
check "help" 0 "" "$calla" logits --help
check "no ids" 2 "--ids FILE is missing" "${logits[@]}" --out x
check "no output" 2 "--out FILE is missing" "${logits[@]}" --ids "$ids"

check "to a file" 0 "" "${logits[@]}" --ids "$ids" --out a.bin
n=$(wc -w <"$ids")
[ "$(stat -c %s a.bin)" = $((n * 320 * 4)) ] || fail "size of the output"
check "again, over the old file" 0 "" "${logits[@]}" --ids "$ids" -o a.bin --chunk 32 --threads 1
cp a.bin b.bin
check "to standard output" 0 "" "${logits[@]}" --ids "$ids" --out -
cmp -s out b.bin || fail "standard output or chunks differ"
"${logits[@]}" --ids - --out c.bin <"$ids" || fail "ids from standard input"
cmp -s c.bin b.bin || fail "ids from standard input differ"
check "decode" 0 "" "${logits[@]}" --ids "$ids" --out d.bin --decode
[ "$(stat -c %s d.bin)" = "$(stat -c %s a.bin)" ] || fail "size of decode's output"
cmp -s d.bin a.bin && fail "decode equals prefill: is it decode?"
check "a device" 0 "" "${logits[@]}" --ids "$ids" --out /dev/null

echo "1 2 x3" >bad
check "not an id" 1 "bad: byte 4: 'x3' is not a token id" "${logits[@]}" --ids bad --out e.bin
echo "1 2 320" >bad
check "id out of range" 1 "is 320, outside 0 ... 319" "${logits[@]}" --ids bad --out e.bin
: >bad
check "no ids in the file" 1 "bad has no ids" "${logits[@]}" --ids bad --out e.bin
check "context" 1 "the context holds 10" "${logits[@]}" --ids "$ids" --out e.bin --ctx 10
check "no such folder" 1 "cannot create nowhere/e.bin" "${logits[@]}" --ids "$ids" --out nowhere/e.bin
[ -e e.bin ] && fail "a failed run left e.bin"

# Interrupted: nothing under the final name, nothing beside it.
yes 5 | head -n 30000 >long
"$calla" logits -m "$source/models/tiny" --ids long --out f.bin --decode --isa f32 2>err &
pid=$!
begun() { compgen -G "f.bin.*" >/dev/null; }
await $pid begun
kill -INT $pid
wait $pid
code=$?
[ $code = 130 ] || fail "interrupted: exit code $code: $(cat err)"
[ -z "$(ls f.bin* 2>/dev/null)" ] || fail "interrupted: left $(ls f.bin*)"

check "no name" 1 "the name of the output file is empty" "${logits[@]}" --ids "$ids" --out ""
(ulimit -f 8; "${logits[@]}" --ids "$ids" --out g.bin 2>err)
[ $? = 1 ] || fail "file size limit: exit code"
grep -q "cannot write to g.bin: File too large" err || fail "file size limit: $(cat err)"
[ -z "$(ls -A | grep g.bin)" ] || fail "file size limit: left $(ls -A)"

"${logits[@]}" --ids "$ids" --out - 2>err | head -c 5 >out
codes=("${PIPESTATUS[@]}")
[ "${codes[0]}" = 0 ] || fail "closed pipe: exit code ${codes[0]}"
[ -s err ] && fail "closed pipe: $(cat err)"

finish
