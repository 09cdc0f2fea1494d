# purr run: what it prints, equal bits for any number of ranks and threads, files in and out, routings.
. "$(dirname "$0")/support.sh"
need_python
cat >"$work/layer.yaml" <<'YAML'
name: small
hidden_size: 64
intermediate_size: 40
num_experts: 12
top_k: 3
max_tokens: 200
shared_expert:
  intermediate_size: 24
  gate: sigmoid
YAML
layer=$work/layer.yaml

# The page.
run 0 run "$layer" --tokens 100 --backward --repeat 3 --routing zipf:1.2
for text in "12 of hidden 64, intermediate 40; top 3" "sigmoid gate" "100 generated, seed 0" "host backend, bf16, 1 rank" \
  "routing zipf:1.2: 300 rows, 0 dropped slots" "imbalance" "gate_up" "wgrad" "TFLOP/s" "workspace" "grad.experts.down_proj"; do
  says out "$text"
done
[ -s "$work/err" ] && complain "a short run prints to stderr"
grep -q $'\033' "$work/out" && complain "colours although stdout is not a terminal"
NO_COLOR=1 run 0 run "$layer" --tokens 100
says_not out "grad."

# The same bits for every number of ranks and threads; --json says all of it.
first=""
for ranks in 1 2 3 4 6 12; do
  for threads in 1 3; do
    run 0 run "$layer" --tokens 101 --backward --routing zipf:1.0 --seed 7 --ranks $ranks --threads $threads --json
    json_is 'o["num_ranks"], o["num_tokens"], o["seed"]' "($ranks, 101, 7)"
    json_is 'sum(o["tokens_per_expert"]["counts"]), len(o["tokens_per_expert"]["counts"])' "(303, 12)"
    hashes=$(json 'o["hashes"]')
    [ -n "$first" ] || first=$hashes
    [ "$hashes" = "$first" ] || complain "other bits with $ranks ranks, $threads threads: $hashes, first: $first"
  done
done
json_is 'o["forward"]["flops"] == 6 * 64 * (303 * 40 + 101 * 24), o["backward"]["flops"] == 2 * o["forward"]["flops"]' "(True, True)"
json_is 'o["forward"]["num_rows"], o["memory_of_a_rank"]["weight_bytes"] > 0' "(303, True)"
run 0 run "$layer" --tokens 101 --routing zipf:1.0 --seed 8 --json
[ "$(json 'o["hashes"]["output"]')" != "$(python3 -c "print($first['output'])")" ] || complain "the seed changes nothing"

# zipf:0 is uniform; a higher exponent is less even.
run 0 run "$layer" --tokens 200 --routing zipf:0 --json
uniform=$(json 'o["hashes"]["output"]')
run 0 run "$layer" --tokens 200 --json
json_is 'o["hashes"]["output"]' "$uniform"
even=$(json 'o["tokens_per_expert"]["imbalance"]')
run 0 run "$layer" --tokens 200 --routing zipf:2 --json
json_is "o['tokens_per_expert']['imbalance'] > $even + 0.5" True

# More slots than experts: each expert is drawn as often as the next before one comes again.
sed -e 's/^num_experts: .*/num_experts: 2/' -e 's/^top_k: .*/top_k: 5/' "$layer" >"$work/few.yaml"
for routing in uniform zipf:1.0; do
  run 0 run "$work/few.yaml" --tokens 7 --routing $routing --backward --json
  json_is 'sum(o["tokens_per_expert"]["counts"]), min(o["tokens_per_expert"]["counts"]) >= 14' "(35, True)"
done

