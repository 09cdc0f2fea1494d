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
run 2 launch "$package" --kernel add_kernel --arg x_ptr=rand:64 --arg n=64 --output "$work/out.safetensors"
[ ! -e "$work/out.safetensors" ] || complain "a launch that failed left its output file"
finish
