#!/usr/bin/env bash
# What all commands have in common: --help, --version, exit codes, messages about options.
. "$3/tests/support/command.sh"

# usage_error PART ARGUMENTS...
usage_error() { refused 2 "$@"; }

usage_error "usage: calla COMMAND"
check "--help" 0 "" "$calla" --help
commands=$(sed -n '/^commands:$/,/^$/s/^  \([a-z]*\) .*/\1/p' out)
[ "$(echo "$commands" | wc -w)" -ge 8 ] || fail "calla --help names these commands: $commands"
check "--version" 0 "" "$calla" --version
grep -qE '^calla [0-9]+\.[0-9]+\.[0-9]+$' out || fail "--version: $(cat out)"
cp out version
grep -qx "Version: $(cut -d' ' -f2 version)" "$2/calla.pc" || fail "calla.pc: $(cat "$2/calla.pc")"
usage_error "unknown command 'frobnicate'" frobnicate
usage_error "unknown command '--frobnicate'" --frobnicate

# Within a group of letters the argument at fault is not the one before getopt's index.
model=$source/models/tiny
for letters in -zq -qz; do
    letter=${letters:1:1}
    usage_error "unknown option '-$letter'" run -m "$model" -p x --json $letters
    usage_error "unknown option '-$letter'" run -m "$model" -p x --temp=0.5 $letters
done
usage_error "unknown option '-\\xc3'" run -m "$model" -p x -é
# Nothing that a message quotes can break its line or reach the terminal as a command.
odd=$(printf 'a\nb\033[31mc')
usage_error "'a?b?[31mc' is not a whole number" run -m "$model" -p x --ctx "$odd"
usage_error "unknown command 'a?b?[31mc'" "$odd"
for arguments in "info -m" "run -p x -m" "tokenize -p x -m" "run -m $model -f" "run -m $model --messages" \
    "eval -m $model --ids" "logits -m $model -o x --ids"; do
    read -r -a words <<<"$arguments"
    refused 1 'a?b?[31mc' "${words[@]}" "$odd"
done

# The man page and the README name every command, the man page every option of the engine.
sed 's/\\-/-/g' "$source/docs/calla.1" >man
for name in $commands; do
    grep -qx "\.B $name" man || fail "the man page does not explain $name"
    grep -q "^| .calla $name. |" "$source/README.md" || fail "the README does not name $name"
done
"$calla" run --help | sed -n '/^engine:/,/^$/p' | grep -oE -- '--[a-z]+ [A-Z]+' >engine
[ "$(wc -l <engine)" -ge 7 ] || fail "run --help lists these options of the engine: $(cat engine)"
while read -r option _; do
    grep -qE "^\.B[IR] .*$option( |$)" man || fail "the man page does not explain $option"
done <engine

for name in $commands; do
    check "$name --help" 0 "" "$calla" "$name" --help
    grep -q "^usage: calla $name " out || fail "$name --help: $(cat out)"
    awk 'length > 100' out | grep . && fail "$name --help: lines too long"
    cp out help
    check "$name -h" 0 "" "$calla" "$name" -h
    cmp -s out help || fail "$name: -h is not --help"
    check "$name --version" 0 "" "$calla" "$name" --version
    cmp -s out version || fail "$name --version: $(cat out)"
    usage_error "calla $name: unknown or ambiguous option '--frobnicate'" "$name" --frobnicate
    usage_error "option '--help=1' takes no value" "$name" --help=1
    # Every option of the help is known, and says so when its value is missing.
    for option in $(grep -oE '^  (-[a-zA-Z],|   ) --[a-z-]+ [A-Z:]+' help | grep -oE -- '--[a-z-]+'); do
        usage_error "calla $name: option '$option' needs a value" "$name" "$option"
    done
done

finish
