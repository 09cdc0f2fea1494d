# purr plan: the explanation, its JSON, what is refused.
. "$(dirname "$0")/support.sh"
configs=$SOURCE_DIR/configs

run 0 plan "$configs/kimi_k2.yaml" --sms 148 --backend host
says out "Layer kimi_k2 in bf16 on 1 rank"
says out "2 * 148 * 128 * 256 / 4096 = 2368 rows"
says out "2 * 148 * 128 * 256 / 2048 = 4736 rows"
says out "combine buffer"
says out "469762048   448.00 MiB"
says out "Kept for backward: g and u of all"
awk 'length($0) > 120 { exit 1 }' "$work/out" || complain "purr plan prints lines over 120 characters"

for config in "$configs"/*.yaml "$configs"/bench/*.yaml; do run 0 plan "$config" --backend host; done

refuses "unknown key 'num_expert'; did you mean 'num_experts'?" plan "$configs/bad/key_typo.yaml"
says err "key_typo.yaml:3:1: "
refuses "num_experts 384 is not divisible by num_ranks 5" plan "$configs/kimi_k2.yaml" --ranks 5
refuses "/nowhere" plan /nowhere/layer.yaml
refuses "a CONFIG is needed" plan
refuses "--sms takes a whole number from 1 to 65536, not '0'" plan "$configs/kimi_k2.yaml" --sms 0
refuses "--backend takes one of auto, host, staged, mega, not 'gpu'" plan "$configs/kimi_k2.yaml" --backend gpu
refuses "--device names a GPU, but backend 'host', which uses none, was asked for" \
  plan "$configs/kimi_k2.yaml" --backend host --device 0

need_python
run 0 plan "$configs/deepseek_v2_lite.yaml" --ranks 4 --max-tokens 1000 --backend host --sms 132 --json
json_is "o['layer']['name']" deepseek_v2_lite
json_is "o['layer']['num_ranks']" 4
json_is "o['layer']['max_tokens']" 1000
json_is "o['backend']" host
json_is "o['num_local_experts']" 16
json_is "o['minibatch']['forward']['min_rows']" 4224
json_is "o['weight_bytes'] == 16 * 3 * 1408 * 2048 * 2 + 3 * 2816 * 2048 * 2" True
json_is "o['combine_bytes'] == 1000 * 6 * 2048 * 2" True
json_is "sum(r['bytes'] for r in o['regions']['workspace'] if r['name'].startswith('ring of')) <= o['ring_bytes']" True
json_is "all(r['offset'] + r['bytes'] <= o['saved_bytes'] for r in o['regions']['saved'])" True
finish
