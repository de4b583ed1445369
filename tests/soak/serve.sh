#!/usr/bin/env bash
# calla serve under load and under attack: 64 clients for a minute, a third of whose requests are
# broken off; then 100,000 malformed requests. usage: serve.sh PROGRAM BUILD_FOLDER SOURCE_FOLDER
set -euo pipefail
calla=$1 build=$2 source=$3
seconds=${SOAK_SECONDS:-60} requests=${SOAK_REQUESTS:-100000}
dir=$(mktemp -d)
"$calla" serve -m "$source/models/tiny" --ctx 1024 --cache-mb 24 --queue 16 --port 0 \
    --port-file "$dir/port" --quiet 2>"$dir/log" &
pid=$!
trap 'kill $pid 2>/dev/null || true; rm -rf "$dir"' EXIT
while [ ! -e "$dir/port" ]; do kill -0 $pid && sleep 0.05; done
port=$(cat "$dir/port")
sleep 2
"$build/tests/serve_clients" "$port" $pid "$seconds"
"$build/tests/serve_hostile" "$port" "$requests"
kill -TERM $pid
wait $pid
