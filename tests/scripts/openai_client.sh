#!/usr/bin/env bash
# The official OpenAI client for Python against a running server. CALLA_PYTHON names a Python that has
# it (.ci/run makes one).
python=${CALLA_PYTHON:-python3}
if ! command -v "$python" >/dev/null || ! "$python" -c 'import openai' 2>/dev/null; then
    echo "SKIP: no Python with the openai package"
    exit 77
fi
. "$3/tests/support/command.sh"
"$calla" serve -m "$source/models/tiny" --threads 1 --ctx 2048 --port 0 --port-file port 2>err &
pid=$!
trap 'kill $pid 2>/dev/null; wait $pid; rm -rf "$work"' EXIT
await $pid test -e port || { fail "the server: $(cat err)"; finish; }
"$python" "$source/tests/server/openai_client.py" "http://127.0.0.1:$(cat port)/v1" ||
    fail "the client: see above; the server: $(cat err)"
finish
