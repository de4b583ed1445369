#!/usr/bin/env bash
# What all commands have in common: --help, --version, exit codes, messages about options.
# usage: commands.sh PROGRAM BUILD_FOLDER SOURCE_FOLDER
set -u
calla=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

# check CODE ARGUMENTS...: runs calla with output in out and err
check() {
    local expected=$1
    shift
    "$calla" "$@" >out 2>err </dev/null
    local code=$?
    [ $code = "$expected" ] || fail "calla $*: exit code $code instead of $expected: $(cat err)"
}
# usage_error TEXT ARGUMENTS...: refused with TEXT, and nothing on standard output
usage_error() {
    local text=$1
    shift
    check 2 "$@"
    grep -qF -- "$text" err || fail "calla $*: no '$text' in: $(cat err)"
    [ -s out ] && fail "calla $*: output although refused"
}

check 2
check 0 --help
commands=$(sed -n '/^commands:$/,/^$/s/^  \([a-z]*\) .*/\1/p' out)
[ "$(echo "$commands" | wc -w)" -ge 8 ] || fail "calla --help names these commands: $commands"
check 0 --version
grep -qE '^calla [0-9]+\.[0-9]+\.[0-9]+$' out || fail "--version: $(cat out)"
cp out version
usage_error "unknown command 'frobnicate'" frobnicate
usage_error "unknown command '--frobnicate'" --frobnicate

for command in $commands; do
    check 0 "$command" --help
    [ -s err ] && fail "$command --help: $(cat err)"
    grep -q "^usage: calla $command " out || fail "$command --help: $(cat out)"
    awk 'length > 100' out | grep . && fail "$command --help: lines too long"
    cp out help
    check 0 "$command" -h
    cmp -s out help || fail "$command: -h is not --help"
    check 0 "$command" --version
    cmp -s out version || fail "$command --version: $(cat out)"
    usage_error "calla $command: unknown or ambiguous option '--frobnicate'" "$command" --frobnicate
    usage_error "option '--help=1' takes no value" "$command" --help=1
    # Every option of the help is known, and says so when its value is missing.
    for option in $(grep -oE '^  (-[a-zA-Z],|   ) --[a-z-]+ [A-Z:]+' help | grep -oE -- '--[a-z-]+'); do
        usage_error "calla $command: option '$option' needs a value" "$command" "$option"
    done
done

[ $failures = 0 ] && echo "ok"
exit $((failures > 0))