# What was written can be read: as routing, as input.
run 0 run "$layer" --tokens 64 --routing zipf:1.5 --output "$work/out.safetensors" --json
hash=$(json 'o["hashes"]["output"]')
run 0 run "$layer" --routing "$work/out.safetensors" --json
json_is 'o["num_tokens"], o["hashes"]["output"]' "(64, '$hash')"
python3 "$SOURCE_DIR/tests/program/edit.py" "$work/out.safetensors" "$work/in.safetensors" rename:output=x
run 0 run "$layer" --input "$work/in.safetensors" --backward --json
json_is 'o["num_tokens"], o["routing"][-15:]' "(64, '/in.safetensors')"
python3 "$SOURCE_DIR/tests/program/edit.py" "$work/in.safetensors" "$work/bad.safetensors" id:topk_ids=7,12
refuses "BAD_ROUTE" run "$layer" --input "$work/bad.safetensors" --ranks 2
refuses "BAD_ROUTE" run "$layer" --input "$work/bad.safetensors" --output "$work/none.safetensors"
[ -e "$work/none.safetensors" ] && complain "a run that failed leaves an output file behind"
python3 "$SOURCE_DIR/tests/program/edit.py" "$work/in.safetensors" "$work/drop.safetensors" id:topk_ids=7,-1
run 0 run "$layer" --input "$work/drop.safetensors" --json
json_is 'o["num_dropped_slots"], o["forward"]["flops"] == 6 * 64 * (191 * 40 + 64 * 24)' "(1, True)"
refuses "has shape [64, 3], this layer needs [65, 3]" run "$layer" --tokens 65 --routing "$work/out.safetensors"
refuses "has no tensor x" run "$layer" --input "$work/out.safetensors"
# A misspelt tensor is not passed over.
python3 "$SOURCE_DIR/tests/program/edit.py" "$work/in.safetensors" "$work/odd.safetensors" rename:topk_weights=topk_weight
refuses "has a tensor topk_weight, which is not an input; did you mean topk_weights?" run "$layer" \
  --input "$work/odd.safetensors"
says err "known are x, topk_ids, topk_weights and d_output"

# What a run reads it does not write over, whatever it is called.
ln -s in.safetensors "$work/link.safetensors"
before=$(cksum <"$work/in.safetensors")
refuses "is the file of --input, which this run reads" run "$layer" --input "$work/in.safetensors" \
  --output "$work/link.safetensors"
refuses "is the file of --routing" run "$layer" --routing "$work/in.safetensors" --output "$work/./in.safetensors"
refuses "is the config" run "$layer" --tokens 4 --output "$layer"
refuses "is a file of --checkpoint" run --checkpoint "$SOURCE_DIR/tests/data/qwen3-moe" --tokens 4 \
  --output "$SOURCE_DIR/tests/data/qwen3-moe/config.json"
[ "$(cksum <"$work/in.safetensors")" = "$before" ] || complain "a refused run wrote to a file that it reads"

refuses "cannot be written" run "$layer" --tokens 4 --output "$work/no/such/folder"

# No tokens at all is legal; more than the config allows is not, nor more than fits into memory.
run 0 run "$layer" --tokens 0 --ranks 2 --backward --json
json_is 'o["num_tokens"], o["forward"]["num_rows"]' "(0, 0)"
refuses "201 tokens with R = 1 are 201 a rank, the config allows max_tokens: 200" run "$layer" --tokens 201
run 0 run "$layer" --tokens 201 --ranks 2
sed -e 's/num_experts: 12/num_experts: 4096/' -e 's/hidden_size: 64/hidden_size: 8192/' \
  -e 's/^intermediate_size: 40/intermediate_size: 8192/' "$layer" >"$work/huge.yaml"
refuses "are available" run "$work/huge.yaml"
refuses "" run "$layer" --ranks 5

# Which GPU each rank has: a list that is well formed, of GPUs that are there, for a layer that runs on GPUs.
run 0 run "$layer" --tokens 4 --backend host --json
json_is 'o["devices"]' None
for list in "" , 0, ,0 0,,1 a 0x1 -1 1024 "0 1"; do
  refuses "--devices" run "$layer" --tokens 4 --devices "$list"
done
refuses "--devices takes GPU numbers from 0 to 1023, not '0,x'" run "$layer" --tokens 4 --ranks 2 --devices 0,x
says err "such as --devices 0,1"
refuses "--devices names 3 GPUs for 2 ranks" run "$layer" --tokens 4 --ranks 2 --devices 0,0,0
refuses "NO_DEVICE" run "$layer" --tokens 4 --ranks 2 --devices 0,1023
refuses "NO_DEVICE" run "$layer" --tokens 4 --ranks 2 --devices 1023 --backend staged
refuses "" run "$layer" --tokens 4 --devices 0 --backward
refuses "--devices names a GPU" verify --checkpoint "$SOURCE_DIR/tests/data/qwen3-moe" --backend host --devices 1023 \
  --capture "$SOURCE_DIR/tests/data/qwen3-moe/capture.safetensors"

