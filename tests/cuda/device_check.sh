#!/usr/bin/env bash
# Everything there is to check about the CUDA backend, on a machine with a GPU and nothing else: the
# programs are brought along (statically linked CUDA runtime), packages are not needed.
#
#   tests/cuda/device_check.sh PROGRAMS SOURCE OUT [SECONDS]
#
# PROGRAMS holds calla, the test programs and the shared libraries they need; SOURCE is this
# repository (test data, models/tiny); the report goes to OUT/report.txt, logs beside it. Each step
# may take SECONDS (120). Exit code 1 if a step failed.
set -u
programs=$(readlink -f "$1") source=$(readlink -f "$2") out=$3 limit=${4:-120}
mkdir -p "$out"
out=$(readlink -f "$out")
report=$out/report.txt
: >"$report"
export LD_LIBRARY_PATH=$programs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export CALLA_TEST_BACKEND=cuda CALLA_TEST_SOURCE=$source
failed=0

say() { printf '%s\n' "$*" | tee -a "$report"; }
# step NAME COMMAND...: runs it into NAME.log; one line of the report.
step() {
    local name=$1 start=$SECONDS code
    shift
    timeout "$limit" "$@" >"$out/$name.log" 2>&1
    code=$?
    case $code in
    0) say "ok      $name ($((SECONDS - start)) s)" ;;
    77) say "skipped $name: $(tail -1 "$out/$name.log")" ;;
    *)
        say "FAILED  $name, exit code $code ($((SECONDS - start)) s)"
        tail -5 "$out/$name.log" | sed 's/^/        /' | tee -a "$report"
        failed=1
        ;;
    esac
}

say "$(date -u '+%Y-%m-%d %H:%M UTC')  $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null)"
say "$("$programs/calla" --version)"

for test in "$programs"/test_*; do step "$(basename "$test")" "$test"; done

# The same answer every time, and the one the CPU gives.
answer() {
    "$programs/calla" run -m "$source/models/tiny" --backend "$1" --no-think --greedy -p "What is a river?"
}
same_answers() {
    local first
    first=$(answer cuda) || return 1
    echo "$first"
    for _ in 1 2 3; do [ "$(answer cuda)" = "$first" ] || return 1; done
    [ "$(answer cpu)" = "$first" ]
}
step answers same_answers

if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck initcheck; do
        step "sanitizer-$tool" compute-sanitizer --tool $tool --error-exitcode 9 \
            "$programs/calla" run -m "$source/models/tiny" --backend cuda --no-think -n 6 --seed 1 \
            -p "What is a river?"
    done
else
    say "skipped compute-sanitizer: not there"
fi

if [ "${CALLA_CHECK_BENCH:-1}" = 1 ]; then
    for flags in "" --profile; do
        step "bench$flags" "$programs/calla" bench --synth 35b --backend cuda --prefill 512,4096 \
            --decode 512,4096 --repeat 3 $flags
        sed 's/^/        /' "$out/bench$flags.log" | tail -60 | tee -a "$report"
    done
fi
exit $failed
