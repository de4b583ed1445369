#!/usr/bin/env bash
# One program runs on every processor of its architecture: only the kernels of an instruction set,
# which run after a look at the processor, may use more than the architecture's base, and nothing
# they define may stand in for a function of the same name elsewhere.
. "$3/tests/support/command.sh"
build=$2
# What the build itself uses, which for another architecture is not the host's.
tool() {
    sed -n "s/^CMAKE_$1:FILEPATH=//p" "$build/CMakeCache.txt"
}
objdump=$(tool OBJDUMP) nm=$(tool NM)
case $("$objdump" -f "$build/CMakeFiles/calla_objects.dir/src/base/error.c.o" | sed -n 's/^architecture: \([^,]*\).*/\1/p') in
i386:x86-64 | x86_64)
    # VEX and EVEX encodings, masks and tiles, BMI, and what SSE got after SSE2.
    beyond='v[a-z0-9]+|k(mov|or|and|xor|not|shift)[a-z]*|tile[a-z0-9]+|tdp[a-z0-9]+'
    beyond+='|andn|bextr|bls(i|r|msk)|bzhi|mulx|pdep|pext|rorx|sarx|shlx|shrx|popcnt|lzcnt|movbe|crc32'
    beyond+='|h(add|sub)p[sd]|addsubp[sd]|mov(s[hl]|d)dup|lddqu'
    beyond+='|pshufb|palignr|pabs[bwd]|ph(add|sub)[a-z]+|pmulhrsw|pmaddubsw|psign[bwd]'
    beyond+='|p(min|max)(sb|sd|ud|uw)|pmov[sz]x[a-z]+|pmul(ld|dq)|p(extr|insr)[bdq]|pblend(vb|w)|packusdw'
    beyond+='|ptest|pcmp(eqq|gtq|[ei]str[im])|round[ps][sd]|blendv?p[sd]|dpp[sd]|insertps|extractps'
    ;;
aarch64)
    beyond='[su]dot|[su]mmla|usmmla|bf(dot|mmla|mlal[bt]|cvt[a-z0-9]*)|f(add|sub|mul|mla|mls|div)[ \t]+v[0-9]+\.[48]h'
    beyond+='|(ld|st)(add|clr|set|eor|smax|umax)[a-z]*|cas[a-z]*|swp[a-z]*|sqrdml[as]h|crc32[a-z]+|(ld|st)1[bhwd]'
    ;;
*)
    echo "SKIP: no list of this architecture's instructions"
    exit 77
    ;;
esac

# The instructions of an object, as GNU's objdump or LLVM's (which adds sizes to some) prints them.
instructions() {
    "$objdump" -d --no-show-raw-insn "$1" | sed -n 's/^ *[0-9a-f]*: *\t//p'
}
generic=$(find "$build"/CMakeFiles/calla*.dir -name '*.o' ! -path '*/src/cpu/simd/*')
n=0
for object in $generic; do
    found=$(instructions "$object" | grep -E "^($beyond)[bwlq]?\b" | head -3)
    [ -z "$found" ] || fail "$object: instructions beyond the base: $found"
    n=$((n + 1))
done
[ $n -gt 40 ] || fail "only $n generic objects found"

special=$(find "$build"/CMakeFiles/calla_*.dir -path '*/src/cpu/simd/*.o')
n=0
for object in $special; do
    isa=$(expr "$object" : '.*/CMakeFiles/calla_\([a-z0-9_]*\)\.dir/')
    leaked=$("$nm" --defined-only -g "$object" | awk -v isa="$isa" \
        '$2 != "T" || substr($3, length($3) - length(isa)) != "_" isa')
    [ -z "$leaked" ] || fail "$object: symbols other code could take: $leaked"
    n=$((n + 1))
done
[ $n -gt 5 ] || fail "only $n objects of instruction sets found"
# The list finds what it should: kernels do use what they were compiled for.
grep -qE "^($beyond)\b" <(for object in $special; do instructions "$object"; done) ||
    fail "no instruction beyond the base in the kernels either"
finish
