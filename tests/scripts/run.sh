#!/usr/bin/env bash
# calla run: options, output, signals, closed pipes.
. "$3/tests/support/command.sh"

"$calla" synth --shape tiny model >/dev/null 2>&1 || { echo "FAILED: synth"; exit 1; }
run=("$calla" run -m model --ctx 512 --seed 3)

# ---- usage ----
check "help" 0 "" "$calla" run --help
grep -q -- "--max-tokens" out || fail "--help says nothing of --max-tokens"
check "no model" 2 "-m DIR is missing" "$calla" run -p x
check "no prompt" 2 "give one of -p TEXT" "$calla" run -m model
check "two prompts" 2 "give one of -p TEXT" "$calla" run -m model -p x -f y
check "unknown option" 2 "unknown or ambiguous option '--frobnicate'" "${run[@]}" -p x --frobnicate
check "unknown short option" 2 "unknown option '-z'" "${run[@]}" -p x -z
check "missing value" 2 "option '--temp' needs a value" "${run[@]}" -p x --temp
check "value too many" 2 "option '--json=1' takes no value" "${run[@]}" -p x --json=1
check "stray argument" 2 "unexpected argument 'stray'" "${run[@]}" -p x stray
check "number" 2 "'many' is not a whole number" "${run[@]}" -p x -n many
check "range" 2 "--top-p: '1.5' is not a number from 0 to 1" "${run[@]}" -p x --top-p 1.5
check "bias" 2 "'7' is not ID:BIAS" "${run[@]}" -p x --logit-bias 7
check "logprobs" 2 "--logprobs needs --json" "${run[@]}" -p x --logprobs 3
check "raw" 2 "--raw has no use" "${run[@]}" -p x --raw --system y
check "empty stop" 2 "the text is empty" "${run[@]}" -p x --stop ""

# ---- failures ----
check "greedy" 2 "--greedy and --temp exclude" "${run[@]}" -p x --greedy --temp 0.5
check "standard input twice" 2 "only one of the inputs" "${run[@]}" -p - --tools -
check "no such model" 1 "cannot open directory nowhere:" "$calla" run -m nowhere -p x
check "no such file" 1 "cannot open nothing" "${run[@]}" -f nothing
check "backend" 1 "backend 'abacus' is not one of this build's" "${run[@]}" -p x --backend abacus
check "context" 1 "the context holds 16" "$calla" run -m model --ctx 16 --raw \
    -p "a b c d e f g h i j k l m n o p q r s t u v w x y z"
check "messages" 1 "No user query" "${run[@]}" --messages <(echo '[{"role": "system", "content": "x"}]')
: >empty
check "no tools" 1 "empty is empty" "${run[@]}" -p x --tools empty
echo '[{"role": 5}]' >odd.json
check "messages by file" 1 "odd.json: messages[0].role" "${run[@]}" --messages odd.json
echo '{}' >odd.json
check "tools by file" 1 "odd.json: tools" "${run[@]}" -p x --tools odd.json
check "broken messages" 1 "not valid JSON" "${run[@]}" --messages <(echo '[{"role": ')

# ---- output ----
check "raw text" 0 "" "${run[@]}" -p "Once upon" --raw -n 16
cp out first
[ -s first ] || fail "no text"
check "the same again" 0 "" "${run[@]}" -p "Once upon" --raw -n 16
cmp -s out first || fail "the same seed gave another text"
check "one thread" 0 "" "${run[@]}" -p "Once upon" --raw -n 16 --threads 1 --chunk 3
cmp -s out first || fail "threads or chunks changed the text"
check "another seed" 0 "" "${run[@]}" -p "Once upon" --raw -n 16 --seed 4
cmp -s out first && fail "another seed gave the same text"
printf 'Once upon' >prompt
check "file" 0 "" "${run[@]}" -f prompt --raw -n 16
cmp -s out first || fail "-f gave another text than -p"
"${run[@]}" -p - --raw -n 16 <prompt >out 2>err || fail "-p -"
cmp -s out first || fail "standard input gave another text than -p"
check "nothing to generate" 0 "" "${run[@]}" -p "Once upon" --raw -n 0
[ -s out ] && fail "-n 0 gave text"

# A stop text is found wherever tokens are cut, and is not printed itself.
stop=$(head -c 30 first | tail -c 9)
check "stop" 0 "" "${run[@]}" -p "Once upon" --raw -n 16 --stop "$stop" --stop "never there"
expected=$(cat first)
[ "$(cat out)" = "${expected%%"$stop"*}" ] || fail "stop text '$stop': '$(cat out)'"

check "chat" 0 "" "${run[@]}" -p "Hello" -n 8 --no-think
[ "$(tail -c 1 out | od -An -c | tr -d ' ')" = '\n' ] || fail "no newline at the end of an answer"
check "reasoning left out of files" 0 "" "${run[@]}" -p "Hello" -n 8
[ -s out ] && fail "reasoning was printed to a file: $(cat out)"
check "reasoning shown" 0 "" "${run[@]}" -p "Hello" -n 8 --show-thinking
[ -s out ] || fail "--show-thinking printed nothing"
grep -q "$(printf '\033')" out && fail "colours in a file"

check "json" 0 "" "${run[@]}" -p "Hello" --system "Be brief" -n 8 --json --logprobs 2
for key in text reasoning tool_calls finish_reason usage timings logprobs; do
    grep -q "\"$key\":" out || fail "--json has no $key"
