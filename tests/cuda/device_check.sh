#!/usr/bin/env bash
# Everything there is to check about the CUDA backend, on a machine with a GPU and nothing else: the
# programs, the libraries they need and the test data are brought along (`make device-bundle`).
#
#   device_check.sh [PROGRAMS SOURCE OUT]
#
# PROGRAMS holds calla, the test programs and shared libraries; SOURCE models/tiny and tests/data;
# without arguments they are beside this script. The report goes to OUT/report.txt (report/), logs
# beside it. Exit code 1 if a step failed. In the environment:
#   CALLA_CHECK_STEPS    a regular expression: only the steps whose names match [all]
#   CALLA_CHECK_SECONDS  a step may take [180]
#   CALLA_CHECK_SCRATCH  where the step "full" may put 20 GB of files [/dev/shm, memory]
# The steps "compare-full", "full" and "bench" take 45 GB of memory and 22 GB of the device's.
set -u
here=$(dirname "$(readlink -f "$0")")
programs=$(readlink -f "${1:-$here/programs}") source=$(readlink -f "${2:-$here/source}")
out=${3:-$here/report}
steps=${CALLA_CHECK_STEPS:-.} limit=${CALLA_CHECK_SECONDS:-180}
scratch=${CALLA_CHECK_SCRATCH:-/dev/shm}
mkdir -p "$out"
out=$(readlink -f "$out")
report=$out/report.txt
: >"$report"
export LD_LIBRARY_PATH=$programs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PATH=$PATH:/usr/local/cuda/bin
export CALLA_TEST_BACKEND=cuda CALLA_TEST_SOURCE=$source
tiny=$source/models/tiny calla=$programs/calla question="What is a river?"
failed=0

say() { printf '%s\n' "$*" | tee -a "$report"; }
show() { sed 's/^/        /' | tee -a "$report"; }
# step NAME LINES COMMAND...: runs it into NAME.log; a line of the report, and the last LINES of the
# log; more where it failed.
step() {
    local name=$1 lines=$2 start=$SECONDS code
    shift 2
    [[ $name =~ $steps ]] || return 0
    timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1
    code=$?
    case $code in
    0) say "ok      $name ($((SECONDS - start)) s)" ;;
    77) say "skipped $name: $(tail -1 "$out/$name.log")" ;;
    *)
        say "FAILED  $name, exit code $code ($((SECONDS - start)) s)"
        failed=1
        [ "$lines" -ge 8 ] || lines=8
        ;;
    esac
    [ "$lines" = 0 ] || tail -n "$lines" "$out/$name.log" | show
}

say "$(date -u '+%Y-%m-%d %H:%M UTC')  $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null)"
say "$("$calla" --version)$([ ! -f "$here/commit" ] || printf ', commit %s' "$(cat "$here/commit")")"

# The kernels, the models and sessions on this backend, failing calls, a thousand requests. The
# model tests run every kernel set of the device: its own and, with isa sm_80, the general ones.
for test in "$programs"/test_*; do step "$(basename "$test")" 0 "$test"; done
grep -h 'requests:\|failures of' "$out"/test_*.log 2>/dev/null | show

# What `make demo BACKEND=cuda` runs.
step demo 2 "$calla" run -m "$tiny" --backend cuda --no-think --greedy --stats -p "$question"

# The same answer every time, with either kernels, and the one the CPU gives.
answer() { "$calla" run -m "$tiny" "$@" --no-think --greedy -p "$question"; }
same_answers() {
    local first
    first=$(answer --backend cuda) || return 1
    echo "$first"
    for _ in 1 2 3; do [ "$(answer --backend cuda)" = "$first" ] || return 1; done
    [ "$(answer --backend cuda --isa sm_80)" = "$first" ] && [ "$(answer --backend cpu)" = "$first" ]
}
export -f answer same_answers
export calla tiny question
step answers 1 bash -c same_answers

# The sanitizer sees the kernels with little work, whole runs, a step submitted behind another, and
# the kernel of all layers. racecheck keeps some gigabyte of records for each launch that it has not
# worked through: launches have to wait for it, or a run fills the machine's memory.
sanitize() {
    local tool=$1 name=$2 wait=()
    shift 2
    [ "$tool" != racecheck ] || wait=(--force-blocking-launches)
    step "$tool-$name" 1 compute-sanitizer --tool "$tool" "${wait[@]}" --error-exitcode 9 "$@"
}
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck initcheck; do
        sanitize $tool kernels "$programs/test_prefill" --small
        for isa in auto sm_80; do
            sanitize $tool "run-$isa" "$calla" run -m "$tiny" --backend cuda --isa $isa --no-think \
                -n 3 --seed 1 -p "$question"
        done
        CALLA_TEST_FILTER='test_steps_ahead' sanitize $tool oracle-a "$programs/test_sequences"
        CALLA_TEST_FILTER='test_*not_finite' sanitize $tool token "$programs/test_token"
        CALLA_TEST_FILTER='test_chain' sanitize $tool chain "$programs/test_token"
    done
else
    say "skipped the sanitizer's steps: no compute-sanitizer"
fi

# Against the reference, and at full size against the CPU's kernels that do not round to bf16: within
# 0.05, of which most is theirs (docs/performance).
step compare-tiny 14 "$programs/compare_backends" --model "$tiny" --reference cpu:f32 \
    --lengths 1,63,512,1500
step compare-full 22 "$programs/compare_backends" --reference cpu:avx512 --tested cuda

# A checkpoint of full size in files that memory holds: the question of `make demo`, how fast it is
# uploaded, and what the device holds besides the weights at 32K tokens of context.
value() { sed -n "s/^ *\"$1\": \([0-9.e+]*\),*$/\1/p" "$out/full.json" | head -1; }
full() {
    local dir=$scratch/calla-check-35b code=1
    rm -rf "$dir"
    "$calla" synth --shape 35b "$dir" &&
        "$calla" run -m "$dir" --backend cuda --ctx 32768 --no-think --greedy --stats -n 32 \
            -p "$question" >"$out/full.run" 2>&1 &&
        "$calla" bench -m "$dir" --backend cuda --ctx 32768 --prefill 512 --decode 512 --repeat 1 \
            --json >"$out/full.json" 2>"$out/full.err" &&
        awk -v weights="$(value weights_bytes)" -v other="$(value other_bytes)" \
            -v seconds="$(value load_seconds)" 'BEGIN {
                printf "opened in %.2f s: %.2f GB/s (wanted: 4)\n", seconds, weights / seconds * 1e-9
                printf "weights %.2f GB, besides %.2f GB: %.1f %% (at most 10)\n",
                       weights * 1e-9, other * 1e-9, 100 * other / weights
                exit !(weights > 0 && other <= weights / 10)
            }' && code=0
    rm -rf "$dir"
    return $code
}
export -f full value
export out scratch
step full 2 bash -c full

step bench 16 "$calla" bench --synth 35b --backend cuda --prefill 512,4096 --decode 512,4096 --repeat 3
step bench-profile 70 "$calla" bench --synth 35b --backend cuda --prefill 512,4096 \
    --decode 512,4096 --repeat 1 --profile
exit $failed
