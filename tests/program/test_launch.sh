# purr launch, as far as it goes without a GPU: the values, and what is wrong with them.
. "$(dirname "$0")/support.sh"
triton=$SOURCE_DIR/tests/data/triton/3.6.0
package=$triton/package

run 0 launch --help
says out "usage: purr launch PATH --arg NAME=VALUE"
says out "FILE.safetensors:NAME"
run 0 help launch
refuses "--nonsense is not an option" launch --nonsense
refuses "a PATH is needed" launch
refuses "/absent is not there" launch "$work/absent"
refuses "several kernels" launch "$package"
refuses "has no kernel 'sub'" launch "$package" --kernel sub
refuses "--arg takes NAME=VALUE, not 'n'" launch "$package" --kernel add_kernel --arg n
refuses "did you mean 'scale'" launch "$package" --kernel add_kernel --arg scael=1
refuses "argument 'n' is given twice" launch "$package" --kernel add_kernel --arg n=1 --arg n=2
refuses "a tensor is rand:SHAPE" launch "$package" --kernel add_kernel --arg x_ptr=1
refuses "a shape is 1 to 4 whole numbers" launch "$package" --kernel add_kernel --arg x_ptr=rand:4x
refuses "a shape is 1 to 4 whole numbers" launch "$package" --kernel add_kernel --arg x_ptr=rand:-4
refuses "a shape is 1 to 4 whole numbers" launch "$package" --kernel add_kernel --arg x_ptr=rand:1x1x1x1x1
refuses "behind the shape stands what is no element type" launch "$package" --kernel add_kernel --arg x_ptr=rand:4y
refuses "the element type is not known" launch "$package" --kernel add_kernel --arg x_ptr=rand:4:fp4
refuses "the element type is not known" launch "$triton/add" --arg 0=rand:4
refuses "No such file or directory" launch "$package" --kernel add_kernel --arg "x_ptr=$work/none.safetensors:x"
refuses "--arg takes NAME=VALUE, not an empty text" launch "$package" --arg=
refuses "is of kernel 'add_kernel', not of 'sub'" launch "$triton/add/add_kernel.json" --kernel sub
refuses "has 4 bytes, but argument 3 ('3', fp64) needs 8" launch "$triton/add" --signature '*fp32,*fp32,*fp32,fp64,i32'

# What is wrong with the command line is said before a missing driver is; nothing here has one.
all="--kernel add_kernel --arg x_ptr=rand:64 --arg y_ptr=rand:64 --arg out_ptr=zeros:64"
refuses "argument 'scale' (fp32) is not set; give it with --arg scale=VALUE" launch "$package" $all --arg n=64
refuses "argument 'y_ptr' (*fp32) is not set" launch "$package" --kernel add_kernel --arg x_ptr=rand:64
refuses "argument 'scale' (fp32) is 'much': it is no number" launch "$package" $all --arg n=64 --arg scale=much
refuses "argument 'n' (i32) is '6y': it is no number" launch "$package" $all --arg scale=1 --arg n=6y
refuses "its type does not hold that number" launch "$package" $all --arg n=64 --arg scale=1e300
refuses "it takes a number, not a tensor" launch "$package" $all --arg n=64 --arg scale=rand:4
refuses "the tensor's elements are of another type" launch "$package" --kernel add_kernel --arg x_ptr=rand:64:fp16
for grid in x 0 1,0 1,2,3,4 1, ,1 -1 2147483648 1,65536 99999999999999999999999; do
  refuses "--grid takes up to three whole numbers" launch "$package" $all --arg n=64 --arg scale=1 --grid=$grid
done
signature='out_ptr=*fp64,b=i1,i8=i8,u16=u16,i64=i64,f16=fp16,bf=bf16,f64=fp64'
scalars="$triton/scalars --signature $signature --grid 1 --arg out_ptr=zeros:8 --arg b=true --arg i8=-128 --arg i64=-1
  --arg f16=1 --arg bf=1 --arg f64=1e300"
refuses "argument 'u16' (u16) is '65536': its type does not hold that number" launch $scalars --arg u16=65536
refuses "argument 'u16' (u16) is '-1': its type" launch $scalars --arg u16=-1
refuses "argument 'u16' (u16) is '0.5': it takes whole numbers" launch $scalars --arg u16=0.5
run 2 launch $scalars --arg u16=65535 --device 1023
says_not err "argument"
run 2 launch "$package" $all --arg n=64 --arg scale=0.5 --grid 2147483647,65535,65535 --device 1023 \
  --output "$work/out.safetensors"
says_not err "grid"
[ ! -e "$work/out.safetensors" ] || complain "a launch that failed left its output file"
finish
