# purr bench: on the host, and on a GPU where there is one; its page, its JSON, and what it counts.
. "$(dirname "$0")/support.sh"
need_python
cat >"$work/tiny.yaml" <<'YAML'
name: tiny
hidden_size: 64
intermediate_size: 40
num_experts: 12
top_k: 3
max_tokens: 100
shared_expert:
  intermediate_size: 24
  gate: sigmoid
YAML
sed -e '/^shared/,$d' -e 's/max_tokens: 100/max_tokens: 32/' "$work/tiny.yaml" >"$work/plain.yaml"

# The page: both layers, both routings, the ceilings that were given.
run 0 bench "$work/tiny.yaml" "$work/plain.yaml" --backend host --saved --repeat 10 --dense 774 --copy 4.2
for text in "10 runs after 3" "dense 774 TFLOP/s as given" "copy 4.20 TB/s as given" "tiny: 12 experts of hidden 64" \
  "plain: 12 experts" "shared 24" "host backend, bf16; weights" "zipf:1" "TFLOP/s" "of dense" "executed" "of copy"; do
  says out "$text"
done
says_not out "nan"
[ "$(grep -c "^ *100  .*  yes  " "$work/out")" -eq 2 ] || complain "--saved does not time both routings of tiny"
[ "$(grep -c "^ *64  " "$work/out")" -eq 1 ] || complain "64 tokens are a small batch of tiny alone"

# The JSON: one object, what it counts is right, what is not known is null.
run 0 bench "$work/tiny.yaml" "$work/plain.yaml" --backend host --saved --repeat 11 --warmup 0 --seed 3 --json
json_is 'len(o["layers"]), o["num_repeats"], o["num_warmups"], o["seed"], o["device"]' "(2, 11, 0, 3, None)"
json_is '[[m["num_tokens"] for m in l["measurements"]] for l in o["layers"]]' \
  "[[100, 100, 1, 8, 64, 100, 100], [32, 32, 1, 8, 32, 32]]"
json_is '[m["routing"] for m in o["layers"][1]["measurements"]]' \
  "['uniform', 'uniform', 'uniform', 'uniform', 'zipf:1', 'zipf:1']"
json_is '[m["saved"] for m in o["layers"][1]["measurements"]]' "[False, True, False, False, False, True]"
json_is 'all(m["flops"] == 6 * 64 * m["num_tokens"] * (3 * 40 + 24) for m in o["layers"][0]["measurements"])' True
json_is 'all(m["num_rows"] == m["num_executed_rows"] == 3 * m["num_tokens"] for l in o["layers"] for m in l["measurements"])' True
json_is 'all(m["weight_bytes"] == 6 * 64 * (40 * m["num_experts"] + 24) for m in o["layers"][0]["measurements"])' True
json_is '[m["num_experts"] for m in o["layers"][0]["measurements"] if m["num_tokens"] in (1, 100)]' "[12, 12, 3, 12, 12]"
json_is 'all(0 < m["min_s"] <= m["median_s"] <= m["max_s"] for l in o["layers"] for m in l["measurements"])' True
json_is 'all(abs(m["tflops_per_s"] * m["median_s"] / m["flops"] * 1e12 - 1) < 1e-6 for m in o["layers"][0]["measurements"])' True
json_is '{str(m[k]) for m in o["layers"][0]["measurements"] for k in ("host_s", "fraction_of_dense", "fraction_of_copy")}' "{'None'}"

# One routing, other tokens, fractions of what was given.
run 0 bench "$work/plain.yaml" --backend host --tokens 40 --routing zipf:2 --repeat 10 --dense 0.5 --copy 0.25 --json
json_is '[(m["num_tokens"], m["routing"]) for m in o["layers"][0]["measurements"]]' \
  "[(40, 'zipf:2'), (1, 'zipf:2'), (8, 'zipf:2')]"
json_is 'all(abs(m["fraction_of_dense"] * 0.5 / m["tflops_per_s"] - 1) < 1e-6 for m in o["layers"][0]["measurements"])' True
json_is 'all(abs(m["fraction_of_copy"] * 0.25 / m["weight_tb_per_s"] - 1) < 1e-6 for m in o["layers"][0]["measurements"])' True

# Ranks share experts and tokens: the same work. Which GPU each has is shown, or that there is none.
run 0 bench "$work/tiny.yaml" --backend host --ranks 3 --repeat 10 --json
json_is 'o["layers"][0]["num_ranks"], o["layers"][0]["devices"]' "(3, None)"
json_is 'all(m["flops"] == 6 * 64 * m["num_tokens"] * (3 * 40 + 24) for m in o["layers"][0]["measurements"])' True
run 0 bench "$work/tiny.yaml" --backend host --ranks 2 --saved --repeat 10
says out "host backend, bf16; 2 ranks; weights of each"
refuses "" bench "$work/tiny.yaml" --backend host --ranks 5
refuses "--devices takes GPU numbers from 0 to 1023, not '0,,1'" bench "$work/tiny.yaml" --ranks 2 --devices 0,,1
refuses "--devices names 2 GPUs for 1 rank" bench "$work/tiny.yaml" --devices 0,1
refuses "NO_DEVICE" bench "$work/tiny.yaml" --devices 1023

