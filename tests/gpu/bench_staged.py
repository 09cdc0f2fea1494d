# SPDX-License-Identifier: Apache-2.0
"""Times the staged forward's kernels beside PyTorch's eager layer, alternating, on the five shapes of the README.

GPU time alone: the L2 is flushed and the launches hide behind a spin kernel. Usage:
  bench_staged.py LIBRARY [--pairs N] [--zipf] [--only SUBSTRING | --shape NAME=T,H,I,E,K,S] [--variants wgmma,mma]
"""
import argparse
import ctypes
import json
import os
import statistics

import torch
import torch.nn.functional as F

from shapes import SHAPES

KERNELS = []  # what the library can run, by number: open_library
STAGES = {"schedule": 1, "gate_up": 2, "down": 4, "shared_gate_up": 8, "shared_down": 16, "slot_sum": 32}
TOGETHER, ALL = 64, 127


def open_library(path):
    """The library, and in KERNELS the names that it knows: mma, wgmma, forward_208 (of the megakernel) ..."""
    library = ctypes.CDLL(path)
    library.staged_create.restype = ctypes.c_void_p
    library.staged_kernels_name.restype = ctypes.c_char_p
    while name := library.staged_kernels_name(len(KERNELS)): KERNELS.append(name.decode())
    return library


def route(num_tokens, num_experts, top_k, zipf, generator):
    weight = torch.ones(num_experts)
    if zipf:
        weight = (1.0 / torch.arange(1, num_experts + 1))[torch.randperm(num_experts, generator=generator)]
    gumbel = -torch.log(-torch.log(torch.rand(num_tokens, num_experts, generator=generator).clamp(1e-9, 1 - 1e-7)))
    return ((weight / weight.sum()).log() + gumbel).topk(top_k, dim=1).indices


