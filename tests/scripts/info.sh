#!/usr/bin/env bash
# calla info: what it prints of a checkpoint, and how it refuses.
# usage: info.sh PROGRAM BUILD_FOLDER SOURCE_FOLDER
set -euo pipefail
program=$1 source=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

# refused CODE TEXT ARGUMENTS...: one line with TEXT on stderr, nothing on stdout
refused() {
    local code=$1 text=$2 rc=0
    shift 2
    "$program" info "$@" >"$work/out" 2>"$work/err" || rc=$?
    [ "$rc" = "$code" ] || fail "info $*: exit $rc, expected $code"
    [ ! -s "$work/out" ] || fail "info $*: output although refused"
    grep -qF -- "$text" "$work/err" || fail "info $*: $(cat "$work/err") -- expected $text"
    [ "$code" != 1 ] || [ "$(wc -l <"$work/err")" = 1 ] || fail "info $*: more than one line"
}

for layout in mlx4 bf16; do
    model=$source/tests/data/oracle-a/$layout
    "$program" info -m "$model" --tensors >"$work/text"
    grep -qx 'layers      4: 3 gated delta net, 1 attention; hidden size 128' "$work/text" ||
        fail "$layout: layers"
    grep -qE '^memory for a context of 4096 tokens' "$work/text" || fail "$layout: context"
    grep -qE '^  total  +[0-9.]+ [KMG]iB$' "$work/text" || fail "$layout: memory plan"
    "$program" info -m "$model" --json --tensors >"$work/json"
    grep -q '"n_parameters": 3089944' "$work/json" || fail "$layout: parameters"
    grep -q "\"layout\": \"$layout\"" "$work/json" || fail "$layout: layout"
    # every tensor is listed in both forms, and the parts add up
    n=$(grep -oP '"n_tensors": \K[0-9]+(?=,$)' "$work/json" | head -1)
    [ "$(grep -c '"dtype":' "$work/json")" = "$n" ] || fail "$layout: tensors as JSON"
    [ "$(grep -cE '^(BF16|U32|F32) ' "$work/text")" = "$n" ] || fail "$layout: tensors as text"
done
"$program" info -m "$source/tests/data/oracle-a/mlx4" --ctx 1000 --json |
    grep -q '"n_ctx": 1000' || fail "--ctx"
"$program" info | grep -q '^machine$' || fail "the machine alone"
"$program" info --help | grep -q '^usage: calla info' || fail "help"

refused 1 'cannot open /nowhere/config.json' -m /nowhere
refused 1 '5000 tokens' -m "$source/tests/data/oracle-a/mlx4" --ctx 5000
refused 2 -- --bogus --bogus
refused 2 "'x'" -m "$source/tests/data/oracle-a/mlx4" x
refused 2 '-m DIR is missing' --tensors
cp "$source"/tests/data/oracle-a/mlx4/config.json "$work"
head -c 100000 "$source/tests/data/oracle-a/mlx4/model.safetensors" >"$work/model.safetensors"
refused 1 "$work/model.safetensors: tensor " -m "$work"
sed -i 's/"head_dim": 256/"head_dim": 128/' "$work/config.json"
refused 1 "$work/config.json: text_config.head_dim is 128, expected 256" -m "$work"
if [ -w /dev/full ]; then
    rc=0
    "$program" info >/dev/full 2>"$work/err" || rc=$?
    [ "$rc" = 1 ] || fail "full disk: exit $rc"
fi
"$program" info -m "$source/tests/data/oracle-a/mlx4" --tensors | head -1 >/dev/null ||
    fail "a reader that leaves early"
echo ok
