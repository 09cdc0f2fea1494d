# SPDX-License-Identifier: Apache-2.0
"""What the tensor cores of this GPU lose of an accumulator in a step of 16 k: the value for PURR__STEP_LOSS in
kernels/layout.h; kernels/sums.cuh says what it is for. Products in BF16, normal data, sums in float64 beside them; with
`tl.dot` 64 k at a time, which is wgmma on sm_90 and mma.sync elsewhere. Usage:
  fit_step_loss.py [--m 1024] [--n 1024]
Needs PyTorch and Triton."""
import argparse

import torch
import triton
import triton.language as tl

STEP_K = 16
UNIT = 2.0**-24


@triton.jit
def multiply(a, b, c, k, part, half_loss, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """c[m, n] = a[m, k] . b[n, k]^T; every `part` k the sum is given back what it lost, none where half_loss is 0."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    at_a = a + rows[:, None] * k + tl.arange(0, BLOCK_K)[None, :]
    at_b = b + columns[None, :] * k + tl.arange(0, BLOCK_K)[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for begin in range(0, k, part):
        end = min(begin + part, k)
        for at in range(begin, end, BLOCK_K):
            total = tl.dot(tl.load(at_a + at), tl.load(at_b + at), total)
        total = total * (1.0 + half_loss * (min(end + part, k) - begin))
    tl.store(c + rows[:, None] * tl.num_programs(1) * BLOCK_N + columns[None, :], total)


def run(a, b, part, loss):
    c = torch.empty(a.shape[0], b.shape[0], device="cuda")
    multiply[(a.shape[0] // 64, b.shape[0] // 128)](a, b, c, a.shape[1], part, loss / 2 / STEP_K, 64, 128, 64, num_warps=4)
    return c.double()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--m", type=int, default=1024)
    parser.add_argument("--n", type=int, default=1024)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}; relative to sums in float64, root of the mean square")
    print(f"{'k':>6s} {'loss / 2^-24':>13s} {'nothing done':>13s} {'given back':>11s} {'with 0.5':>9s}")
    for k in (768, 2048, 4096, 7168, 14336):
        a, b = (torch.randn(n, k, device="cuda").bfloat16() for n in (arguments.m, arguments.n))
        exact = a.double() @ b.double().T
        norm = exact.norm()

        def error(c):
            return ((c - exact).norm() / norm).item()

        plain = run(a, b, k, 0.0)
        # What a whole sum loses is half of its steps times the loss: it grows from nothing.
        loss = -((plain - exact) * exact).sum().item() / norm.item()**2 / (k / STEP_K) * 2
        part = min(k, 2048)
        print(f"{k:6d} {loss / UNIT:13.3f} {error(plain):13.2e} {error(run(a, b, part, loss)):11.2e} "
              f"{error(run(a, b, part, 0.5 * UNIT)):9.2e}")


if __name__ == "__main__":
    main()
