# For tests/scripts/*.sh, which are given PROGRAM BUILD_FOLDER SOURCE_FOLDER and read this first:
#     . "$3/tests/support/command.sh"
# They run in a folder of their own, $work, which goes when they end; `finish` is their last line.
set -u
calla=$1 source=$3
command=       # the command that `refused` runs
input=/dev/null # standard input of `check`
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

fail() {
    echo "FAILED: $*"
    : >"$work/failed" # a file: subshells fail, too
}

# await PID COMMAND...: waits until the command succeeds; fails when the process ends before, or after
# five minutes.
await() {
    local pid=$1 end=$((SECONDS + 300))
    shift
    until "$@"; do
        if ! kill -0 "$pid" 2>/dev/null || [ $SECONDS -gt $end ]; then
            fail "waited in vain for: $*"
            return 1
        fi
        sleep 0.02
    done
}

# Whether the process handles SIGINT. Until it has come so far it ignores it, as all that a script
# starts in the background.
handles_interrupts() {
    local caught
    caught=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null)
    [ -n "$caught" ] && [ $((0x$caught >> 1 & 1)) = 1 ]
}

# check NAME CODE PART COMMAND...: runs it with output in `out` and `err`; its exit code is CODE, and
# its messages hold PART, or there are none if PART is "".
check() {
    local name=$1 expected=$2 part=$3 code=0
    shift 3
    "$@" >out 2>err <"$input" || code=$?
    [ $code = "$expected" ] || fail "$name: exit code $code instead of $expected: $(cat err)"
    if [ -n "$part" ]; then
        grep -qF -- "$part" err || fail "$name: no '$part' in: $(cat err)"
    elif [ -s err ]; then
        fail "$name: unexpected message: $(cat err)"
    fi
}

# refused CODE PART ARGUMENTS...: calla $command ARGUMENTS prints nothing but messages, which hold
# PART; one line of them where it failed (1), with a hint where it was used wrongly (2).
refused() {
    local code=$1 part=$2
    shift 2
    check "calla $command $*" "$code" "$part" "$calla" $command "$@"
    [ -s out ] && fail "calla $command $*: output although refused"
    [ "$code" != 1 ] || [ "$(wc -l <err)" = 1 ] || fail "calla $command $*: not one line: $(cat err)"
}

finish() {
    [ -e "$work/failed" ] && exit 1
    echo ok
    exit 0
}
