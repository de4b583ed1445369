#!/usr/bin/env bash
# calla tokenize: both directions, lines, text only, and what is refused.
. "$3/tests/support/command.sh"
model=$source/tests/data/tokenizer_small
input=in

# output NAME EXPECTED: of the command before (printf escapes)
output() {
    printf "$2" | cmp -s - out || fail "$1: printed $(od -c out | head -5)"
}

tokenize=("$calla" tokenize -m "$model")
: >in
check "help" 0 "" "$calla" tokenize --help
check "no model" 2 "-m DIR is missing" "$calla" tokenize
check "two texts" 2 "both a text (-p) and a file" "${tokenize[@]}" -p x y
check "two files" 2 "unexpected argument 'y'" "${tokenize[@]}" x y
check "raw alone" 2 "need --decode" "${tokenize[@]}" --raw
check "lines with decode" 2 "do not go with --decode" "${tokenize[@]}" --decode --lines
check "no such file" 1 "nothing-here" "${tokenize[@]}" nothing-here
check "no tokenizer" 1 "./tokenizer.json" "$calla" tokenize -m .

check "nothing" 0 "" "${tokenize[@]}"
output "nothing" '[]\n'
check "a text" 0 "" "${tokenize[@]}" -p 'abc<t>'
output "a text" '[257, 264]\n'
check "text only" 0 "" "${tokenize[@]}" --text-only -p 'abc<t>'
output "text only" '[257, 27, 83, 29]\n'
check "count" 0 "" "${tokenize[@]}" --count -p 'abc<t>'
output "count" '2\n'

printf 'ab\n\nabc<t>\r' >in
check "standard input" 0 "" "${tokenize[@]}"
output "standard input" '[256, 198, 198, 257, 264, 201]\n'
check "a file" 0 "" "${tokenize[@]}" in
output "a file" '[256, 198, 198, 257, 264, 201]\n'
check "lines" 0 "" "${tokenize[@]}" --lines -
output "lines" '[256]\n[]\n[257, 264, 201]\n'

printf '[256, 262]\n\n[160, 116]\n []' >in
check "decode" 0 "" "${tokenize[@]}" --decode
output "decode" '"ab<|endoftext|>"\n"\xef\xbf\xbd"\n""\n'
check "raw" 0 "" "${tokenize[@]}" --decode --raw --skip-special
output "raw" 'ab\xef\xbf\xbd'
echo '[1, 265]' >in
check "an id too large" 1 "line 1: id 265 at position 1, expected 0 to 264" "${tokenize[@]}" --decode
printf '[1]\n[1, "2"]' >in
check "not an id" 1 "line 2: element 1 is not an id" "${tokenize[@]}" --decode
echo '{"a": 1}' >in
check "not an array" 1 "line 1 is not a JSON array" "${tokenize[@]}" --decode
echo '[1' >in
check "not JSON" 1 "line 1 is not a JSON array: " "${tokenize[@]}" --decode

# There and back, byte for byte, through a pipe; and a reader that leaves early.
tr -d '\200-\377' <"$3/tests/data/tokenizer_scripts/goldens.jsonl" >text
"${tokenize[@]}" text | "${tokenize[@]}" --decode --raw >back || fail "there and back"
cmp text back || fail "there and back"
"${tokenize[@]}" text | head -c 10 >early || fail "a reader that leaves"
[ "$(wc -c <early)" = 10 ] || fail "a reader that leaves"
if [ -w /dev/full ]; then
    check "a full disk" 1 "cannot write" bash -c '"$@" >/dev/full' bash "${tokenize[@]}" -p x
fi

finish
