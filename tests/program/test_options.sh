# What the option parser refuses, and how it says so.
. "$(dirname "$0")/support.sh"
config=$SOURCE_DIR/configs/qwen3_30b.yaml

refuses "--tokns is not an option; did you mean --tokens?" run "$config" --tokns 4
refuses "--rank is not an option; did you mean --ranks?" run "$config" --rank=4
refuses "a value is missing: --tokens N" run "$config" --tokens
refuses "a value is missing: --backend auto|host|staged|mega" run "$config" --backend
for value in 1x 0x10 1e3 -1 " 4" "" 99999999999999999999 16777217; do
  refuses "--tokens takes a whole number from 0 to 16777216, not '$value'" run "$config" --tokens "$value"
done
refuses "--ranks takes a whole number from 1 to 1024, not '0'" run "$config" --ranks=0
refuses "--threads takes a whole number from 1 to 1024, not '1025'" run "$config" --threads 1025
refuses "--backend takes one of auto, host, staged, mega, not 'gpu'" run "$config" --backend gpu
refuses "--precision takes one of bf16, mxfp8, not 'fp8'" run "$config" --precision=fp8
refuses "--tolerance takes a number from 0 to 1e+06, not 'nan'" verify --tolerance nan
refuses "--tolerance takes a number from 0 to 1e+06, not '-0.1'" verify --tolerance -0.1
refuses "--json takes no value, got 'yes'" run "$config" --json=yes
refuses "--output takes FILE, not an empty text" run "$config" --output=
refuses "'-t' is not an option; options start with two dashes" run "$config" -t
refuses "unexpected word 'extra'" run "$config" extra
refuses "'--no-such-file'" run -- --no-such-file

refuses "a CONFIG or --checkpoint is needed" run
refuses "--layer names a layer of a checkpoint" run "$config" --layer 1
refuses "both were given" run "$config" --tokens 4 --input x.safetensors
refuses "--routing checkpoint needs a checkpoint" run "$config" --routing checkpoint
refuses "--routing 'unifrom' is neither a routing nor a file that can be read; did you mean uniform?" run "$config" --routing unifrom
refuses "--routing zipf:S takes a number S from 0 to 10, not 'x'" run "$config" --routing zipf:x
refuses "--checkpoint DIR is needed" verify
refuses "--capture FILE is needed" verify --checkpoint "$SOURCE_DIR/tests/data/qwen3-moe"
refuses "no-such-file.yaml" run no-such-file.yaml
refuses "no-such-folder" run --checkpoint no-such-folder
refuses "no-such-file" verify --checkpoint "$SOURCE_DIR/tests/data/qwen3-moe" --capture no-such-file

# The last of an option's values counts, and options may stand before the words.
refuses "configs/nothing.yaml" run --tokens 4 --tokens 5 configs/nothing.yaml
# Environment variables that mean nothing.
refuses_with() { # VARIABLE=VALUE TEXT
  export "${1?}"
  refuses "$2" plan "$SOURCE_DIR/configs/qwen3_30b.yaml"
  unset "${1%%=*}"
}
refuses_with PURR_NUM_THREADS=many "PURR_NUM_THREADS is 'many'; allowed are 1 to 1024"
refuses_with PURR_LOG=loud "PURR_LOG is 'loud'; allowed are error, warning, info and debug"

finish
