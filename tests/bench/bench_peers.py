# SPDX-License-Identifier: Apache-2.0
"""The forward pass of one MoE layer, Purr beside PyTorch's eager and compiled layer, in one run on one GPU.

The competitors take turns, so that all meet the card in the same state; a ratio is the median over the rounds. Time is
GPU time: the L2 is flushed before each run, and the launches hide behind a spin kernel. Needs PyTorch 2.8 or newer.

    bench_peers.py LIBPURR_SO [--backends staged,mega] [--pairs N] [--shapes NAME,...] [--routings uniform,zipf]
                   [--peers eager,compiled] [--json FILE]
"""
import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F

import library as purr

SHAPES = {  # T, H, I, E, K, S: configs/bench
    "kimi_k2_slice": (2048, 7168, 2048, 48, 8, 2048),
    "kimi_ep64_rank": (16384, 7168, 2048, 6, 1, 0),
    "qwen3_30b": (8192, 2048, 768, 128, 8, 0),
    "deepseek_v2_lite": (8192, 2048, 1408, 64, 6, 2816),
    "mixtral_8x7b": (4096, 4096, 14336, 8, 2, 0),
}
BACKENDS = {"auto": 0, "staged": 2, "mega": 3}  # purr.h
FLUSH_BYTES = 256 * 2**20
SPIN_CYCLES = 4_000_000  # about 2 ms: longer than any of the layers takes to launch
NUM_WARMUPS = 3


def random_routing(num_tokens, num_experts, top_k, zipf):
    """[T, K] distinct experts a token: the top K of log-share plus Gumbel noise."""
    generator = torch.Generator().manual_seed(1)
    share = torch.ones(num_experts)
    if zipf:
        share = (1.0 / torch.arange(1, num_experts + 1))[torch.randperm(num_experts, generator=generator)]
    uniform = torch.rand(num_tokens, num_experts, generator=generator).clamp(1e-9, 1 - 1e-7)
    return (share.log() - (-uniform.log()).log()).topk(top_k, dim=1).indices


def random_weight(*shape):
    """Scaled by 1/sqrt(fan-in), the last dimension, as nn.Linear stores it."""
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * shape[-1] ** -0.5


