#!/usr/bin/env bash
# calla info: what it prints of a checkpoint, and how it refuses.
. "$3/tests/support/command.sh"
set -e -o pipefail
command=info

for layout in mlx4 bf16; do
    model=$source/tests/data/oracle-a/$layout
    "$calla" info -m "$model" --backend cpu --tensors >"$work/text"
    grep -qx 'layers      4: 3 gated delta net, 1 attention; hidden size 128' "$work/text" ||
        fail "$layout: layers"
    grep -qx 'memory for a context of 4096 tokens, backend cpu' "$work/text" || fail "$layout: context"
    grep -qE '^  total  +[0-9.]+ [KMG]iB$' "$work/text" || fail "$layout: memory plan"
    "$calla" info -m "$model" --backend cpu --json --tensors >"$work/json"
    grep -q '"backend": "cpu",$' "$work/json" || fail "$layout: backend"
    grep -q '"on_device": false,$' "$work/json" || fail "$layout: on_device"
    grep -q '"n_parameters": 3089944' "$work/json" || fail "$layout: parameters"
    grep -q "\"layout\": \"$layout\"" "$work/json" || fail "$layout: layout"
    # every tensor is listed in both forms, and the parts add up
    n=$(grep -oP '"n_tensors": \K[0-9]+(?=,$)' "$work/json" | head -1)
    bytes=$(grep -oP '"weights_bytes": \K[0-9]+' "$work/json")
    grep -qE "^total +$n +$bytes\$" "$work/text" || fail "$layout: parts add up to: $(grep total "$work/text")"
    [ "$(grep -c '"dtype":' "$work/json")" = "$n" ] || fail "$layout: tensors as JSON"
    [ "$(grep -cE '^(BF16|U32|F32) ' "$work/text")" = "$n" ] || fail "$layout: tensors as text"
done
"$calla" info -m "$source/tests/data/oracle-a/mlx4" --ctx 1000 --json |
    grep -q '"n_ctx": 1000' || fail "--ctx"
"$calla" info | grep -q '^machine$' || fail "the machine alone"
"$calla" info --help | grep -q '^usage: calla info' || fail "help"

refused 1 'cannot open directory /nowhere:' -m /nowhere
refused 1 'the name of a directory is empty' -m ''
refused 1 'README.md is not a directory' -m "$source/README.md"
refused 1 '5000 tokens' -m "$source/tests/data/oracle-a/mlx4" --ctx 5000
refused 2 -- --bogus --bogus
refused 2 "'x'" -m "$source/tests/data/oracle-a/mlx4" x
refused 2 '-m DIR is missing' --tensors
# config.json of one layout beside the tensors of the other
for pair in mlx4:bf16:'config.json has a quantization, but tensor model.' \
    bf16:mlx4:'config.json has no quantization'; do
    IFS=: read -r config tensors text <<<"$pair"
    mkdir -p "$work/mixed"
    cp "$source/tests/data/oracle-a/$config/config.json" "$work/mixed"
    cp "$source/tests/data/oracle-a/$tensors/model.safetensors" "$work/mixed"
    refused 1 "$text" -m "$work/mixed"
done
cp "$source"/tests/data/oracle-a/mlx4/config.json "$work"
head -c 100000 "$source/tests/data/oracle-a/mlx4/model.safetensors" >"$work/model.safetensors"
refused 1 "$work/model.safetensors: tensor " -m "$work"
sed -i 's/"head_dim": 256/"head_dim": 128/' "$work/config.json"
refused 1 "$work/config.json: text_config.head_dim is 128, expected 256" -m "$work"
if [ -w /dev/full ]; then
    rc=0
    "$calla" info >/dev/full 2>"$work/err" || rc=$?
    [ "$rc" = 1 ] || fail "full disk: exit $rc"
fi
"$calla" info -m "$source/tests/data/oracle-a/mlx4" --tensors | head -1 >/dev/null ||
    fail "a reader that leaves early"
finish
