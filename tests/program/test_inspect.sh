# What a file holds: packages, cubins, checkpoints, configs, and things that are none of these.
. "$(dirname "$0")/support.sh"
need_python

cubins=$SOURCE_DIR/tests/data/cubins
run 0 inspect "$cubins/kernels.sm_90a.cubin"
says out "for      sm_90a"
says out "cluster_rank    up to 32"
run 0 inspect "$cubins/kernels.sm_90a.cubin" --json
json_is 'o["kind"], o["arch"], o["toolkit"]' "('cubin', 'sm_90a', '13.0')"
json_is '{k["name"]: k["static_shared_bytes"] for k in o["kernels"]}["shared_sum"]' 16
run 0 inspect "$cubins/spill.sm_90.cubin" --json
json_is 'o["kernels"][0]["stack_bytes"], o["kernels"][0]["spill_instructions"] > 0' "(312, True)"

# A package as a folder and as a tar.
mkdir "$work/package"
cp "$cubins/exact_block.sm_80.cubin" "$work/package/"
digest=$(sha256sum "$work/package/exact_block.sm_80.cubin" | cut -d' ' -f1)
manifest() {
  cat <<EOF
{"format": 1, "name": "one", "producer": "tests", "images": [{"file": "exact_block.sm_80.cubin", "arch": "sm_80",
 "sha256": "$digest", "kernels": [{"entry": "exact_block", "role": "example", "threads": $1, "shared_bytes": 0,
 "cluster": [1, 1, 1], "tile": [0, 0], "params_version": 1, "params_bytes": 12, "shapes": ["top_k <= 8"]}]}]}
EOF
}
manifest 128 >"$work/package/manifest.json"
run 0 inspect "$work/package"
says out "package one"
says out "top_k <= 8"
tar --format=ustar -cf "$work/one.purr" -C "$work/package" .
run 0 inspect "$work/one.purr" --json
json_is 'o["kind"], o["name"], o["images"][0]["kernels"][0]["registers"] > 0' "('package', 'one', True)"
json_is 'o["images"][0]["problem"], o["images"][0]["sha256"]' "(None, '$digest')"

# S15: an image that is not what the manifest says is shown, and is a failed check.
manifest 256 >"$work/package/manifest.json"
run 1 inspect "$work/package"
says out "problem: "
says err "blocks of 128 x 1 x 1 threads, but the manifest says 256"
says err "this package will not be loaded"
run 1 inspect "$work/package" --json
json_is '"128 x 1 x 1" in o["images"][0]["problem"]' True
echo '{}' >"$work/package/manifest.json"
refuses 'the first key of a manifest must be "format"' inspect "$work/package"

# Kernels that Triton compiled: a package, a folder of its cache, one file.
triton=$SOURCE_DIR/tests/data/triton/3.6.0
run 0 inspect "$triton/package"
says out "6 arguments"
# By the name that --kernel takes; its entry in the image may be another.
run 0 inspect "$triton/stages"
grep -q "^  gpt_oss_kernel .* 13 arguments, entry swiglu_kernel$" "$work/out" || complain "gpt_oss_kernel is not listed"
run 0 inspect "$triton/stages" --json
json_is 'sorted(k["name"] for i in o["images"] for k in i["kernels"])[1], [k["entry"] for i in o["images"] for k in i["kernels"] if k["name"] == "gpt_oss_kernel"]' "('gpt_oss_kernel', ['swiglu_kernel'])"
run 0 inspect "$triton/package" --json
json_is '[a["name"] for i in o["images"] for k in i["kernels"] for a in k["triton"]["arguments"]][:2]' "['x_ptr', 'y_ptr']"
refuses "--kernel picks a Triton kernel of a package or folder, but $SOURCE_DIR/configs/qwen3_30b.yaml is taken for a \
layer config, since its name ends in .yaml" inspect "$SOURCE_DIR/configs/qwen3_30b.yaml" --kernel add_kernel
refuses "is taken for a cubin" inspect "$cubins/spill.sm_90.cubin" --kernel spill
refuses "is taken for a checkpoint" inspect "$SOURCE_DIR/tests/data/qwen3-moe" --kernel add_kernel
run 0 inspect "$triton/package" --kernel matmul_kernel
says out "tensordesc<fp16[64, 64]>"
says out "grid         [cdiv(M, BM)] x [cdiv(N, BN)] x [1]"
run 0 inspect "$triton/package" --kernel matmul_kernel --json
json_is 'o["kind"], len(o["variants"]), o["variants"][1]["num_parameters"], o["variants"][1]["num_hidden"]' \
  "('triton', 2, 20, 2)"
