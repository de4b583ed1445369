#!/usr/bin/env bash
# calla serve as a process: options, the port, log lines, signals, exit codes.
. "$3/tests/support/command.sh"
command=serve
pid=
trap '[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null; rm -rf "$work"' EXIT
tiny=$source/models/tiny

# The whole answer to a GET of a path, with further header lines (each ended by \r\n).
get() {
    exec 3<>"/dev/tcp/127.0.0.1/$port" || return
    printf 'GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%b\r\n' "$1" "${2:-}" >&3
    cat <&3
    exec 3<&- 3>&-
}
# The whole answer to a POST of JSON.
post() {
    exec 3<>"/dev/tcp/127.0.0.1/$port" || return
    printf 'POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n' "$1" >&3
    printf 'Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' "${#2}" "$2" >&3
    cat <&3
    exec 3<&- 3>&-
}
# Starts a server with the options, and waits until it is ready.
start() {
    rm -f port
    "$calla" serve -m "$tiny" --threads 1 --ctx 2048 --port 0 --port-file port "$@" \
        >serve.out 2>serve.err &
    pid=$!
    await $pid test -e port || { fail "the server: $(cat serve.err)"; finish; }
    port=$(cat port)
    await $pid is_ready || { fail "the server: $(cat serve.err)"; finish; }
}
is_ready() { get /health >health && grep -q '"ok"' health; }
# Ends it with a signal.
stop() {
    local code=0
    kill -"$1" $pid
    wait $pid || code=$?
    pid=
    [ $code = 0 ] || fail "exit code $code after SIG$1: $(cat serve.err)"
    [ ! -s serve.out ] || fail "something on standard output"
}

# ---- options ----
refused 2 "-m DIR is missing"
refused 2 "'9' is not a whole number from 1 to 8" -m x --parallel 9
refused 2 "'70000' is not" -m x --port 70000
refused 1 "cannot open directory nowhere:" -m nowhere --port 0
refused 1 "needs an API key (--api-key-file)" -m "$tiny" --host 0.0.0.0 --port 0
refused 1 "cannot open nothing" -m "$tiny" --api-key-file nothing --port 0

# ---- a request ----
start
grep -q '200 OK' health || fail "health: $(cat health)"
refused 1 "cannot listen on 127.0.0.1:$port" -m "$tiny" --port "$port"
post /v1/chat/completions '{"messages": [{"role": "user", "content": "What is a river?"}],
    "temperature": 0, "enable_thinking": false}' >answer
grep -q 'A river is a large stream' answer || fail "no answer: $(cat answer)"
get '/%ff"' | grep -q ' 404 ' || fail "an odd path"
stop TERM
grep -q ' request method=GET path="/<ff>.* status=404' serve.err ||
    fail "no line for an odd path: $(cat serve.err)"
grep -q 'memory: weights' serve.err || fail "no memory plan: $(cat serve.err)"
grep -q ' request method=POST path=/v1/chat/completions status=200 .* finish=stop' serve.err ||
    fail "no line for the request: $(cat serve.err)"

# ---- keys, names, logs ----
printf 'secret\n' >key
start --api-key-file key --log-json --alias other
get /v1/models | grep -q ' 401 ' || fail "no key was asked for"
get /v1/models 'Authorization: Bearer secret\r\n' | grep -q '"other"' || fail "the key does not fit"
stop INT
grep '"event": "request"' serve.err | grep -q '"status": 401' || fail "no JSON: $(cat serve.err)"
CALLA_API_KEY=hush start --quiet
get /v1/models 'x-api-key: hush\r\n' | grep -q '"tiny"' || fail "the environment's key does not fit"
stop TERM
if grep -q ' request ' serve.err; then fail "not quiet: $(cat serve.err)"; fi

# ---- a signal while an answer runs: it is finished first ----
start --grace 60
post /v1/completions '{"prompt": "A river is", "max_tokens": 200, "n": 12, "temperature": 1}' >answer &
client=$!
until get /metrics | grep -q '^calla_choices_running [1-9]'; do
    kill -0 $client 2>/dev/null || break # this machine was too busy to see it running
    sleep 0.01
done
stop TERM
wait $client
grep -q '"finish_reason"' answer || fail "the answer was cut off: $(cat answer)"

# ---- under load, with no time for it: what runs and waits is cut off ----
start --grace 0 --parallel 2
clients=
for i in 1 2 3 4 5 6; do
    post /v1/completions '{"prompt": "A river is", "max_tokens": 2000, "n": 8, "temperature": 1}' \
        >"answer$i" &
    clients="$clients $!"
done
someone_waits() { get /metrics | grep -q '^calla_jobs_queued [1-9]'; }
await $! someone_waits
stop TERM
wait $clients
grep -l ' 503 ' answer? >/dev/null || fail "nothing was cut off: $(head -n 1 answer?)"

finish
