# SPDX-License-Identifier: Apache-2.0
"""A model of what tensor cores lose in long sums, for kernels/sums.cuh and the table in kernels/README.md: the sum and
its 16 products are aligned to the largest of them, cut off so many bits below it, added, and cut off to FP32. Prints the
loss of a step, and the error of sums without and with what is given back, relative to float64. Needs NumPy, no GPU;
fit_step_loss.py measures the same on one.
  model_step_loss.py [--sums N]"""
import argparse

import numpy as np

STEP_K, PART_K, UNIT = 16, 2048, 2.0**-24


def to_bf16(x):
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)


def cut_to_fp32(x):
    rounded = x.astype(np.float32)
    return np.where(np.abs(rounded) > np.abs(x), np.nextafter(rounded, np.float32(0)), rounded).astype(np.float64)


def add_step(total, products, bits):
    """bits: kept below the largest; None = all, only the sum is cut off."""
    if bits is not None:
        largest = np.maximum(np.abs(products).max(axis=1), np.abs(total))
        grain = np.ldexp(1.0, np.frexp(largest)[1] - 1 - bits)
        total, products = np.trunc(total / grain) * grain, np.trunc(products / grain[:, None]) * grain[:, None]
    return cut_to_fp32(total + products.sum(axis=1))


def add_up(products, bits, loss):
    """Sums of all k; every part is given back `loss` of a step, in units of 2^-24."""
    k = products.shape[1]
    part = min(k, PART_K)
    total = np.zeros(len(products))
    for begin in range(0, k, part):
        end = min(begin + part, k)
        for at in range(begin, end, STEP_K): total = add_step(total, products[:, at:at + STEP_K], bits)
        factor = np.float32(1 + loss * UNIT / 2 * ((min(end + part, k) - begin) / STEP_K))
        total = (total * factor).astype(np.float32).astype(np.float64)
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sums", type=int, default=20000)
    arguments = parser.parse_args()
    random = np.random.default_rng(0)
    print(f"{'k':>6s} {'bits kept':>9s} {'loss / 2^-24':>13s} {'nothing done':>13s} {'given back':>11s} {'with 0.5':>9s}")
    for k in (2048, 7168):
        products = np.prod([to_bf16(random.standard_normal((arguments.sums, k))) for _ in range(2)], axis=0)
        exact = products.sum(axis=1)
        norm = np.sqrt((exact**2).sum())
        for bits in (24, 25, 26, None):
            plain = add_up(products, bits, 0.0)
            # What a whole sum loses is half of its steps times the loss: it grows from nothing.
            loss = -((plain - exact) * exact).sum() / norm**2 / (k / STEP_K) * 2 / UNIT
            errors = [np.sqrt(((s - exact)**2).sum()) / norm
                      for s in (plain, add_up(products, bits, loss), add_up(products, bits, 0.5))]
            print(f"{k:6d} {bits or 'all':>9} {loss:13.3f} {errors[0]:13.2e} {errors[1]:11.2e} {errors[2]:9.2e}", flush=True)


if __name__ == "__main__":
    main()