refuses "has no kernel 'none'" inspect "$triton/package" --kernel none
cp -r "$triton/package" "$work/forgetful" # a manifest that lost a kernel's arguments
python3 - "$work/forgetful/manifest.json" <<'END'
import json, sys
with open(sys.argv[1]) as file: manifest = json.load(file)
manifest["images"][0]["kernels"][0]["triton"]["arguments"] = []
with open(sys.argv[1], "w") as file: json.dump(manifest, file)
END
run 1 inspect "$work/forgetful"
says err "parameters behind its 0 arguments"
cp -r "$triton/package" "$work/idle" # one whose grid is always empty
sed 's/"cdiv(n, BLOCK)"/"2 - 2"/' "$triton/package/manifest.json" >"$work/idle/manifest.json"
run 1 inspect "$work/idle"
says err 'side 0 of the grid is "2 - 2", with which nothing ever runs'
run 0 inspect "$triton/copy"
says out "256 bytes a block, at multiples of 128, from the caller"
says out "do not tell names, types, promises and the grid"
run 0 inspect "$triton/add_cluster/add_kernel.json" --json
json_is 'o["name"], o["variants"][0]["cluster"]' "('add_kernel', [2, 1, 1])"

# Metadata that contradicts itself.
cp -r "$triton/matmul" "$work/contradiction"
sed 's/"elem_type": 6/"elem_type": 0/' "$triton/matmul/matmul_kernel.json" >"$work/contradiction/matmul_kernel.json"
refuses "elem_type is 0 (u8), but elem_size is 2; allowed with it is 1" inspect "$work/contradiction"

# Half of a kernel, and folders of whole ones.
mkdir "$work/half"
cp "$triton/add/add_kernel.json" "$work/half"
refuses "half has add_kernel.json, but no add_kernel.cubin beside it" inspect "$work/half"
says err "it was taken for a Triton kernel, since it is a folder with a .json that Triton writes beside a cubin"
says_not err "safetensors"
refuses "half has add_kernel.json, but no add_kernel.cubin beside it" inspect "$work/half" --kernel add_kernel
refuses "it has no sub.json with sub.cubin beside it" inspect "$work/half" --kernel sub
refuses "holds folders to inspect, such as add, but is none itself" inspect "$triton"
says err "NAME.json with NAME.cubin (a Triton kernel)"
refuses "holds folders, but nothing to inspect; looked for was a manifest.json (a package)" inspect "$SOURCE_DIR/tests/data/triton"
mkdir -p "$work/cache/entry"
cp "$triton/add/add_kernel.json" "$work/cache/entry"
refuses "such as entry, but is none itself" inspect "$work/cache"
mkdir "$work/other" # somebody else's .json
echo '{"a": 1}' >"$work/other/tokenizer.json"
refuses "other has neither model.safetensors" inspect "$work/other"

# Configs and checkpoints.
run 0 inspect "$SOURCE_DIR/configs/qwen3_30b.yaml" --json
json_is 'o["num_experts"]' 128
run 0 inspect "$SOURCE_DIR/tests/data/qwen3-moe"
run 0 inspect "$SOURCE_DIR/tests/data/qwen3-moe/model.safetensors" --json

# What none of them is.
refuses "a PATH is needed" inspect
refuses "No such file or directory" inspect "$work/absent"
echo hello >"$work/text"
refuses "neither a package, a Triton kernel, a cubin, a checkpoint nor a layer config: its name ends in none of" \
  inspect "$work/text"
: >"$work/empty.cubin"
refuses "empty.cubin is empty" inspect "$work/empty.cubin"
says err "it was taken for a cubin, since its name ends in .cubin"
refuses "not GPU code" inspect /bin/ls
says err "it was taken for a cubin, since it starts as an ELF file does"
mkfifo "$work/pipe.cubin"
refuses "nor a layer config: it is no file and no folder" inspect "$work/pipe.cubin"
mkdir "$work/nothing"
refuses "nothing has neither model.safetensors" inspect "$work/nothing"
says err "it was taken for a checkpoint, since it is a folder without a manifest.json and without cubins"
touch "$work/nothing/some.cubin"
refuses "has no <name>.json with <name>.cubin beside it" inspect "$work/nothing"
says err "it was taken for a Triton kernel, since it is a folder with cubins and without a manifest.json"
echo '{"a": 1}' >"$work/some.json"
refuses "some.cubin could not be opened" inspect "$work/some.json"
says err "since its name ends in .json, as Triton's metadata does"
finish