refuses "'qwen3_30' is not a shape; did you mean qwen3_30b?" bench --shapes kimi_k2_slice,qwen3_30
refuses "both were given" bench "$work/tiny.yaml" --shapes all
refuses "bench draws its routing" bench "$work/tiny.yaml" --routing checkpoint
refuses "--repeat takes a whole number from 10" bench "$work/tiny.yaml" --repeat 9
refuses "runs on the host" bench "$work/tiny.yaml" --backend host --graph
refuses "no-such-file.yaml" bench no-such-file.yaml
sed -e 's/num_experts: 12/num_experts: 4096/' -e 's/^hidden_size: 64/hidden_size: 8192/' \
  -e 's/^intermediate_size: 40/intermediate_size: 8192/' "$work/plain.yaml" >"$work/huge.yaml"
refuses "are available" bench "$work/huge.yaml" --backend host

# The five shapes are found from any folder (a device that cannot be there ends the run), and are those of bench_peers.py.
cd "$work" || exit 1
for name in kimi_k2_slice kimi_ep64_rank qwen3_30b deepseek_v2_lite mixtral_8x7b; do
  refuses "NO_DEVICE" bench --shapes "$name" --backend staged --devices 1023
done
PYTHONDONTWRITEBYTECODE=1 python3 - "$SOURCE_DIR" <<'PYTHON' || complain "tests/bench and the rest of the repository differ"
import ast, os, re, sys
sys.path.insert(0, sys.argv[1] + "/tests/bench")
import library
layout = dict()
for line in open(sys.argv[1] + "/tests/abi/layout.def"):
    if m := re.match(r"PURR_FIELD\((\w+), (\w+), (\d+), (\d+)\)", line):
        layout.setdefault(m[1], []).append((m[2], int(m[3]), int(m[4])))
for struct in library.STRUCTS:
    fields = [(n, getattr(struct, n).offset, getattr(struct, n).size) for n, _ in struct._fields_]
    assert fields == layout[struct.__name__], (struct, fields, layout[struct.__name__])
tree = ast.parse(open(sys.argv[1] + "/tests/bench/bench_peers.py").read())  # it needs PyTorch to be imported
shapes = next(ast.literal_eval(n.value) for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "SHAPES")
folder = sys.argv[1] + "/configs/bench"
assert sorted(shapes) == sorted(name[:-5] for name in os.listdir(folder))
for name, shape in shapes.items():
    text = open(f"{folder}/{name}.yaml").read()
    number = lambda key: int((re.search(rf"^{key}: (\d+)$", text, re.M) or [0, 0])[1])
    keys = ("max_tokens", "hidden_size", "intermediate_size", "num_experts", "top_k", "  intermediate_size")
    assert shape == tuple(map(number, keys)), (name, shape)
PYTHON

# The sweep over other shapes, at a small scale; what is a cliff there is chance.
code=0
PYTHONDONTWRITEBYTECODE=1 python3 "$SOURCE_DIR/tests/bench/sweep.py" --program "$PURR" --backend host --scale 64 --only slots \
  --json "$work/sweep.json" >"$work/out" || code=$?
{ [ "$code" -le 1 ] && grep -q "^host, slots" "$work/out" && grep -q "^[0-9]* cliff" "$work/out"; } ||
  complain "sweep.py ended with $code"

# A GPU, where there is one.
code=0
$EMULATOR "$PURR" bench "$work/tiny.yaml" --backend staged --repeat 10 >"$work/out" 2>"$work/err" </dev/null || code=$?
if [ "$code" -eq 2 ] && grep -qE "NO_DEVICE|MISSING_KERNEL|INCOMPATIBLE_BINARY" "$work/err"; then
  echo "no GPU that the staged backend runs on: that part is skipped" >&2
else
  for graph in "" --graph; do
    # shellcheck disable=SC2086
    run 0 bench "$work/tiny.yaml" --backend staged --repeat 10 --saved $graph --json
    json_is 'o["launches_hidden"], o["device"] is not None, o["copy_tb_per_s"] > 0.01' "(True, True, True)"
    json_is 'all(0 < m["num_launches"] <= 8 and 0 < m["host_s"] < 1e-2 for m in o["layers"][0]["measurements"])' True
    json_is 'all(m["num_executed_rows"] % 64 == 0 for m in o["layers"][0]["measurements"])' True
  done
fi
finish