class Layer:
    def __init__(self, library, shape, zipf, has_eager=True):
        T, H, I, E, K, S = self.shape = shape
        bf16 = dict(device="cuda", dtype=torch.bfloat16)
        self.library = library
        self.x = torch.randn(T, H, **bf16)
        self.gate_up = torch.randn(E, 2 * I, H, **bf16) * H**-0.5
        self.down = torch.randn(E, H, I, **bf16) * I**-0.5
        self.shared_gate_up = torch.randn(2 * S, H, **bf16) * H**-0.5 if S else None
        self.shared_down = torch.randn(H, S, **bf16) * S**-0.5 if S else None
        self.ids = route(T, E, K, zipf, torch.Generator().manual_seed(1)).cuda()
        self.weights = torch.rand(T, K, device="cuda").softmax(1)
        self.out = torch.empty(T, H, **bf16)
        # PyTorch's grouped product wants [E, H, 2I]; like the peers' benchmark, laid out so.
        if has_eager:
            self.eager_gate_up = self.gate_up.transpose(1, 2).contiguous()
            self.eager_down = self.down.transpose(1, 2).contiguous()
        if has_eager and S:
            self.eager_shared_gate_up = self.shared_gate_up.t().contiguous()
            self.eager_shared_down = self.shared_down.t().contiguous()
        pointer = lambda t: ctypes.c_void_p(t.data_ptr() if t is not None else 0)
        self.handle = ctypes.c_void_p(library.staged_create(
            *map(ctypes.c_int64, shape), *map(pointer, (self.x, self.ids, self.weights, self.gate_up, self.down,
                                                        self.shared_gate_up, self.shared_down, self.out))))
        self.flops = 6 * T * K * H * I + 6 * T * H * S

    def close(self):
        torch.cuda.synchronize()
        self.library.staged_destroy(self.handle)

    def run(self, kernels, stages=ALL):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        launches = self.library.staged_run(self.handle, stream, kernels, stages)
        assert launches >= 0, f"CUDA error {-launches}"
        return launches

    def eager(self):
        T, H, I, E, K, S = self.shape
        flat = self.ids.reshape(-1)
        order = torch.argsort(flat, stable=True)
        counts = torch.zeros(E, device="cuda", dtype=torch.int32)
        counts = counts.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
        ends = counts.cumsum(0).to(torch.int32)
        gate, up = torch._grouped_mm(self.x[order // K], self.eager_gate_up, offs=ends).chunk(2, dim=1)
        y = torch._grouped_mm(F.silu(gate) * up, self.eager_down, offs=ends)
        y = y * self.weights.reshape(-1)[order][:, None].to(y.dtype)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.numel(), device="cuda")
        out = y[inverse].view(T, K, H).sum(1)
        if S:
            gate, up = (self.x @ self.eager_shared_gate_up).chunk(2, dim=1)
            out = out + (F.silu(gate) * up) @ self.eager_shared_down
        return out


flush = None


def once(work):
    global flush
    if flush is None: flush = torch.empty(256 * 2**20, device="cuda", dtype=torch.uint8)
    flush.zero_()
    torch.cuda._sleep(4_000_000)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def medians(works, num):
    """Median milliseconds of each, the works taking turns."""
    times = [[] for _ in works]
    for _ in range(num):
        for work, mine in zip(works, times):
            mine.append(once(work))
    return [statistics.median(t) for t in times]


def measure_dense():
    """TFLOP/s of the 8192-cubed BF16 product."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3): a @ b
    return 2 * 8192**3 / medians([lambda: a @ b], 10)[0] / 1e9


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--zipf", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--variants", default="wgmma,forward_208",
                        help="mma, wgmma; the megakernel's: forward_208, ...")
    parser.add_argument("--shape", action="append", default=[], help="NAME=T,H,I,E,K,S instead of the five")
    parser.add_argument("--json")
    parser.add_argument("--trace", help="a folder: the megakernel's timeline of each shape goes there")
    arguments = parser.parse_args()
    library = open_library(arguments.library)
    variants = arguments.variants.split(",")
    torch.manual_seed(0)

    dense = measure_dense()
    print(f"{torch.cuda.get_device_name()}, dense 8192^3 {dense:.0f} TFLOP/s", flush=True)
    results = {"dense": dense}
    shapes = {n: tuple(map(int, v.split(","))) for n, v in (s.split("=") for s in arguments.shape)} or SHAPES
    for name, shape in shapes.items():
        if arguments.only not in name: continue
        layer = Layer(library, shape, arguments.zipf)
        works = [layer.eager] + [lambda w=KERNELS.index(v): layer.run(w) for v in variants]
        with torch.no_grad():
            want = layer.eager().double()
            for v in variants:
                layer.out.fill_(float("nan"))
                launches = layer.run(KERNELS.index(v))
                error = ((layer.out.double() - want).norm() / want.norm()).item()
                print(f"  {name:18s} {v:14s} {launches} launches, relative difference to eager {error:.2e}", flush=True)
            for work in works:
                for _ in range(3): work()
            times = medians(works, arguments.pairs)
        if arguments.trace:
            flush.zero_()
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            assert library.staged_trace(layer.handle, stream, f"{arguments.trace}/{name}.trace".encode()) == 0
        rates = [layer.flops / t / 1e9 for t in times]
        results[name] = dict(zip(["eager"] + variants, rates))
        print(f"{name:18s} eager {times[0]:.3f} ms {rates[0]:.0f} TFLOP/s" + "".join(
            f" | {v} {t:.3f} ms {r:.0f} TFLOP/s, {r / rates[0]:.2f} of eager, {r / dense:.2f} of dense"
            for v, t, r in zip(variants, times[1:], rates[1:])), flush=True)
        for v in variants:
            if v.startswith("forward"): continue
            T, H, I, E, K, S = shape
            flops = {"gate_up": 4 * T * K * H * I, "down": 2 * T * K * H * I, "shared_gate_up": 4 * T * H * S,
                     "shared_down": 2 * T * H * S}
            chosen = [s for s in STAGES if S or "shared" not in s]
            times = medians([lambda s=s: layer.run(KERNELS.index(v), STAGES[s]) for s in chosen], 5)
            results[name][v + " stages"] = dict(zip(chosen, times))
            print("   " + v + "  " + ", ".join(
                f"{s} {t * 1000:.0f} us" + (f" {flops[s] / t / 1e9:.0f} TFLOP/s" if s in flops else "")
                for s, t in zip(chosen, times)), flush=True)
        layer.close()
        del layer, works
        torch.cuda.empty_cache()
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
