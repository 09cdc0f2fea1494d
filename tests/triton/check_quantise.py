#!/usr/bin/env python3
"""Holds quantise_kernel of kernels/triton/stages.py, run by Triton's interpreter, against the host's quantiser, to the
byte: elements, scales, the padding of tiles, and what lies between rows, which neither may write.

  check_quantise.py LIBPURR.so

Needs Triton and NumPy; no GPU, no PyTorch.
"""
import ctypes
import os
import sys
import warnings

os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../kernels/triton"))

warnings.filterwarnings("ignore")  # of NumPy about the interpreter
import numpy as np  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.runtime.interpreter import TensorHandle  # noqa: E402

import export  # noqa: E402
import stages  # noqa: E402

BF16, E4M3 = 1, 5  # PURR_DTYPE_*
PLAIN, TILES = 0, 1  # PURR_SCALE_LAYOUT_*
RULES = ("rceil", "floor")  # PURR_SCALE_RULE_*


class Error(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int32) for n in ("struct_size", "status", "native_code", "rank", "line", "column")] + [
        ("message", ctypes.c_char * 512)
    ]


class Scales(ctypes.Structure):
    _fields_ = (
        [("struct_size", ctypes.c_uint32)]
        + [(n, ctypes.c_int32) for n in ("format", "block_length", "axis", "granularity", "layout")]
        + [("data", ctypes.c_void_p), ("data_bytes", ctypes.c_uint64)]
        + [(n, ctypes.c_int64) for n in ("slice_stride", "outer_stride", "block_stride")]
    )


class Tensor(ctypes.Structure):
    _fields_ = (
        [("struct_size", ctypes.c_uint32)]
        + [(n, ctypes.c_int32) for n in ("dtype", "num_dims", "reserved")]
        + [("data", ctypes.c_void_p), ("pointers", ctypes.c_void_p)]
        + [("shape", ctypes.c_int64 * 4), ("stride", ctypes.c_int64 * 4), ("scales", ctypes.POINTER(Scales))]
    )


def host(library, context, source, elements, scales, shape, layout, strides, rule):
    described = Scales(ctypes.sizeof(Scales), layout=layout, data=scales.ctypes.data, data_bytes=scales.nbytes)
    described.slice_stride = strides["scales_slice_stride"]
    if layout == PLAIN:
        described.outer_stride, described.block_stride = strides["scales_outer_stride"], strides["scales_block_stride"]

    def tensor(dtype, array, name):
        made = Tensor(ctypes.sizeof(Tensor), dtype, 3, 0, array.ctypes.data)
        made.shape[:3] = shape
        made.stride[:3] = (strides[name + "_slice_stride"], strides[name + "_row_stride"], 1)
        return made

    a, b, error = tensor(BF16, source, "source"), tensor(E4M3, elements, "elements"), Error(ctypes.sizeof(Error))
    b.scales = ctypes.pointer(described)
    if library.purr_mxfp8_quantize(context, ctypes.byref(a), rule, ctypes.byref(b), ctypes.byref(error)) != 0:
        sys.exit(error.message.decode())


def pointer(array, element):
    type_ = tl.pointer_type(element)
    return tl.tensor(TensorHandle(np.array([array.ctypes.data], dtype=np.uint64), type_), type_)


def kernel(source, elements, scales, values, programs):
    """As purr_mxfp8_quantize_on launches it."""
    constants = {a["name"]: a["constant"] for a in export.parse_signature(stages.QUANTISE) if "constant" in a}
    stages.quantise_kernel[(programs,)](
        source=pointer(source, tl.bfloat16),
        elements=pointer(elements, tl.uint8),
        scales=pointer(scales, tl.uint8),
        **values,
        **constants,
    )


def numbers(count):
    """Blocks of BF16 bits around every exponent, with what is special."""
    random = np.random.default_rng(7)
    exponent = np.repeat(random.permutation(np.arange(count // 32 + 1) % 256), 32)[:count] - random.integers(0, 20, count)
    bits = np.clip(exponent, 0, 254) << 7 | random.integers(0, 128, count) | random.integers(0, 2, count) << 15
    exact = random.random(count) < 0.2  # ties, and the borders of rceil
    bits = np.where(exact, bits & 0xFFF0, bits)
    special = random.random(count // 32 + 1)
    for low, value in ((0.97, 0x7F80), (0.98, 0xFFC1)):  # an Inf or a NaN among the others
        at = np.flatnonzero(special > low) * 32 + 5
        bits[at[at < count]] = value
    zeros = np.repeat(special < 0.03, 32)[:count]
    bits[zeros] &= 0x8000  # +0 and -0
    return bits.astype(np.uint16)


def check(library, context, shape, gaps, layout, rule, programs):
    slices, rows, columns = shape
    blocks = -(-columns // 32)
    row_tiles, block_tiles = -(-rows // 128), -(-blocks // 4)
    source_row, elements_row = columns + 8 * gaps, columns + 16 * gaps
    strides = {
        "source_row_stride": source_row,
        "source_slice_stride": rows * source_row + 16 * gaps,
        "elements_row_stride": elements_row,
        "elements_slice_stride": rows * elements_row + 8 * gaps,
        # With gaps the plain scales stand as [blocks, rows].
        "scales_outer_stride": block_tiles * 512 if layout == TILES else 1 if gaps else blocks,
        "scales_block_stride": 0 if layout == TILES else rows + 3 if gaps else 1,
    }
    one = row_tiles * block_tiles * 512 if layout == TILES else blocks * (rows + 3 if gaps else rows)
    strides["scales_slice_stride"] = one + 32 * gaps
    source = numbers(slices * strides["source_slice_stride"])
    made = []
    for _ in range(2):
        elements = np.full(slices * strides["elements_slice_stride"], 0xA5, dtype=np.uint8)
        whole = np.full(slices * strides["scales_slice_stride"] + 16, 0xA5, dtype=np.uint8)
        made.append((elements, whole[-whole.ctypes.data % 16 :][: len(whole) - 16]))  # tiles begin at multiples of 16
    host(library, context, source, *made[0], shape, layout, strides, rule)
    padded = (row_tiles * 128, block_tiles * 4) if layout == TILES else (rows, blocks)
    sizes = dict(num_slices=slices, num_rows=rows, num_columns=columns, num_scale_rows=padded[0], num_scale_blocks=padded[1])
    kernel(source, *made[1], dict(strides, **sizes, scale_layout=layout, scale_rule=rule), programs)
    wrong = [int((a != b).sum()) for a, b in zip(*made)]
    where = f"{slices} x {rows} x {columns}, {'tiles' if layout else 'plain'}, {RULES[rule]}, {programs} programs"
    print(f"{where}: {len(made[0][0])} elements, {len(made[0][1])} scales, {wrong[0]} and {wrong[1]} differ")
    return wrong == [0, 0]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    library, context = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p()
    if library.purr_context_create(None, ctypes.byref(context), None) != 0:
        sys.exit("no context")
    good = True
    for shape, gaps, programs in (((1, 300, 288), 0, 5), ((3, 37, 72), 1, 7), ((2, 130, 8), 1, 64)):
        for layout in (PLAIN, TILES):
            for rule in range(len(RULES)):
                good = check(library, context, shape, gaps, layout, rule, programs) and good
    library.purr_context_destroy(context)
    sys.exit(0 if good else "check_quantise.py: the kernel's bytes are not the host's")


main()