# A checkpoint's layer, with the model's own router: it chose what was captured.
for model in qwen3-moe deepseek-v3; do
  data=$SOURCE_DIR/tests/data/$model
  for ranks in 1 2; do
    run 0 run --checkpoint "$data" --layer 1 --input "$data/capture.safetensors" --routing checkpoint --ranks $ranks \
      --output "$work/routed.safetensors" --json
    json_is 'o["routing"], o["num_tokens"]' "('checkpoint', 96)"
  done
  python3 - "$data/capture.safetensors" "$work/routed.safetensors" <<'PYTHON' || complain "$model: the router chose otherwise"
import json, struct, sys
def read(path, name):
    data = open(path, "rb").read()
    (length,) = struct.unpack("<Q", data[:8])
    t = json.loads(data[8 : 8 + length])[name]
    begin, end = (8 + length + o for o in t["data_offsets"])
    size, letter = {"I64": (8, "q"), "F32": (4, "f")}[t["dtype"]]
    return struct.unpack(f"<{(end - begin) // size}{letter}", data[begin:end])
captured = list(zip(read(sys.argv[1], "input.topk_ids"), read(sys.argv[1], "input.topk_weights")))
routed = list(zip(read(sys.argv[2], "topk_ids"), read(sys.argv[2], "topk_weights")))
for t in range(96):  # in any order: the sum over slots does not mind
    for (a, v), (b, w) in zip(sorted(captured[4 * t : 4 * t + 4]), sorted(routed[4 * t : 4 * t + 4])):
        if a != b or abs(v - w) > 1e-5 * abs(v):
            sys.exit(f"token {t}: expert {a} with {v} was captured, got {b} with {w}")
PYTHON
done
run 0 run --checkpoint "$SOURCE_DIR/tests/data/qwen3-moe" --tokens 16 --json
json_is 'o["routing"], o["layer"]["num_experts"]' "('checkpoint', 16)"

# Signs alone change the hash: of two values that are the last in their words, and of a third one in the second word.
mkdir "$work/signs"
cp "$SOURCE_DIR/tests/data/qwen3-moe/config.json" "$work/signs"
run 0 run --checkpoint "$SOURCE_DIR/tests/data/qwen3-moe" --tokens 16 --json
hash=$(json 'o["hashes"]["output"]')
for rows in 3,7 3,5,7 3,7,11,15; do
  edits=$(for e in $(seq 0 15); do echo "negate:model.layers.0.mlp.experts.$e.down_proj.weight=$rows"; done)
  python3 "$SOURCE_DIR/tests/program/edit.py" "$SOURCE_DIR/tests/data/qwen3-moe/model.safetensors" \
    "$work/signs/model.safetensors" $edits
  run 0 run --checkpoint "$work/signs" --tokens 16 --json
  [ "$(json 'o["hashes"]["output"]')" != "$hash" ] || complain "negating values $rows of each token leaves the hash as it was"
done

# The layer that is taken by default has a number; so has one behind dense layers.
json_is 'o["layer_idx"]' 0
json_is 'o["forward"]["phases_s"]["sum"] > 0, o["library_peak_device_bytes"]' "(True, 0)"
run 0 run --checkpoint "$SOURCE_DIR/tests/data/deepseek-v3" --tokens 16
says out "decoder layer   1"

# On a GPU: memory of both sides, and no times of phases.
if [ -n "${EMULATED_CUDA_FOLDER:-}" ]; then
  export LD_LIBRARY_PATH=$EMULATED_CUDA_FOLDER FAKE_CUDA="sms=4 memory_gib=4"
  run 0 run --checkpoint "$SOURCE_DIR/tests/data/qwen3-moe" --tokens 16 --backend staged --json
  json_is 'o["forward"]["phases_s"], o["library_peak_device_bytes"] > o["memory_of_a_rank"]["weight_bytes"]' "(None, True)"
  run 0 run --checkpoint "$SOURCE_DIR/tests/data/qwen3-moe" --tokens 16 --backend staged
  says out "library, all ranks, peak on GPUs"
  says out "library, all ranks, peak on the host"
fi
finish
