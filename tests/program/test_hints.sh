# What to do next, as a failed call's second line says: never something that cannot help. On a driver that stands in.
. "$(dirname "$0")/support.sh"
unset PURR_PACKAGE_PATH
export LD_LIBRARY_PATH=$FAKE_CUDA_FOLDER FAKE_CUDA=devices=1
data=$SOURCE_DIR/tests/data/qwen3-moe
config=$SOURCE_DIR/configs/qwen3_30b.yaml

# A GPU that is not there, and one that was asked for beside the host.
refuses "device 3 is not there; the driver lists 1" plan "$config" --device 3
says err "leave --device out"
says_not err "backend 'host'"
refuses "device 3 is not there; the driver lists 1" run --checkpoint "$data" --devices 3
says err "leave --devices out"
refuses "device 3 is not there; the driver lists 1" plan "$config" --device 3 --backend staged
refuses "--device names a GPU, but backend 'host', which uses none, was asked for" plan "$config" --device 3 --backend host
refuses "no GPU backend has MXFP8 kernels yet" plan "$config" --device 0 --precision mxfp8

# No kernels for this GPU: neither ranks nor precision would bring them.
for command in run bench; do
  layer="--checkpoint $data"
  [ $command = bench ] && layer=$config
  FAKE_CUDA="devices=1 cc=70"
  # shellcheck disable=SC2086
  refuses "kernel" $command $layer --backend staged
  says err "PURR_PACKAGE_PATH"
  says_not err "--ranks"
done

# No memory on the GPU, in a build that has kernels for it.
FAKE_CUDA="devices=1 memory_gib=0"
if "$PURR" plan "$config" --backend staged >/dev/null 2>&1; then
  refuses "OUT_OF_DEVICE_MEMORY" run --checkpoint "$data" --backend staged
  says err "take fewer --tokens"
  says_not err "try again with --ranks 1"
  refuses "OUT_OF_DEVICE_MEMORY" run --checkpoint "$data" --backend staged --ranks 2
  says err "more GPUs with --devices"
fi
finish
