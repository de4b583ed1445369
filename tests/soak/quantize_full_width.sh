#!/usr/bin/env bash
# Quantizes one layer of the 35B at full width (an expert tensor of 1.07 GB) and checks that memory
# stays below 2 GB whatever the tensor's size. Needs 5 GB of disk below ${TMPDIR:-/tmp}.
# usage: quantize_full_width.sh PROGRAM
set -euo pipefail
calla=$1
dir=$(mktemp -d "${TMPDIR:-/tmp}/calla-soak-XXXXXX")
trap 'rm -rf "$dir"' EXIT
free_kb=$(df -Pk "$dir" | awk 'NR==2 {print $4}')
if [ "$free_kb" -lt 5500000 ]; then
    echo "SKIP: $free_kb KB free below $dir, 5500000 are needed"
    exit 77
fi

"$calla" synth --shape 35b --layers 1 --layout bf16 "$dir/bf16"
start=$(date +%s.%N)
"$calla" quantize "$dir/bf16" "$dir/mlx4" &
pid=$!
peak=0
while kb=$(awk '/^VmHWM/ {print $2}' "/proc/$pid/status" 2>/dev/null) && [ -n "$kb" ]; do
    peak=$kb
    sleep 0.02
done
wait "$pid"
end=$(date +%s.%N)

bytes=$(du -sb "$dir/bf16" | cut -f1)
awk -v b="$bytes" -v s="$start" -v e="$end" -v p="$peak" 'BEGIN {
    printf "%.2f GB in %.1f s, peak memory %.0f MB\n", b / 1e9, e - s, p / 1e3 }'
"$calla" info -m "$dir/mlx4" >/dev/null
if [ "$peak" -ge 2000000 ]; then
    echo "peak memory of $peak KB is 2 GB or more"
    exit 1
fi