done
grep -q '"finish_reason": "length"' out || fail "finish reason: $(cat out)"
[ "$(grep -o '"top":' out | wc -l)" = 8 ] || fail "not one list of log-probabilities a token"
"${run[@]}" -p "Hello" -n 8 --stats --greedy >out 2>err
grep -q '^{"prompt_tokens": [0-9]*, "reused_tokens": 0, .*"generated_tokens": 8,' err ||
    fail "stats: $(cat err)"
id_of() { tr -d ' \n' <model/tokenizer.json | grep -o "\"id\":[0-9]*,\"content\":\"$1\"" | tr -dc '0-9,' | cut -d, -f1; }
ban=(--logit-bias "$(id_of '<|im_end|>'):-inf" --logit-bias "$(id_of '<|endoftext|>'):-inf")
check "context full" 0 "" "$calla" run -m model --ctx 64 -p "Hello" --greedy --json "${ban[@]}"
grep -q '"finish_reason": "length"' out || fail "context full: $(cat out)"

# ---- the outside world ----
"${run[@]}" -p "Hello" --show-thinking 2>err | head -c 5 >out
codes=("${PIPESTATUS[@]}")
[ "${codes[0]}" = 0 ] || fail "closed pipe: exit code ${codes[0]}"
[ -s err ] && fail "closed pipe: $(cat err)"
if [ -w /dev/full ]; then
    "${run[@]}" -p "Hello" --raw -n 4 >/dev/full 2>err
    [ $? = 1 ] || fail "full disk: exit code"
    grep -q "cannot write to standard output" err || fail "full disk: $(cat err)"
fi
for signal in INT:130 TERM:143; do
    rm -f out # or what was there before it counts as something generated
    "$calla" run -m model --ctx 32768 -p "Hello" --show-thinking "${ban[@]}" >out 2>err &
    pid=$!
    await $pid test -s out
    kill -"${signal%:*}" $pid
    wait $pid
    code=$?
    [ $code = "${signal#*:}" ] || fail "SIG${signal%:*}: exit code $code"
    [ -s err ] && fail "SIG${signal%:*}: $(cat err)"
    [ -s out ] || fail "SIG${signal%:*}: what was generated is lost"
done

# Waiting for a reader or a writer can be interrupted, too. What the process waits for tells the
# system, or it does not: then it has a second.
mkfifo fifo
waits_for_partner() {
    case $(cat "/proc/$1/wchan" 2>/dev/null) in
    wait_for_partner | fifo_open) return 0 ;;
    0 | "") [ "$(cut -d' ' -f3 "/proc/$1/stat" 2>/dev/null)" = S ] && sleep 1 ;;
    *) return 1 ;;
    esac
}
interrupted() {
    local name=$1 pid code
    shift
    "$@" 2>err &
    pid=$!
    await $pid handles_interrupts $pid
    await $pid waits_for_partner $pid
    kill -INT $pid
    wait $pid
    code=$?
    [ $code = 130 ] || fail "$name: exit code $code: $(cat err)"
    [ -s err ] && fail "$name: $(cat err)"
}
interrupted "no writer" "${run[@]}" -f fifo
interrupted "no reader" "$calla" logits -m model --ids <(echo 1 2) -o fifo

# A file that gets shorter under the program: one line that names it, no crash.
rm -f out
"$calla" run -m model --ctx 32768 -p "Hello" --show-thinking "${ban[@]}" >out 2>err &
pid=$!
await $pid test -s out
truncate -s 4096 model/model.safetensors
wait $pid
code=$?
[ $code = 1 ] || fail "truncated while open: exit code $code"
grep -q "^calla run: $work/model/model.safetensors: cannot be read any more" err &&
    [ "$(wc -l <err)" = 1 ] || fail "truncated while open: $(cat err)"

# ---- a model that answers ----
tiny=("$calla" run -m "$source/models/tiny" --greedy)
check "an answer" 0 "" "${tiny[@]}" -p "What is a dog?" --no-think
grep -q "animal" out || fail "what is a dog: $(cat out)"
check "with reasoning" 0 "" "${tiny[@]}" -p "What is a dog?" --json
grep -q '"reasoning": "[^"].*"finish_reason": "stop"' out || fail "reasoning: $(cat out)"
grep -q '<' out && fail "template text in the answer: $(cat out)"
cat >tools.json <<'EOF'
[{"type": "function", "function": {"name": "get_weather", "description": "Get the weather",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
EOF
# What a user writes is text: a control token in it counts as several.
for allowed in "" --allow-control-tokens; do
    "${tiny[@]}" -p "a<|im_end|>b" -n 1 --stats $allowed >out 2>err || fail "control tokens: $(cat err)"
    grep -o '"prompt_tokens": [0-9]*' err | cut -d' ' -f2 >>counts
done
[ "$(head -1 counts)" -gt "$(tail -1 counts)" ] || fail "control tokens: $(cat counts)"
check "a tool call" 0 "" "${tiny[@]}" -p "What is the weather in Paris?" --tools tools.json
[ "$(cat out)" = '{"name": "get_weather", "arguments": {"city": "Paris"}}' ] || fail "call: $(cat out)"
check "a tool call in json" 0 "" "${tiny[@]}" -p "What is the weather in Paris?" --tools tools.json --json
grep -q '"finish_reason": "tool_calls"' out || fail "call: $(cat out)"

finish
