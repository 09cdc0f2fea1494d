# purr config: checks and prints configs, makes them from checkpoints.
. "$(dirname "$0")/support.sh"
configs=$SOURCE_DIR/configs
data=$SOURCE_DIR/tests/data

# What is printed is a config, and printing that changes nothing.
for config in "$configs"/*.yaml "$configs"/bench/*.yaml; do
  run 0 config "$config"
  cp "$work/out" "$work/layer.yaml"
  run 0 config "$work/layer.yaml"
  cmp -s "$work/out" "$work/layer.yaml" || complain "purr config $config does not read back as itself"
done
run 0 config "$configs/kimi_k2.yaml"
says out 'name: "kimi_k2" '
says out "num_experts: 384 "

# The messages beside the bad inputs, with the path as it was given.
for config in "$configs"/bad/*.yaml; do
  message=$(cat "${config%.yaml}.txt")
  refuses "${message#"$(basename "$config")"}" config "$config"
done
refuses "a CONFIG or --from-checkpoint is needed" config
refuses "both were given" config "$configs/kimi_k2.yaml" --from-checkpoint "$data/qwen3-moe"
refuses "--layer names a layer of a checkpoint" config "$configs/kimi_k2.yaml" --layer 3
refuses "is not a regular file" config "$configs"
refuses "/nowhere" config --from-checkpoint /nowhere

run 0 config --from-checkpoint "$data/qwen3-moe"
says out "hidden_size: 128 "
says out "intermediate_size: 64 "
says out "num_experts: 16 "
says out "top_k: 4 "
says_not out "shared_expert"
cp "$work/out" "$work/layer.yaml"
run 0 config "$work/layer.yaml"
cmp -s "$work/out" "$work/layer.yaml" || complain "the config of a checkpoint does not read back as itself"
run 0 config --from-checkpoint "$data/deepseek-v3" --layer 1
says out "shared_expert:"
says out "  intermediate_size: 128 "
refuses "layer 0" config --from-checkpoint "$data/deepseek-v3" --layer 0

need_python
run 0 config "$configs/deepseek_v2_lite.yaml" --json
json_is "o['name']" deepseek_v2_lite
json_is "o['shared_expert']['intermediate_size']" 2816
json_is "o['activation_memory']" full
run 0 config "$configs/qwen3_30b.yaml" --json
json_is "o['shared_expert']" None
finish
