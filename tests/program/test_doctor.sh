# What works on a machine: without a driver, and with one that stands in for it.
. "$(dirname "$0")/support.sh"
need_python
unset PURR_PACKAGE_PATH

# FAKE_CUDA_FOLDER holds a libcuda.so.1 whose devices the variable FAKE_CUDA sets.
with() { export FAKE_CUDA=$1 LD_LIBRARY_PATH=$FAKE_CUDA_FOLDER; }

with devices=0
run 0 doctor
says out "host      works, "
says out "CUDA_ERROR_NO_DEVICE"
says out "problems  none"
run 0 doctor --json
json_is 'o["host"]["works"], o["driver"]["works"], o["devices"], o["problems"]' "(True, False, [], [])"

with "devices=2 cc=80"
mkdir "$work/none"
export PURR_PACKAGE_PATH=$work/none
code=0
# shellcheck disable=SC2086
$EMULATOR "$PURR" doctor --json >"$work/out" 2>"$work/err" </dev/null || code=$?
json_is 'o["driver"]["works"], [d["cc"] for d in o["devices"]], o["devices"][0]["peers"]' "(True, ['8.0', '8.0'], [1])"
# With the kernels of this build there is no problem, without there is one for each device.
json_is "len(o['problems']) == ($code * 2) and (len(o['devices'][0]['kernels']) > 0) == ($code == 0)" True

with version=11040
run 1 doctor
says out "driver    cannot be used, see below"
says out "driver too old: libcuda.so.1 is of CUDA 11.4 and has no "

with devices=1
echo "not json" >"$work/none/manifest.json"
run 1 doctor
says out "packages  cannot be used, see below"
says out "manifest.json:1:1: "
export PURR_PACKAGE_PATH=relative/path
run 1 doctor
says out "PURR_PACKAGE_PATH holds 'relative/path'; only absolute paths are taken"
refuses "unexpected word 'now'" doctor now

# A variable that the library refuses is a finding; the rest is told all the same.
unset PURR_PACKAGE_PATH
export PURR_NUM_THREADS=abc
run 1 doctor
says err "PURR_NUM_THREADS"
says out "driver"
finish
