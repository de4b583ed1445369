#!/usr/bin/env bash
# calla bench: options, the fields of its outputs, and the digest, which nothing but the points and
# the model may change. No timing is judged: machines are busy. Each start measures the machine, which
# takes a gigabyte and seconds, so a start checks all it can.
. "$3/tests/support/command.sh"
command=bench

refused 2 "give one of -m DIR and --synth" --prefill 16
refused 2 "give one of -m DIR and --synth" --synth tiny -m x
refused 2 "give one of --csv and --json" --synth tiny --csv --json
refused 2 "'x' is not a whole number" --synth tiny --prefill 16,x
refused 2 "'' is not a whole number" --synth tiny --decode 16,
refused 2 "'9' is not a whole number from 1 to 8" --synth tiny --sequences 9
refused 2 "'1K' is not a whole number from 1 to 8" --synth tiny --sequences 1K
refused 2 "these points need 230 tokens, not 100" --synth tiny --decode 100 --ctx 100 \
    --steps 40 --repeat 3
refused 2 "--seed needs --synth" -m "$source/models/tiny" --seed 4 --prefill 16
refused 2 "unexpected argument 'x'" --synth tiny x
refused 1 "unknown shape 7b" --synth 7b --prefill 16
refused 1 "cannot open directory nowhere:" -m nowhere --prefill 16
refused 1 "the model allows 1 to 32768" --synth tiny --prefill 64K
"$calla" bench --help | grep -q -- "--max-seconds" || fail "--help"

# ---- JSON ----
points=(--prefill 16,40 --decode 16,60 --steps 5 --repeat 2 --sequences 2)
"$calla" bench --synth tiny "${points[@]}" --json --threads 1 >one 2>err || fail "json: $(cat err)"
[ "$(tail -c 2 one | od -An -c | tr -d ' ')" = '}\n' ] || fail "json: its last line does not end"
[ -s err ] && fail "messages: $(cat err)"
# number KEY N: the key comes N times, each time with a number above zero
number() {
    local n
    n=$(grep -cE "^ *\"$1\": ([1-9][0-9]*(\.[0-9]+)?|0\.[0-9]*[1-9][0-9]*|[1-9](\.[0-9]+)?e[-+]?[0-9]+),?$" one)
    [ "$n" = "$2" ] || fail "$1: $n numbers instead of $2: $(grep "\"$1\"" one)"
}
for key in read_bytes_per_second matrix_operations_per_second weights_bytes other_bytes \
    peak_resident_bytes load_seconds; do
    number $key 1
done
for key in fraction_of_matrix_rate operations_per_second fraction_of_read_bandwidth \
    bytes_per_second; do
    number $key 2
done
for key in tokens_per_second slowest fastest runs sequences; do number $key 4; done
[ "$(tr -d ' \n' <one | grep -oE '"prefill":\[|"decode":\[' | wc -l)" = 2 ] || fail "the lists"
[ "$(grep -oE '"(tokens|context)": [0-9]+' one | tr '\n' ' ')" = \
    '"tokens": 16 "tokens": 40 "context": 16 "context": 60 ' ] || fail "points: $(cat one)"
grep -qE '"skipped": \[\]' one || fail "skipped: $(cat one)"
[ "$(grep -cE '"digest": "[0-9a-f]{16}"' one)" = 5 ] || fail "digests: $(cat one)"

# ---- the digest ----
digests() { grep -o '"digest": "[0-9a-f]*"' "$1"; }
digests one >expected
same() {
    local name=$1
    shift
    "$calla" bench "$@" --json >other 2>err || fail "$name: $(cat err)"
    digests other | cmp -s - expected || fail "$name: other tokens"
}
same "two threads, small chunks" --synth tiny "${points[@]}" --threads 2 --chunk 7
"$calla" synth --shape tiny model 2>err || fail "synth: $(cat err)"
same "from files, one run, profiled" -m model "${points[@]}" --repeat 1 --profile
grep -q '"name": "gdn scan"' other || fail "no profile"
"$calla" bench --synth tiny --seed 1 "${points[@]}" --repeat 1 --json >other 2>err
digests other | cmp -s - expected && fail "another seed gave the same tokens"

# ---- other forms ----
several=(--synth tiny --prefill 40 --decode 16,60 --steps 3 --repeat 1 --csv)
"$calla" bench "${several[@]}" --sequences 3,1 >out 2>err || fail "csv: $(cat err)"
[ "$(cut -d, -f1-4 out | tr '\n' ' ')" = "kind,tokens,sequences,runs read,,, matrix,,, \
prefill,40,1,1 decode,16,1,1 decode,16,3,1 decode,60,1,1 decode,60,3,1 " ] || fail "csv: $(cat out)"
[ "$(awk -F, '{print NF}' out | sort -u)" = 11 ] || fail "csv columns: $(cat out)"
"$calla" bench "${several[@]}" --sequences 3 >other 2>err || fail "sequences: $(cat err)"
[ "$(grep decode other | cut -d, -f2,3,11)" = "$(grep "decode,[0-9]*,3," out | cut -d, -f2,3,11)" ] ||
    fail "sequences: other tokens in company: $(cat out other)"
"$calla" bench --synth tiny --decode 16 --steps 3 --repeat 1 --profile >out 2>err ||
    fail "table: $(cat err)"
