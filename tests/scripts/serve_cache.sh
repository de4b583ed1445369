#!/usr/bin/env bash
# calla serve is killed while it writes its cache directory, again and again: what is found there afterwards
# is whole, and answers are those of a server without a cache.
. "$3/tests/support/command.sh"
pid=
trap '[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null; rm -rf "$work"' EXIT
words=$(for i in $(seq 120); do printf 'I would like to know it. '; done)

post() { # NUMBER: the answer to a long prompt
    local body="{\"messages\": [{\"role\": \"user\", \"content\": \"What is a river, number $1? $words\"}],
        \"temperature\": 0, \"max_tokens\": 12}"
    exec 3<>"/dev/tcp/127.0.0.1/$port" || return
    printf 'POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n' >&3
    printf 'Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' "${#body}" "$body" >&3
    cat <&3
    exec 3<&- 3>&-
}
message() { grep -o '"message": {.*}, "logprobs"'; }
start() {
    rm -f port
    "$calla" serve -m "$source/models/tiny" --threads 1 --ctx 2048 --cache-mb 64 --port 0 \
        --port-file port --quiet "$@" 2>serve.err &
    pid=$!
    await $pid test -e port || { fail "the server: $(cat serve.err)"; finish; }
    port=$(cat port)
    await $pid answers || { fail "the server: $(cat serve.err)"; finish; }
}
answers() { post 0 2>/dev/null >first && ! grep -q ' 503 ' first; }

start
for i in 1 2 3; do post $i | message >"cold$i"; done
kill -9 $pid
wait $pid 2>/dev/null

for round in 1 2 3 4 5 6 7 8; do
    start --cache-dir cache
    for i in 1 2 3; do
        post $i | message >"warm$i"
        [ -s "warm$i" ] && ! cmp -s "cold$i" "warm$i" && fail "round $round: another answer to $i"
    done &
    client=$!
    sleep 0.$((RANDOM % 50 + 10))
    kill -9 $pid
    wait $pid $client 2>/dev/null
    grep -q broken serve.err && fail "round $round: a broken file under its final name"
done

start --cache-dir cache
for i in 1 2 3; do
    post $i | message >"warm$i"
    cmp -s "cold$i" "warm$i" || fail "another answer to $i"
done
kill -TERM $pid
wait $pid || fail "exit code $?"
pid=
grep -q broken serve.err && fail "a broken file under its final name"
ls -A cache | grep -q '\.tmp$' && fail "a temporary file was left"
ls cache | grep -q '\.snapshot$' || fail "nothing was kept"

finish