class Problem:
    """The tensors of one layer, for both: PyTorch's grouped product gets its weights contiguous the other way round."""

    def __init__(self, shape, zipf):
        T, H, I, E, K, S = self.shape = shape
        self.x = torch.randn(T, H, device="cuda", dtype=torch.bfloat16)
        self.ids = random_routing(T, E, K, zipf).cuda()
        self.weights = torch.rand(T, K, device="cuda").softmax(1)
        self.gate_up, self.down = random_weight(E, 2 * I, H), random_weight(E, H, I)
        self.turned_gate_up = self.gate_up.transpose(1, 2).contiguous()
        self.turned_down = self.down.transpose(1, 2).contiguous()
        self.shared_gate = self.shared_up = self.shared_down = None
        if S:
            self.shared_gate, self.shared_up, self.shared_down = (
                random_weight(S, H), random_weight(S, H), random_weight(H, S))
            self.turned_shared_gate_up = torch.cat([self.shared_gate, self.shared_up]).t().contiguous()
            self.turned_shared_down = self.shared_down.t().contiguous()
        self.flops = 6 * T * K * H * I + 6 * T * H * S

    def eager(self):
        T, H, I, E, K, S = self.shape
        expert = self.ids.reshape(-1)
        order = torch.argsort(expert, stable=True)
        counts = torch.zeros(E, device="cuda", dtype=torch.int32)
        counts = counts.scatter_add_(0, expert, torch.ones_like(expert, dtype=torch.int32))
        ends = counts.cumsum(0).to(torch.int32)
        gate, up = torch._grouped_mm(self.x[order // K], self.turned_gate_up, offs=ends).chunk(2, dim=1)
        y = torch._grouped_mm(F.silu(gate) * up, self.turned_down, offs=ends)
        y = y * self.weights.reshape(-1)[order][:, None].to(y.dtype)
        home = torch.empty_like(order)
        home[order] = torch.arange(order.numel(), device="cuda")
        out = y[home].view(T, K, H).sum(1)
        if S:
            gate, up = (self.x @ self.turned_shared_gate_up).chunk(2, dim=1)
            out = out + (F.silu(gate) * up) @ self.turned_shared_down
        return out


class Ours:
    def __init__(self, library, problem, backend):
        T, H, I, E, K, S = problem.shape
        of = lambda t, dtype=purr.BF16: None if t is None else purr.tensor(dtype, t.data_ptr(), t.shape)
        weights = {name: of(getattr(problem, name))
                   for name in ("gate_up", "down", "shared_gate", "shared_up", "shared_down")}
        self.output = torch.full_like(problem.x, float("nan"))
        self.tensors = [of(problem.x), of(problem.ids, purr.INT64), of(problem.weights, purr.FP32), of(self.output)]
        self.layer = purr.Layer(library, weights, hidden_size=H, intermediate_size=I, num_experts=E, top_k=K,
                                max_tokens=T, shared_intermediate_size=S, backend=BACKENDS[backend])

    def __call__(self):
        self.layer.forward(*self.tensors, torch.cuda.current_stream().cuda_stream)
        return self.output


class Clock:
    def __init__(self):
        self.flush = torch.empty(FLUSH_BYTES, device="cuda", dtype=torch.uint8)

    def once(self, work):
        """Milliseconds."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(SPIN_CYCLES)
        self.flush.zero_()
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def pairs(self, works, num_pairs):
        """Milliseconds of each work in each round; every other round they swap places."""
        for work in works:
            for _ in range(NUM_WARMUPS):
                work()
        times = [[] for _ in works]
        for i in range(num_pairs):
            for w in range(len(works)) if i % 2 == 0 else reversed(range(len(works))):
                times[w].append(self.once(works[w]))
        return times


def ceilings(clock):
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    dense = statistics.median(clock.pairs([lambda: a @ b], 10)[0])
    source = torch.randint(256, (2**30,), device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    copy = statistics.median(clock.pairs([lambda: target.copy_(source)], 10)[0])
    return {"dense_tflops_per_s": 2 * 8192**3 / dense / 1e9, "copy_tb_per_s": 2 * 2**30 / copy / 1e9}


def difference(got, wanted):
    return ((got.double() - wanted.double()).norm() / wanted.double().norm()).item()


def compare(library, clock, shape, zipf, peer_name, backends, num_pairs):
    """What each backend reaches beside the peer."""
    problem = Problem(shape, zipf)
    ours = [Ours(library, problem, backend) for backend in backends]
    peer = problem.eager if peer_name == "eager" else torch.compile(problem.eager, dynamic=False)
    began = time.monotonic()
    with torch.no_grad():
        wanted = peer()
        torch.cuda.synchronize()
        seconds = time.monotonic() - began
        num_launches, errors = [], []
        for one in ours:
            before = library.num_launches()
            errors.append(difference(one(), wanted))
            num_launches.append(library.num_launches() - before)
        for backend, error in zip(backends, errors):
            if not error < 0.01:
                raise SystemExit(f"{backend}: relative L2 difference to {peer_name} is {error:.3g}, allowed is 0.01")
        *ours_ms, peer_ms = clock.pairs([*ours, peer], num_pairs)
    for one in ours: one.layer.close()
    rate = lambda ms: problem.flops / statistics.median(ms) / 1e9
    return [{"backend": backend, "peer": peer_name, "ours_ms": ms, "peer_ms": peer_ms, "ours_tflops_per_s": rate(ms),
             "peer_tflops_per_s": rate(peer_ms), "ratio": statistics.median(p / o for o, p in zip(ms, peer_ms)),
             "relative_difference": error, "num_launches": launches, "peer_first_call_s": seconds}
            for backend, ms, error, launches in zip(backends, ours_ms, errors, num_launches)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", metavar="LIBPURR_SO")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--routings", default="uniform,zipf")
    parser.add_argument("--backends", default="auto")
    parser.add_argument("--peers", default="eager,compiled")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    if arguments.pairs < 10:
        parser.error("--pairs is at least 10")
    torch.manual_seed(0)
    library, clock = purr.Library(arguments.library), Clock()
    report = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, **ceilings(clock), "comparisons": []}
    dense = report["dense_tflops_per_s"]
    print(f"{report['device']}, PyTorch {report['torch']}: dense BF16 8192^3 {dense:.0f} TFLOP/s, "
          f"copy {report['copy_tb_per_s']:.2f} TB/s; medians of {arguments.pairs} alternating pairs\n\n"
          f"{'layer':16}  {'routing':7}  {'backend':7}  {'peer':8}  {'peer ms':>8}  {'ours ms':>8}  {'peer TF/s':>9}  {'ours TF/s':>9}  "
          f"{'ours/dense':>10}  {'ours/peer':>9}  difference  launches", flush=True)
    for peer in arguments.peers.split(","):
        for routing in arguments.routings.split(","):
            for name in arguments.shapes.split(","):
                for r in compare(library, clock, SHAPES[name], routing == "zipf", peer, arguments.backends.split(","),
                                 arguments.pairs):
                    report["comparisons"].append({"layer": name, "routing": routing, **r})
                    print(f"{name:16}  {routing:7}  {r['backend']:7}  {peer:8}  {statistics.median(r['peer_ms']):8.3f}  "
                          f"{statistics.median(r['ours_ms']):8.3f}  {r['peer_tflops_per_s']:9.0f}  "
                          f"{r['ours_tflops_per_s']:9.0f}  {r['ours_tflops_per_s'] / dense:10.3f}  {r['ratio']:9.3f}  "
                          f"{r['relative_difference']:10.1e}  {r['num_launches']:8d}", flush=True)
                if arguments.json:
                    with open(arguments.json, "w") as file:
                        json.dump(report, file, indent=1)
                torch._dynamo.reset()  # a later layer is compiled for its own shape, and counts as no recompilation
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
