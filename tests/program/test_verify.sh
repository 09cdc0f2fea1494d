# Both captures, for several group sizes; and captures that are wrong.
. "$(dirname "$0")/support.sh"
need_python
edit() { python3 "$SOURCE_DIR/tests/program/edit.py" "$@" || complain "edit.py $*"; }

for model in qwen3-moe deepseek-v3; do
  data=$SOURCE_DIR/tests/data/$model
  for ranks in 1 2 4; do
    run 0 verify --checkpoint "$data" --layer 1 --capture "$data/capture.safetensors" --ranks $ranks --json
    json_is 'o["passed"], o["num_ranks"], o["num_tokens"]' "(True, $ranks, 96)"
    json_is 'all(0 < t["relative_l2"] < 0.01 for t in o["tensors"])' True
    json_is 'o["not_checked"]' "[]"
    case $model in
      qwen3-moe) json_is 'len(o["tensors"])' 5 ;;
      deepseek-v3) json_is 'len(o["tensors"])' 8 ;;
    esac
  done
done

data=$SOURCE_DIR/tests/data/deepseek-v3
capture=$data/capture.safetensors
verify() { run "$1" verify --checkpoint "$data" --layer 1 --capture "${@:2}"; }
refuses_capture() { refuses "$1" verify --checkpoint "$data" --layer 1 --capture "${@:2}"; }

# In MXFP8 the routed experts are less exact and the shared expert is as exact as before.
for ranks in 1 4; do
  run 0 verify --checkpoint "$data" --layer 1 --capture "$capture" --precision mxfp8 --ranks $ranks --json
  json_is 'o["precision"], o["tolerance"]' "('mxfp8', 0.08)"
  json_is 'all((t["relative_l2"] < 0.01) == ("shared" in t["name"]) for t in o["tensors"])' True
done

# The table.
verify 0 "$capture"
says out "8 of 8 tensors within 0.01"
says out "grad.shared_experts.down_proj.weight"
says_not out "FAIL"

# Without --layer the capture says which one it is of; where it does not, the first MoE layer is taken.
qwen=$SOURCE_DIR/tests/data/qwen3-moe
run 0 verify --checkpoint "$qwen" --capture "$qwen/capture.safetensors" --json
json_is 'o["layer_idx"]' 1
edit "$qwen/capture.safetensors" "$work/c" no_metadata
run 1 verify --checkpoint "$qwen" --capture "$work/c" --json
json_is 'o["layer_idx"]' 0

# A check that fails: exit code 1, and the table names the tensor.
verify 1 "$capture" --tolerance 1e-6
says out "FAIL"
says err "8 of 8 tensors are not within 1e-06"
run 1 verify --checkpoint "$data" --capture "$SOURCE_DIR/tests/data/qwen3-moe/capture.safetensors"
says out "FAIL"

# NaN never passes, whether it was captured or computed, and with any tolerance.
edit "$capture" "$work/c" nan:expect.d_x
verify 1 "$work/c" --tolerance 1e6 --json
json_is '[t["name"] for t in o["tensors"] if not t["passed"]]' "['d_x']"
edit "$capture" "$work/c" nan:input.x nan:expect.output
verify 1 "$work/c" --tolerance 1e6 --json
json_is '"output" in [t["name"] for t in o["tensors"] if not t["passed"]]' True

# What is missing is named; expectations alone decide whether backward runs.
edit "$capture" "$work/c" drop:expect.d_x drop:expect.grad.experts.down_proj
verify 0 "$work/c"
says out "not checked: d_x (not in the capture)"
says out "not checked: grad.experts.down_proj (not in the capture)"
edit "$capture" "$work/c" drop:expect.d_x drop:expect.d_topk_weights drop:expect.grad.experts.down_proj \
  drop:expect.grad.experts.gate_up_proj drop:expect.grad.shared_experts.gate_proj.weight \
  drop:expect.grad.shared_experts.up_proj.weight drop:expect.grad.shared_experts.down_proj.weight drop:input.d_output
verify 0 "$work/c" --json
json_is 'len(o["tensors"]), len(o["not_checked"]), "backward_s" in o' "(1, 7, False)"