for line in '^decode +16 +1 +[0-9.]+ ' '^  routed experts +[0-9.]+' '^digest [0-9a-f]{16}$' \
    '^the machine reads .*B/s and multiplies .*FLOP/s$'; do
    grep -qE "$line" out || fail "table without '$line': $(cat out)"
done

# ---- what does not fit or takes too long ----
"$calla" bench --synth tiny --prefill 16,16K --repeat 1 --max-seconds 0 --json >out 2>err ||
    fail "max-seconds: $(cat err)"
grep -qE '"why": "about ([0-9]\.[0-9]{2}|[0-9]{2,}) s, --max-seconds is 0"' out ||
    fail "not skipped: $(cat out)"
grep -q '"tokens": 16,\?$' out || fail "the first point is always measured: $(cat out)"
"$calla" bench -m "$source/tests/data/oracle-a/mlx4" --ctx 700 --steps 2 --repeat 1 --json \
    >out 2>err || fail "default points: $(cat err)"
grep -q '"why": "beyond the context"' out || fail "default points: $(cat out)"
grep -q '"context": 512' out || fail "default points: $(cat out)"

# ---- interrupted: what was measured is printed ----
"$calla" bench --synth tiny --prefill 16,31K --max-seconds 100000 --repeat 100 --steps 2 >out 2>err &
pid=$!
await $pid handles_interrupts $pid
sleep 2 # in which something may be measured
kill -INT $pid
code=0
wait $pid || code=$?
[ $code = 130 ] || fail "interrupted: exit $code, $(cat err)"
[ ! -s out ] || grep -q interrupted out || fail "interrupted: $(cat out)"
! grep -q '^digest 0*$' out || fail "a digest of nothing: $(cat out)"

# ---- comparing, where there is Python ----
if command -v python3 >/dev/null; then
    compare() { python3 "$source/bench/compare.py" "$@"; }
    line() { grep -qE "$1" out || fail "compare: no '$1' in: $(cat out)"; }
    cat >fast <<'REPORT'
{"version": "1", "backend": "cpu", "isa": "c", "threads": 2, "weights_bytes": 19500000000,
 "prefill": [{"tokens": 40, "tokens_per_second": 50.0, "fraction_of_matrix_rate": 0.5}],
 "decode": [{"context": 1, "sequences": 1, "tokens_per_second": 8.0,
             "fraction_of_read_bandwidth": 0.8}]}
REPORT
    sed 's/50\.0/60.0/; s/0\.5/0.75/' fast >other
    # two reports of one command: a prompt, and tokens at no context (1 of calla's) and at 60
    cat >peer <<'REPORT'
[{"n_prompt": 40, "n_gen": 0, "n_depth": 0, "avg_ts": 10.0, "build_commit": "abc",
  "model_type": "m", "model_size": 20000000000, "n_threads": 2}]
[{"n_prompt": 0, "n_gen": 5, "n_depth": 0, "avg_ts": 2.0},
 {"n_prompt": 0, "n_gen": 5, "n_depth": 60, "avg_ts": 20.0}]
REPORT
    compare --rounds 2 --save runs 'cat fast' 'cat other' 'cat peer' >out 2>err ||
        fail "compare: $(cat err)"
    line '^ *calla 1, cpu c, 2 threads, 19\.50 GB$'
    line '^ *llama-bench abc, m, 2 threads, 20\.00 GB$'
    line '^prefill +40 +50\.00 +60\.00 +10\.00 +5\.00 +6\.00 +\(0\.0 %, 0\.0 %, 0\.0 %\)$'
    line '^decode +1 +8\.00 +8\.00 +2\.00 +4\.00 +4\.00 '
    line '^decode +60 +- +- +20\.00 +- +- '
    # the higher limit counts: 100 of 50 / 0.5 and 60 / 0.75
    line '^prefill +40 +50\.0 +60\.0 +10\.0 +100\.0 tokens/s$'
    line '^decode +1 +80\.0 +80\.0 +20\.0 +10\.0 tokens/s$'
    [ "$(ls runs | tr '\n' ' ')" = "01A.json 01B.json 01C-2.json 01C.json 02A.json 02B.json \
02C-2.json 02C.json " ] || fail "compare: $(ls runs)"
    points=(--prefill 40 --decode 60 --steps 5 --repeat 1)
    compare --rounds 1 "$calla bench --synth tiny ${points[*]} --json" 'cat peer' >out 2>err ||
        fail "compare: $(cat err)"
    line '^prefill +40 +[0-9.]+ +10\.00 +[0-9.]+ '
    line '^decode +60 +[0-9.]+ +20\.00 +[0-9.]+ '
    not_compared() {
        local part=$1
        shift
        compare --rounds 2 "$@" >out 2>err && fail "compare $*: not refused"
        grep -qF -- "$part" err || fail "compare $*: no '$part' in: $(cat err)"
    }
    not_compared "give two to eight commands" 'cat fast'
    not_compared "exit code 3: exit 3" 'cat fast' 'exit 3'
    not_compared "exit code 1: false; cat peer" 'cat fast' 'false; cat peer'
    not_compared "not JSON" 'cat fast' 'echo x'
    not_compared "no output: true" 'cat fast' 'true'
    not_compared "prefill 40 came twice" 'cat fast fast' 'cat peer'
    not_compared "A has decode 1 in some rounds only" \
        'if [ -e second ]; then echo "[]"; else touch second; cat peer; fi' 'cat peer'
    not_compared "the peer has no point of the others" 'cat fast' 'echo "[]"'
fi

finish
