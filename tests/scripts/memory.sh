#!/usr/bin/env bash
# In a control group with less memory than a command wants, it says so with the numbers and ends by
# itself: memory that is not there is given all the same, and the process that touches it is killed.
. "$3/tests/support/command.sh"

if grep -q '^CALLA_SANITIZE:STRING=.' "$2/CMakeCache.txt"; then
    echo "SKIP: a sanitizer takes more memory than the groups have"
    exit 77
fi

# A group of our own, where that is allowed: version 2, else 1.
root=/sys/fs/cgroup limit=memory.max
[ -f $root/cgroup.controllers ] || root=$root/memory limit=memory.limit_in_bytes
group=$root/calla-test-$$
# within MEGABYTES COMMAND...: runs it in the group.
within() {
    echo $(($1 << 20)) >"$group/$limit" || return 99
    shift
    bash -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$@"
}

mkdir "$group" 2>/dev/null && trap 'rmdir "$group"; rm -rf "$work"' EXIT
within 150 true 2>/dev/null || {
    echo "SKIP: no memory control group may be made here"
    exit 77
}

tiny=$source/models/tiny
check "an answer" 0 "" within 150 "$calla" run -m "$tiny" --no-think --greedy -n 4 --ctx 256 -p Hello
[ -s out ] || fail "an answer: none"
check "besides the weights" 1 "this control group has 0.02 GB" within 20 \
    "$calla" run -m "$tiny" -p Hello
check "measuring" 1 "measuring how fast memory is read takes" within 150 \
    "$calla" bench -m "$tiny" --prefill 16 --decode 16 --steps 2 --repeat 1
check "made in memory" 1 "the model needs 19." within 150 "$calla" bench --synth 35b --prefill 16
check "a long context" 1 "a context of 65537 tokens needs" within 150 \
    "$calla" bench -m "$tiny" --prefill 64K
[ "$(wc -l <err)" = 1 ] || fail "a long context: not one line: $(cat err)"

finish