# Other names and types of the same tensors.
edit "$capture" "$work/c" split_experts f32:input.x f32:input.d_output i32:input.topk_ids \
  rename:expect.grad.shared_experts.up_proj.weight=expect.grad.shared_expert.up_proj.weight
verify 0 "$work/c" --ranks 2 --json
json_is 'o["passed"], len(o["tensors"]), o["not_checked"]' "(True, 54, [])"
edit "$work/c" "$work/d" drop:expect.grad.experts.7.w2.weight \
  rename:expect.grad.experts.3.gate_proj.weight=expect.grad.experts.3.w1.weight
verify 0 "$work/d"
says out "not checked: grad.experts.down_proj (some experts are not in the capture)"
edit "$work/c" "$work/d" rename:expect.grad.experts.3.gate_proj.weight=expect.grad.experts.3.w3.weight \
  drop:expect.grad.experts.3.up_proj.weight
verify 1 "$work/d" --json
json_is '[t["name"] for t in o["tensors"] if not t["passed"]]' "['grad.experts.3.w3.weight']"

# A slot that is dropped has no gradient, and an id that does not exist is refused.
edit "$capture" "$work/c" id:input.topk_ids=5,-1
verify 1 "$work/c"
for ranks in 1 2; do
  edit "$capture" "$work/c" id:input.topk_ids=5,16
  refuses_capture "BAD_ROUTE" "$work/c" --ranks $ranks
done

# Names and shapes that are wrong.
edit "$capture" "$work/c" rename:expect.d_x=expect.dx
refuses_capture "expect.dx is not something that this layer computes" "$work/c"
edit "$capture" "$work/c" rename:expect.d_x=expect.grad.experts.16.w1.weight
refuses_capture "expect.grad.experts.16.w1.weight is not something" "$work/c"
edit "$capture" "$work/c" rename:expect.d_x=expect.grad.shared_expert_gate.weight
refuses_capture "expect.grad.shared_expert_gate.weight is not something" "$work/c"
edit "$capture" "$work/c" rename:expect.d_x=expect.d_topk_weights
refuses_capture "expect.d_topk_weights has shape [96, 128], this layer computes [96, 4]" "$work/c"
edit "$capture" "$work/c" drop:input.topk_weights
refuses_capture "has no tensor input.topk_weights" "$work/c"
edit "$capture" "$work/c" drop:input.d_output
refuses_capture "has no tensor input.d_output" "$work/c"
edit "$capture" "$work/c" drop:input.x
refuses_capture "has no tensor input.x" "$work/c"
edit "$capture" "$work/c" rename:input.topk_weights=input.topk_ids
refuses_capture "input.topk_ids is F32, allowed are I32 and I64" "$work/c"
edit "$capture" "$work/c" rename:input.topk_weights=input.x
refuses_capture "input.x has shape [96, 4], this layer needs [96, 128]" "$work/c"
refuses_capture "has no tensor named expect.*" "$data/model.safetensors"
head -c 1000 "$capture" >"$work/c"
refuses_capture "CHECKPOINT" "$work/c"

# A config beside the checkpoint must have its shape.
run 0 config --from-checkpoint "$data" --layer 1
cp "$work/out" "$work/layer.yaml"
run 0 verify "$work/layer.yaml" --checkpoint "$data" --layer 1 --capture "$capture"
sed 's/^intermediate_size: .*/intermediate_size: 72/' "$work/layer.yaml" >"$work/wrong.yaml"
refuses "has intermediate_size: 72, the checkpoint has 64" verify "$work/wrong.yaml" --checkpoint "$data" --layer 1 --capture "$capture"
refuses "layer 0 is dense" verify --checkpoint "$data" --layer 0 --capture "$capture"
refuses "" verify --checkpoint "$data" --layer 1 --capture "$capture" --ranks 3

# Tokens that do not divide by the ranks, and fewer tokens than ranks.
for rows in 93 3 1; do
  edit "$capture" "$work/c" rows:$rows drop:expect.grad.experts.down_proj drop:expect.grad.experts.gate_up_proj \
    drop:expect.grad.shared_experts.gate_proj.weight drop:expect.grad.shared_experts.up_proj.weight \
    drop:expect.grad.shared_experts.down_proj.weight
  run 0 verify --checkpoint "$data" --layer 1 --capture "$work/c" --ranks 4 --threads 2
done
finish
