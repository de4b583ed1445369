#!/usr/bin/env bash
# As tests/scripts/*.sh, with a fourth argument ISA: on this processor calla chooses ISA of itself,
# offers what leads up to it and no more, and answers the same by each of these.
. "$3/tests/support/command.sh"
expected=$4

case $expected in
neon*) all="neon neon-dotprod neon-i8mm neon-bf16" ;;
*) all="avx2 avx512 amx" ;;
esac
offered="f32 c c-bf16"
refused=$all
if [ "$expected" != c ]; then
    offered="$offered ${all%%"$expected"*}$expected"
    refused=${all#*"$expected"}
fi

ask=("$calla" run -m "$source/models/tiny" --greedy --no-think --stats --threads 1
    -p "What is a dog?" -n 6)
"${ask[@]}" --isa abacus 2>err && fail "an abacus"
grep -qF "isa \"abacus\" is not one of auto, ${offered// /, }" err || fail "offered: $(cat err)"
for isa in $refused; do
    "${ask[@]}" --isa "$isa" >out 2>err && fail "$isa was not refused"
    grep -qF "isa \"$isa\": this machine lacks" err || fail "$isa: $(cat err)"
done
for isa in auto $offered; do
    "${ask[@]}" --isa "$isa" >out 2>err || fail "$isa: $(cat err)"
    grep -qF "\"isa\": \"${isa/auto/$expected}\"" err || fail "$isa: $(cat err)"
    [ "$(cat out)" = "A dog is a friendly animal" ] || fail "$isa answered: $(cat out)"
done
finish
