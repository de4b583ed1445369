#!/usr/bin/env bash
# The README's walk with two servers, one in the part of the cloud; then what calla audit says of it.
. "$3/tests/support/command.sh"
command=serve
tiny=$source/models/tiny
pids=
trap '[ -z "$pids" ] || kill -9 $pids 2>/dev/null; rm -rf "$work"' EXIT
key=sk-far-secret-77

# start NAME OPTIONS...: a server whose port is in the file NAME.port.
start() {
    local name=$1
    shift
    "$calla" serve -m "$tiny" --threads 1 --ctx 2048 --no-think --port 0 --port-file "$name.port" "$@" \
        >"$name.out" 2>"$name.err" &
    pids="$pids $!"
    await $! listens "$name" || { fail "$name: $(cat "$name.err")"; finish; }
}
listens() { [ -e "$1.port" ] && grep -q 'listening on' "$1.err"; }
# send METHOD PATH BODY [HEADER LINE...]: the whole answer of the near server.
send() {
    local line
    exec 3<>"/dev/tcp/127.0.0.1/$(cat near.port)" || return
    printf '%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n' "$1" "$2" >&3
    for line in "${@:4}"; do printf '%s\r\n' "$line" >&3; done
    printf 'Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' "${#3}" "$3" >&3
    cat <&3
    exec 3<&- 3>&-
}
ask() {
    send POST /v1/chat/completions \
        "{\"model\": \"hybrid\", \"max_tokens\": 16, \"messages\": [{\"role\": \"user\", \"content\": \"$1\"}]}" \
        "${@:2}" >answer
}
# expect NAME PART...: each is in the answer.
expect() {
    local part
    for part in "${@:2}"; do
        grep -qF -- "$part" answer || fail "$1: no '$part' in: $(cat answer)"
    done
}

export CLOUD_KEY=$key
CALLA_API_KEY=$key start far
echo '{"categories": {"payment_card": "ask", "email": "redact"}}' >policy.json
start near --cloud-url "http://127.0.0.1:$(cat far.port)/v1" --cloud-model tiny --cloud-key-env CLOUD_KEY \
    --policy policy.json --audit audit.db
near=${pids##* }

ask "What is a river?"
expect "a plain question" "200 OK" "X-Calla-Route: cloud" '"calla": {"route": "cloud"' "A river is a"
ask "Write to jane.doe@corp-mail.com"
expect "one redacted" "200 OK" "X-Calla-Route: cloud" "1 email: redact"
grep -qF "[EMAIL_1]" answer && fail "a placeholder is left: $(cat answer)"
send POST /v1/chat/completions '{"model": "hybrid", "messages": [{"role": "user", "content": "Who?"}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "to",
    "schema": {"enum": ["jane.doe@corp-mail.com"]}}}}' >answer
expect "one restored" "200 OK" "X-Calla-Route: cloud" '"content": "\"jane.doe@corp-mail.com\""'
ask "Pay with 4111 1111 1111 1111"
expect "one to agree to" "409 Conflict" '"category": "payment_card"' '"calla": {"route": "none"'
token=$(grep -oE '"token": "[0-9a-f.]+"' answer | cut -d'"' -f4)
ask "Pay with 4111 1111 1111 1111" "X-Calla-Consent: $token"
expect "one agreed to" "200 OK" "X-Calla-Route: cloud" "agreed to by consent ${token%.*}"
ask "Pay with 4111 1111 1111 1111" "X-Calla-Consent: $token"
expect "one agreed to once" "409 Conflict"
ask "My IBAN is DE89 3704 0044 0532 0130 00"
expect "one kept" "200 OK" "X-Calla-Route: local" "1 iban: keep_local"

# A policy with a mistake leaves the old one; a good one is taken.
echo '{"categories": {"payment_card": "sometimes"}}' >policy.json
kill -HUP "$near"
await "$near" grep -q "the policy stays as it was" near.err
grep -q "categories.payment_card" near.err || fail "the mistake is not named: $(cat near.err)"
ask "Pay with 4111 1111 1111 1111"
expect "the old policy" "409 Conflict"
echo '{"categories": {"finance": "allow"}}' >policy.json
kill -HUP "$near"
await "$near" grep -q "policy.json has been read" near.err
ask "My IBAN is DE89 3704 0044 0532 0130 00"
expect "the new policy" "200 OK" "X-Calla-Route: cloud"

