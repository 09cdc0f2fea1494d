#!/bin/sh
# Compiles the images beside this file; run in this folder with nvcc 13.0 on PATH. PTXAS_12 names the ptxas of CUDA 12.4,
# for the older form of the format; without it those images stay as they are.
set -e
for arch in 80 90 90a 100f; do nvcc -O3 -arch=sm_$arch -cubin kernels.cu -o kernels.sm_$arch.cubin; done
nvcc -O3 -arch=sm_90 -cubin spill.cu -o spill.sm_90.cubin
ptxas -arch=sm_80 exact_block.ptx -o exact_block.sm_80.cubin
if [ -n "$PTXAS_12" ]; then
  "$PTXAS_12" -arch=sm_80 exact_block.ptx -o exact_block.sm_80.cuda_12_4.cubin
  for name in kernels spill; do
    nvcc -O3 -arch=compute_90a -ptx $name.cu -o $name.ptx
    sed -i 's/^.version .*/.version 8.4/' $name.ptx
    "$PTXAS_12" -arch=sm_90a $name.ptx -o $name.sm_90a.cuda_12_4.cubin
    rm $name.ptx
  done
fi
