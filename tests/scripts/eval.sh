#!/usr/bin/env bash
# calla eval: its figures against those computed from calla logits, and against itself.
. "$3/tests/support/command.sh"
model=$source/tests/data/oracle-a/mlx4
ids=$source/tests/data/oracle-a/ids.txt

figure() { grep -o "\"$1\": [-+0-9.e]*" out | head -1 | cut -d' ' -f2; }
# close A B TOLERANCE
close() { awk -v a="$1" -v b="$2" -v t="$3" 'BEGIN { d = a - b; exit !(d <= t && d >= -t) }'; }

eval=("$calla" eval -m "$model" --ids "$ids")
check "help" 0 "" "$calla" eval --help
check "no text" 2 "give either -f FILE or --ids FILE" "$calla" eval -m "$model"
check "both" 2 "give either -f FILE or --ids FILE" "${eval[@]}" -f x
check "margin alone" 2 "--margin needs one of the --against" "${eval[@]}" --margin 1
check "ids have no control text" 2 "--allow-control-tokens goes with -f" "${eval[@]}" --allow-control-tokens
check "no tokenizer" 1 "tokenizer.json" "$calla" eval -m "$model" -f "$ids"

# Windows of 64, 64 and 22 tokens: 147 predictions. The same sum from the logits of each window.
check "json" 0 "" "${eval[@]}" --ctx 64 --json
[ "$(figure scored)" = 147 ] || fail "scored: $(cat out)"
nll=$(figure nll)
expected=0
read -r -a all <"$ids"
for start in 0 64 128; do
    window=("${all[@]:start:64}")
    echo "${window[@]}" >window
    "$calla" logits -m "$model" --ids window --out window.bin || fail "logits"
    sum=$(od -An -v -tf4 -w1280 window.bin | awk -v ids="${window[*]}" '
        BEGIN { n = split(ids, id, " ") }
        NR < n { max = $1; for (i = 2; i <= NF; i++) if ($i > max) max = $i
                 total = 0; for (i = 1; i <= NF; i++) total += exp($i - max)
                 nll += log(total) + max - $(id[NR + 1] + 1) }
        END { printf "%.9f", nll }')
    expected=$(awk -v a="$expected" -v b="$sum" 'BEGIN { printf "%.9f", a + b }')
done
expected=$(awk -v a="$expected" 'BEGIN { printf "%.9f", a / 147 }')
close "$nll" "$expected" 1e-5 || fail "nll $nll instead of $expected"

# A last window of one token predicts nothing.
check "odd window" 0 "" "${eval[@]}" --ctx 149 --json
[ "$(figure windows)" = 1 ] && [ "$(figure scored)" = 148 ] || fail "odd window: $(cat out)"

check "against itself" 0 "" "${eval[@]}" --ctx 64 --json --against "$model"
[ "$(figure max_kl)" = 0.0 ] && [ "$(figure same_top_percent)" = 100.0 ] &&
    [ "$(figure perplexity_change_percent)" = 0.0 ] || fail "against itself: $(cat out)"
check "against the reference" 0 "" "${eval[@]}" --ctx 64 --json --against-isa f32 --isa c
close "$(figure perplexity_change_percent)" 0 0.5 || fail "against f32: $(cat out)"
check "decode against prefill" 0 "" "${eval[@]}" --ctx 64 --json --against-isa f32 --isa f32 --decode
close "$(figure mean_kl)" 0 1e-6 || fail "decode against prefill: $(cat out)"
[ "$(figure same_top_percent)" = 100.0 ] || fail "decode against prefill: $(cat out)"
check "two layouts of one model" 0 "" "${eval[@]}" --ctx 64 --json --isa f32 \
    --against "$source/tests/data/oracle-a/bf16"
check "text report" 0 "" "${eval[@]}" --ctx 64 --against-backend cpu
grep -q "^perplexity    [0-9]" out || fail "report: $(cat out)"

# Text: control tokens are tokens only if asked for.
head -c 20000 "$source/models/tiny/heldout.txt" >text
tiny=("$calla" eval -m "$source/models/tiny" -f text --ctx 256 --json)
check "text" 0 "" "${tiny[@]}"
plain=$(figure tokens)
check "control tokens" 0 "" "${tiny[@]}" --allow-control-tokens
[ "$(figure tokens)" -lt "$plain" ] || fail "control tokens: $(figure tokens), plain text $plain"
awk -v p="$(figure perplexity)" 'BEGIN { exit !(p > 1 && p < 40) }' || fail "perplexity: $(cat out)"

echo "1 2 3 4 320" >bad
check "id out of range" 1 "bad: token 4 is 320, outside 0 ... 319" "$calla" eval -m "$model" --ids bad
echo "1" >bad
check "too short" 1 "bad: 1 tokens in windows of" "$calla" eval -m "$model" --ids bad
check "reference missing" 1 "nowhere" "${eval[@]}" --against nowhere
check "reference backend" 1 "backend 'abacus'" "${eval[@]}" --against-backend abacus
check "window too long" 1 "the model allows 1 to 4096" "${eval[@]}" --ctx 5000

finish
