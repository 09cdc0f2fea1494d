# SPDX-License-Identifier: Apache-2.0
"""Times every variant of the forward megakernel, alternating, and makes the table by which a plan chooses:
runtime/plan/forward_choice.def. All variants must give the same bits. About two minutes on an H200. Usage:
  tune_forward.py LIBRARY [--rounds N] [--only SUBSTRING] [--json FILE] [--write FILE]
  tune_forward.py --dry-run                  what would be timed; needs no GPU and no PyTorch
  tune_forward.py --from FILE [--write FILE]  the table from the times that --json saved
LIBRARY is BUILD/gpu/libstaged.so of the target staged_programs."""
import argparse
import json
import math
import os
import re
import sys

from shapes import SHAPES

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
VARIANTS = os.path.join(ROOT, "kernels/sm90a/forward_variants.def")
CHOICE = os.path.join(ROOT, "runtime/plan/forward_choice.def")
DEFAULT = "forward_208"  # another variant must be faster than this
NOISE = 0.02  # of the time: what it must be faster by
MOST_WHY = 96  # characters: a line has 120


def list_cases():
    """(name, shape) of the five, and of small batches of two of them."""
    cases = [(name, shape) for name, shape in SHAPES.items()]
    for name in ("qwen3_30b", "kimi_k2"):
        cases += [(f"{name} T={T}", (T,) + SHAPES[name][1:]) for T in (1, 8, 64, 256, 1024)]
    return cases


def mean_rows(shape):
    T, H, I, E, K, S = shape
    return -(-T * K // E)


def list_variants():
    """Names of those for one rank, without a timeline."""
    with open(VARIANTS) as file: text = file.read()
    return re.findall(r"^PURR_FORWARD_VARIANT\(purr_(\w+), forward,", text, re.M)


# ---- the table ----


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def choose(group):
    """The best variant for these cases together."""
    ratios = {v: geometric_mean([c["us"][v] / c["us"][DEFAULT] for c in group]) for v in group[0]["us"]}
    best = min(ratios, key=ratios.get)
    return best if ratios[best] < 1 - NOISE else DEFAULT


def why(group, entry):
    """What was measured, in as many cases as there is room for."""
    if entry == DEFAULT:
        text = f"none {NOISE:.0%} faster at "
        parts = [f"{c['name']} ({c['us'][DEFAULT]:.0f} us)" for c in group]
    else:
        text = f"time to {DEFAULT}'s "
        parts = [f"{c['us'][entry] / c['us'][DEFAULT]:.2f} at {c['name']} ({c['us'][entry]:.0f} us)" for c in group]
    while len(shown := text + ", ".join(parts)) > MOST_WHY: parts = parts[:-2] + ["..."]
    return shown


def make_rows(cases):
    """Rows (most rows or None, entry, why), narrower ones first."""
    rows, groups = [], []
    for size in sorted({c["mean_rows"] for c in cases}):
        group = [c for c in cases if c["mean_rows"] == size]
        entry = choose(group)
        if groups and groups[-1][0] == entry:
            groups[-1][1].extend(group)
        else:
            groups.append((entry, group))
    for i, (entry, group) in enumerate(groups):
        most = None
        if i + 1 < len(groups):  # half way to the next, as ratios go
            most = math.isqrt(max(c["mean_rows"] for c in group) * min(c["mean_rows"] for c in groups[i + 1][1]))
        rows.append((most, entry, why(group, entry)))
    return rows


def format_rows(rows):
    def row(most, entry, text):
        head = f"PURR_FORWARD_CHOICE(forward, {most or 'ANY_ROWS'}, purr_{entry},"
        return f'{head} "{text}")' if len(head) + len(text) < 116 else f'{head}\n                    "{text}")'
    return "".join(row(*r) + "\n" for r in rows)


def write_table(path, rows):
    with open(CHOICE) as file: text = file.read()
    head = text[:text.index("PURR_FORWARD_CHOICE(", text.index("*/"))]
    others = re.findall(r"^PURR_FORWARD_CHOICE\(\w+_peers,[^;]*?\)\n", text, re.M)
    with open(path, "w") as file: file.write(head + format_rows(rows) + "".join(others))


# ---- the times ----


def measure(arguments):
    import torch
    import bench_staged as bench
    library = bench.open_library(arguments.library)
    torch.manual_seed(0)
    dense = bench.measure_dense()
    print(f"{torch.cuda.get_device_name()}, dense 8192^3 {dense:.0f} TFLOP/s", flush=True)
    cases = []
    for name, shape in list_cases():
        if arguments.only not in name: continue
        T, H, I, E, K, S = shape
        layer = bench.Layer(library, shape, False, has_eager=False)
        variants = list_variants()
        works = [lambda v=bench.KERNELS.index(v): layer.run(v) for v in variants]
        expected = None
        for v, work in zip(variants, works):
            layer.out.fill_(float("nan"))
            work()
            torch.cuda.synchronize()
            if expected is None: expected = layer.out.clone()
            if not torch.equal(layer.out.view(torch.int16), expected.view(torch.int16)):
                raise SystemExit(f"{name}: {v} gives other bits than {variants[0]}")
            for _ in range(2): work()
        times = bench.medians(works, arguments.rounds)
        touched = layer.ids.unique().numel() * 6 * H * I + 6 * H * S
        cases.append({"name": name, "mean_rows": mean_rows(shape),
                      "us": {v: t * 1000 for v, t in zip(variants, times)}})
        print(f"{name:18s} {mean_rows(shape):5d} rows  " + "  ".join(
            f"{v.removeprefix('forward_')} {t * 1000:.0f} us " + (f"{touched / t / 1e9:.2f} TB/s" if T <= 64 else
                                                                 f"{layer.flops / t / 1e9:.0f} TFLOP/s")
            for v, t in zip(variants, times)), flush=True)
        layer.close()
        del layer, works
        torch.cuda.empty_cache()
    return cases


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="?")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="cases whose name has this")
    parser.add_argument("--json", help="save the times here")
    parser.add_argument("--from", dest="source", help="take times from here instead")
    parser.add_argument("--write", help="write the table here")
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    if arguments.dry_run:
        for name, shape in list_cases():
            if arguments.only in name:
                print(f"{name:18s} {mean_rows(shape):5d} rows  {' '.join(list_variants())}")
        return
    if (arguments.library is None) == (arguments.source is None): parser.error("give LIBRARY, --from or --dry-run")
    if arguments.source:
        with open(arguments.source) as file: cases = json.load(file)
    else:
        cases = measure(arguments)
    if arguments.json:
        with open(arguments.json, "w") as file: json.dump(cases, file, indent=1)
    if arguments.only: return
    rows = make_rows(cases)
    sys.stdout.write(format_rows(rows))
    if arguments.write: write_table(arguments.write, rows)


if __name__ == "__main__":
    main()