# calla run asks the same cloud; without a terminal the answer to what has to be asked is no.
cloud="--cloud-url http://127.0.0.1:$(cat far.port)/v1 --cloud-model tiny --cloud-key-env CLOUD_KEY"
echo '{"categories": {"payment_card": "ask", "email": "redact"}}' >run.json
run() {
    setsid "$calla" run -m "$tiny" --no-think --greedy -n 16 $cloud --policy run.json --audit run.db -p "$1" \
        >out 2>err </dev/null || fail "run '$1': exit code $?: $(cat err)"
}
run "What is a river?"
grep -q "A river is a" out || fail "run: $(cat out)"
[ -s err ] && fail "run: $(cat err)"
run "Pay with 4111 1111 1111 1111"
grep -q "there is no terminal to ask on" err || fail "run, something to ask: $(cat err)"
grep -q "answered here: 1 payment_card: ask" err || fail "run, something to ask: $(cat err)"
run "My IBAN is DE89 3704 0044 0532 0130 00"
grep -q "answered here: 1 iban: keep_local" err || fail "run, something to keep: $(cat err)"
"$calla" audit --audit run.db | awk 'NR > 1 { printf "%s ", $3 }' >results
[ "$(cat results)" = "answered asked local " ] || fail "the audit of run: $(cat results)"
if command -v script >/dev/null; then # with a terminal: a yes and a no
    for word in y n; do
        echo "$word" | script -qec "$calla run -m $tiny --no-think --greedy -n 16 $cloud --policy run.json \
            --audit run.db -p 'Pay with 4111 1111 1111 1111'" /dev/null >out 2>err
        grep -q "payment_card .*(messages" out || fail "run on a terminal: $(cat out)"
    done
    # What a document calls its fields must not rule the terminal.
    cat >messages.json <<'X'
[{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"id": "1", "type": "function",
 "function": {"name": "f", "arguments": {"a\u001b[2Kb\u009b2Kc": "4111 1111 1111 1111"}}}]},
 {"role": "tool", "tool_call_id": "1", "content": "y"}]
X
    echo n | script -qec "$calla run -m $tiny --no-think --greedy -n 16 $cloud --policy run.json \
        --audit run.db --messages messages.json" /dev/null >out 2>err
    grep -qF "a?[2Kb??2Kc" out || fail "a field's name on the terminal: $(cat -v out err)"
    "$calla" audit --audit run.db | awk 'NR > 1 { printf "%s ", $3 }' >results
    [ "$(cat results)" = "answered asked local asked answered asked asked " ] ||
        fail "the audit of run on a terminal: $(cat results)"
fi

send GET /metrics "" >metrics
grep -q '^calla_hybrid_requests_total{route="cloud"} 5' metrics || fail "metrics: $(grep hybrid metrics)"
for pid in $pids; do
    kill -TERM "$pid"
    wait "$pid" || fail "a server's exit code is $?"
done
pids=

# The audit shows exactly that.
"$calla" audit --audit audit.db >list || fail "audit: $?"
awk 'NR > 1 { print $3, $4 }' list >results
cat >expected <<'X'
answered allow
answered redact
answered redact
asked ask
answered ask
asked ask
local keep_local
asked ask
answered allow
X
diff results expected >difference || fail "the audit: $(cat difference list)"
[ "$(grep -c "(agreed to)" list)" = 1 ] || fail "the consent is not in the audit: $(cat list)"
[ "$("$calla" audit --audit audit.db --category iban | grep -c keep_local)" = 1 ] || fail "--category"
[ "$("$calla" audit --audit audit.db --result asked --json | wc -l)" = 3 ] || fail "--result"
[ "$("$calla" audit --audit audit.db --since 2999-01-01 | wc -l)" = 0 ] || fail "--since"
"$calla" audit --audit audit.db --json --result answered | grep -q '"input_tokens":' || fail "--json"
mark=$("$calla" audit --audit audit.db --verify) || fail "--verify: $?"
"$calla" audit --audit audit.db --verify --expect "$mark" >again || fail "--expect: $?"
[ "$(cat again)" = "$mark" ] || fail "--expect printed $(cat again)"

# Neither the key nor what was kept is anywhere.
for secret in "$key" "jane.doe" "4111 1111" "DE89 3704" "$token"; do
    grep -qF "$secret" near.err near.out metrics list audit.db && fail "'$secret' has been written down"
done
grep -qF "$key" answer && fail "the key is in an answer"

command=audit
refused 1 "none.db" --audit none.db
refused 1 "is no mark" --audit audit.db --verify --expect 5
refused 1 "row 99 is missing" --audit audit.db --verify --expect "99:$(printf '0%.0s' {1..64})"
refused 2 "--expect goes with --verify" --audit audit.db --expect 1:2
refused 2 "is no time" --audit audit.db --since yesterday
command=serve
refused 2 "--policy has no use without --cloud-url" -m "$tiny" --policy policy.json
refused 2 "--cloud-url needs --cloud-model" -m "$tiny" --cloud-url https://example.com/v1
refused 1 "NO_SUCH_VARIABLE" -m "$tiny" --cloud-url https://example.com/v1 --cloud-model x \
    --cloud-key-env NO_SUCH_VARIABLE --audit other.db
refused 1 "must be https" -m "$tiny" --cloud-url http://example.com/v1 --cloud-model x --audit other.db
echo '{"categories": {"emails": "ask"}}' >policy.json
refused 1 "policy.json: categories.emails: there is no such category" -m "$tiny" \
    --cloud-url https://example.com/v1 --cloud-model x --policy policy.json --audit other.db
finish
