#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kernels for stages of a layer, in Triton; README.md beside this file says what each argument is.

  stages.py PACKAGE [--target sm_90 ...]

compiles them into a Purr package, without a GPU. The two named swiglu_kernel and gpt_oss_kernel are one function with
other constants.
"""
import argparse
import os
import re
import sys

import triton
import triton.language as tl

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import export  # noqa: E402


@triton.jit
def is_idle(status, turn, turn_owner):
    """Whether the call has failed, or another one owns the workspace: then nothing may be written."""
    owner = tl.load(turn, volatile=True) >> 28
    return (tl.load(status, volatile=True) != 0) | (owner != turn_owner.to(tl.uint64))


@triton.jit
def swiglu_kernel(
    gate,
    up,
    out,
    rows,
    columns,
    limit,
    status,
    turn,
    turn_owner,
    ALPHA: tl.constexpr,
    OFFSET: tl.constexpr,
    BLOCK: tl.constexpr,
    PROGRAMS_PER_SM: tl.constexpr,
):
    """out = g * sigmoid(ALPHA * g) * (u + OFFSET) with g = min(gate, limit), u = clamp(up, -limit, limit)."""
    if is_idle(status, turn, turn_owner):
        return
    count = tl.load(rows) * columns
    for start in range(tl.program_id(0).to(tl.int64) * BLOCK, count, tl.num_programs(0).to(tl.int64) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < count
        g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
        u = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
        if limit > 0.0:
            g = tl.minimum(g, limit, propagate_nan=tl.PropagateNan.ALL)
            u = tl.minimum(u, limit, propagate_nan=tl.PropagateNan.ALL)
            u = tl.maximum(u, -limit, propagate_nan=tl.PropagateNan.ALL)
        a = g / (1.0 + tl.exp(-ALPHA * g)) * (u + OFFSET)
        tl.store(out + at, a.to(tl.bfloat16), mask=inside)


@triton.jit
def grouped_gemm_kernel(
    a,
    a_stride,
    a_divisor,
    slot,
    b,
    b_expert_stride,
    b_stride,
    c,
    c_stride,
    c_scatter,
    expert_begin,
    expert_count,
    tile_begin,
    tile_expert,
    num_experts,
    n,
    k,
    status,
    turn,
    turn_owner,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    PROGRAMS_PER_SM: tl.constexpr,
):
    """c[row, :] = a[row, :] . b[expert of the row], one chain of sums over ascending k."""
    if is_idle(status, turn, turn_owner):
        return
    num_columns = tl.cdiv(n, COLUMNS)
    num_tiles = tl.load(tile_begin + num_experts) * num_columns
    for t in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        tile = t // num_columns
        column = t % num_columns * COLUMNS + tl.arange(0, COLUMNS)
        expert = tl.load(tile_expert + tile)
        within = (tile - tl.load(tile_begin + expert)) * ROWS + tl.arange(0, ROWS)
        used = within < tl.load(expert_count + expert)
        row = tl.load(expert_begin + expert) + within
        place = tl.load(slot + row, mask=used, other=0)
        source = tl.where(a_divisor > 0, place // tl.maximum(a_divisor, 1), row)
        a_row = a + source.to(tl.int64)[:, None] * a_stride
        b_row = b + expert.to(tl.int64) * b_expert_stride + column.to(tl.int64)[None, :] * b_stride
        wanted = column < n
        sums = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        for step in range(0, k, STEP):
            depth = step + tl.arange(0, STEP)
            left = tl.load(a_row + depth[None, :], mask=used[:, None] & (depth < k)[None, :], other=0.0)
            right = tl.load(b_row + depth[:, None], mask=wanted[None, :] & (depth < k)[:, None], other=0.0)
            sums = tl.dot(left, right, sums)
        target = tl.where(c_scatter != 0, place, row)
        c_at = c + target.to(tl.int64)[:, None] * c_stride + column[None, :]
        tl.store(c_at, sums.to(tl.bfloat16), mask=used[:, None] & wanted[None, :])


@triton.jit
def combine_kernel(
    ids,
    ids_stride,
    ids_step,
    weights,
    weights_stride,
    weights_step,
    slots,
    slots_stride,
    out,
    out_stride,
    num_tokens,
    top_k,
    hidden,
    status,
    turn,
    turn_owner,
    BLOCK: tl.constexpr,
    PROGRAMS_PER_SM: tl.constexpr,
):
    """out[token] = the sum of weight * row over its slots, in their order."""
    if is_idle(status, turn, turn_owner):
        return
    for token in range(tl.program_id(0), num_tokens, tl.num_programs(0)):  # strides have 64 bits, and so do addresses
        for start in range(0, hidden, BLOCK):
            column = start + tl.arange(0, BLOCK)
            inside = column < hidden
            sums = tl.zeros((BLOCK,), dtype=tl.float32)
            for k in range(top_k):
                if tl.load(ids + token * ids_stride + k * ids_step) >= 0:
                    weight = tl.load(weights + token * weights_stride + k * weights_step)
                    row = tl.load(slots + (token * top_k + k) * slots_stride + column, mask=inside, other=0.0)
                    sums = tl.fma(weight, row.to(tl.float32), sums)
            tl.store(out + token * out_stride + column, sums.to(tl.bfloat16), mask=inside)


@triton.jit
def quantise_kernel(
    source,
    source_row_stride,
    source_slice_stride,
    elements,
    elements_row_stride,
    elements_slice_stride,
    scales,
    scales_slice_stride,
    scales_outer_stride,
    scales_block_stride,
    num_slices,
    num_rows,
    num_columns,
    num_scale_rows,
    num_scale_blocks,
    scale_layout,
    scale_rule,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
    PROGRAMS_PER_SM: tl.constexpr,
):
    """BF16 to E4M3 with a scale for 32 elements of a row. Exact, but for the one rounding of each element."""
    row_tiles = tl.cdiv(num_scale_rows, ROWS)
    block_tiles = tl.cdiv(num_scale_blocks, BLOCKS)
    num_tiles = num_slices * row_tiles * block_tiles
    for t in range(tl.program_id(0).to(tl.int64), num_tiles, tl.num_programs(0).to(tl.int64)):
        slice = t // (row_tiles * block_tiles)
        row = t // block_tiles % row_tiles * ROWS + tl.arange(0, ROWS)
        block = t % block_tiles * BLOCKS + tl.arange(0, BLOCKS)
        column = block[:, None] * 32 + tl.arange(0, 32)[None, :]
        inside = (row < num_rows)[:, None, None] & (column < num_columns)[None, :, :]
        at = source + slice * source_slice_stride + row[:, None, None] * source_row_stride + column[None, :, :]
        bits = tl.load(at, mask=inside, other=0.0).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        magnitude = bits & 0x7FFF

        # A NaN or Inf is above all else. The carry of rceil steps the exponent where the mantissa is above 1.75.
        amax = tl.max(magnitude, axis=2)
        scale = tl.maximum((amax + tl.where(scale_rule == 0, 31, 0)) >> 7, 8) - 8
        is_special = amax >= 0x7F80
        factor = ((254 - scale) << 23).to(tl.float32, bitcast=True)[:, :, None]

        # With e the power of two at or below v, 2^-6 at least, E4M3 numbers near v are e / 8 apart, and so are FP32 numbers
        # near e * 2^20: v + e * 2^20 rounds to nearest, ties to even.
        v = tl.minimum((magnitude << 16).to(tl.float32, bitcast=True) * factor, 448.0)
        e = tl.maximum(v.to(tl.int32, bitcast=True) & 0x7F800000, 121 << 23)
        large = e + (20 << 23)
        rounded = (v + large.to(tl.float32, bitcast=True)).to(tl.int32, bitcast=True) - large
        code = ((e >> 20) - (121 << 3) + rounded) | tl.where((amax > 0)[:, :, None], bits >> 8 & 0x80, 0)
        code = tl.where(is_special[:, :, None], 0x7F, code)
        at = elements + slice * elements_slice_stride + row[:, None, None] * elements_row_stride + column[None, :, :]
        tl.store(at, code.to(tl.uint8), mask=inside)

        # Plain, or in tiles of 128 x 4; what pads a tile was read as zeros, whose scale is 0.
        plain = row[:, None] * scales_outer_stride + block[None, :] * scales_block_stride
        tiled = (row // 128 * scales_outer_stride + row % 32 * 16 + row // 32 % 4 * 4)[:, None]
        tiled += (block // 4 * 512 + block % 4)[None, :]
        at = scales + slice * scales_slice_stride + tl.where(scale_layout == 0, plain, tiled)
        written = (row < num_scale_rows)[:, None] & (block < num_scale_blocks)[None, :]
        tl.store(at, tl.where(is_special, 255, scale).to(tl.uint8), mask=written)


COMMON = "status=*i32, turn=*u64, turn_owner=i64"
SWIGLU = f"gate=*bf16:16, up=*bf16:16, out=*bf16:16, rows=*i64, columns=i32:8, limit=fp32, {COMMON}, BLOCK=1024, PROGRAMS_PER_SM=8"
# Strides of weights and tokens are multiples of 8 elements at least.
GEMM = (
    "a=*bf16:16, a_stride=i64:8, a_divisor=i32, slot=*i32, b=*bf16:16, b_expert_stride=i64:8, b_stride=i64:8, c=*bf16:16, "
    "c_stride=i64:8, c_scatter=i32, expert_begin=*i32, expert_count=*i32, tile_begin=*i32, tile_expert=*i32, "
    f"num_experts=i32, n=i32:8, k=i32:8, {COMMON}, ROWS=128, STEP=64, PROGRAMS_PER_SM=1"
)
COMBINE = (
    "ids=*i32, ids_stride=i64, ids_step=i64, weights=*fp32, weights_stride=i64, weights_step=i64, slots=*bf16:16, "
    f"slots_stride=i64:8, out=*bf16:16, out_stride=i64:8, num_tokens=i32, top_k=i32, hidden=i32:8, {COMMON}, "
    "BLOCK=2048, PROGRAMS_PER_SM=8"
)
# Columns come in eights; rows of the source begin at multiples of 16 bytes, those of the elements at 8.
QUANTISE = (
    "source=*bf16:16, source_row_stride=i64:8, source_slice_stride=i64:8, elements=*u8:8, elements_row_stride=i64:8, "
    "elements_slice_stride=i64:8, scales=*u8, scales_slice_stride=i64, scales_outer_stride=i64, scales_block_stride=i64, "
    "num_slices=i64, num_rows=i64, num_columns=i64:8, num_scale_rows=i64, num_scale_blocks=i64, scale_layout=i32, "
    "scale_rule=i32, ROWS=8, BLOCKS=8, PROGRAMS_PER_SM=8"
)
# name, function, signature, options
KERNELS = [
    ("swiglu_kernel", swiglu_kernel, SWIGLU + ", ALPHA=1.0, OFFSET=0.0", {"num_warps": 4}),
    ("gpt_oss_kernel", swiglu_kernel, SWIGLU + ", ALPHA=1.702, OFFSET=1.0", {"num_warps": 4}),
    ("combine_kernel", combine_kernel, COMBINE, {"num_warps": 8}),
    ("quantise_kernel", quantise_kernel, QUANTISE, {"num_warps": 4}),
    ("grouped_gemm_kernel", grouped_gemm_kernel, GEMM + ", COLUMNS=128", {"num_warps": 8, "num_stages": 3}),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", help="folder of the package; made, or added to")
    parser.add_argument("--target", action="append", default=[], metavar="sm_90", help="default: sm_90")
    args = parser.parse_args()
    package = export.Package(os.path.basename(os.path.abspath(args.package)), args.package)
    for name, function, signature, options in KERNELS:
        for target in args.target or ["sm_90"]:
            arch = int(re.sub(r"\D", "", target))
            package.add(export.compile_variant(function, signature, arch, options), kernel=name)
    package.write(args.package)
    print(f"{args.package}: {len(package.images)} images")


if __name__ == "__main__":
    main()
