#!/usr/bin/env python3
"""Compiles the test data with the Triton that runs this script, without a GPU: make.py [FOLDER]

The files are as Triton leaves them in its cache, VERSION/CASE/NAME.json and .cubin, but for two things that name the
machine: the metadata's extern_libs is left out, and the images have no line information. VERSION/package is the package
that export.py makes of these, VERSION/stages that of kernels/triton/stages.py for sm_90. Made again they are the same to
the byte, except for images that CUDA 12.9 makes (sm_100 by Triton 3.6). Each version of the folder was made by

  python3 -m venv VENV && VENV/bin/pip install triton==VERSION && VENV/bin/python make.py
"""
import json
import os
import shutil
import sys
import warnings

os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
warnings.filterwarnings("ignore")
here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "../../../kernels/triton"))
sys.path.insert(0, here)

import triton  # noqa: E402

import export  # noqa: E402
import kernels  # noqa: E402
import stages  # noqa: E402

ADD = "x_ptr=*fp32:16, y_ptr=*fp32:16, out_ptr=*fp32:16, scale=fp32, n=i32:16, BLOCK=1024"
ANY = "x_ptr=*fp32, y_ptr=*fp32, out_ptr=*fp32, scale=fp32, n=i32, BLOCK=1024"
ONE = "x_ptr=*fp32:16, y_ptr=*fp32:16, out_ptr=*fp32:16, scale=fp32, n=1, BLOCK=1024"
SCALARS = "out_ptr=*fp64, b=i1, i8=i8, u16=u16, i64=i64, f16=fp16, bf=bf16, f64=fp64"
PRODUCT = (
    "a_desc=tensordesc<fp16[64, 64]>, b_desc=tensordesc<fp16[64, 64]>, c_desc=tensordesc<fp16[64, 64]>, M=i32, N=i32, "
    "K=i32, BM=64, BN=64, BK=64"
)
COPY = "x_ptr=*fp32:16, out_ptr=*fp32:16, rows=i32, columns=i32:16, BR=16, BC=32"
ROWS = ["cdiv(n, BLOCK)"]
TILES = ["cdiv(M, BM)", "cdiv(N, BN)"]

# case, function, signature, architecture, options, grid, first version
CASES = [
    ("add", "add_kernel", ADD, 90, {}, ROWS, (3, 2)),
    ("add_any", "add_kernel", ANY, 90, {}, ROWS, (3, 2)),
    ("add_one", "add_kernel", ONE, 90, {}, ROWS, (3, 6)),
    ("add_sm_80", "add_kernel", ANY, 80, {}, ROWS, (3, 2)),
    ("add_cluster", "add_kernel", ADD, 90, {"num_ctas": 2}, ROWS, (3, 2)),
    ("add_overlap", "add_kernel", ADD, 90, {"launch_pdl": True, "num_warps": 8}, ROWS, (3, 4)),
    ("add_cooperative", "add_kernel", ADD, 90, {"launch_cooperative_grid": True}, ROWS, (3, 3)),
    ("scalars", "scalars_kernel", SCALARS, 90, {"num_warps": 1}, ["1"], (3, 3)),
    ("matmul", "matmul_kernel", PRODUCT, 90, {}, TILES, (3, 4)),
    ("matmul_sm_80", "matmul_kernel", PRODUCT, 80, {}, TILES, (3, 4)),
    ("copy", "copy_kernel", COPY, 90, {}, ["cdiv(rows, BR)", "cdiv(columns, BC)"], (3, 4)),
    ("specialized", "specialized_kernel", PRODUCT, 90, {}, TILES, (3, 5)),
    ("specialized_sm_100", "specialized_kernel", PRODUCT, 100, {}, TILES, (3, 5)),
]
name_of_package, name_of_stages = "package", "stages"
# Of which versions which cases are kept: each that differs from the one before; all of one, with its package.
KEPT = {
    "3.2.0": ["add", "add_sm_80", "add_cluster"],
    "3.4.0": ["add", "matmul", "matmul_sm_80", "add_overlap"],
    "3.6.0": [case[0] for case in CASES] + [name_of_package, name_of_stages],
    "3.9.0": ["add", "add_cluster", "matmul", "matmul_sm_80", "copy"],
}


def compile_case(case):
    _, function, signature, arch, options, _, _ = case
    if tuple(int(part) for part in triton.__version__.split(".")[:2]) < (3, 3):
        options = {key: value for key, value in options.items() if not key.startswith("launch")}
    return export.compile_variant(getattr(kernels, function), signature, arch, dict(options))


def write_case(folder, compiled):
    os.makedirs(folder)
    name = compiled.metadata.name
    metadata = compiled.metadata._asdict()
    metadata.pop("extern_libs", None)
    metadata["target"] = metadata["target"]._asdict() if hasattr(metadata["target"], "_asdict") else vars(metadata["target"])
    with open(os.path.join(folder, name + ".json"), "w") as out:
        json.dump(metadata, out)
        out.write("\n")
    with open(os.path.join(folder, name + ".cubin"), "wb") as out:
        out.write(compiled.asm["cubin"])


def main():
    root = os.path.join(sys.argv[1] if len(sys.argv) > 1 else here, triton.__version__)
    kept = KEPT.get(triton.__version__)
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    shutil.rmtree(root, ignore_errors=True)
    package = export.Package("test")
    for case in CASES:
        name, _, _, _, _, grid, first = case
        if version < first or (kept is not None and name not in kept):
            continue
        compiled = compile_case(case)
        write_case(os.path.join(root, name), compiled)
        if not name.startswith(("add_cluster", "add_overlap", "add_cooperative")):
            package.add(compiled, grid)
    if kept is None or name_of_package in kept:
        package.write(os.path.join(root, name_of_package))
    package = export.Package("stages")
    for name, function, signature, options in stages.KERNELS:
        if version >= (3, 3) and (kept is None or name_of_stages in kept):
            package.add(export.compile_variant(function, signature, 90, options), kernel=name)
    if package.images:
        package.write(os.path.join(root, name_of_stages))
    print(root)


main()
