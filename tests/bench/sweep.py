# SPDX-License-Identifier: Apache-2.0
"""Times the forward over shapes that benchmarks leave out, one dimension after the other: odd numbers of tokens, widths
that no tile divides, 1 to 512 experts, 1 to 16 slots, uneven routing. Prints how much of what the device can do each
reaches (the larger of the fractions of a dense product and of a copy that `purr bench` gives) and marks a cliff: a shape
that falls below FALL of the worse of its neighbours. Usage:
  sweep.py [--program BUILD/purr] [--backend staged,mega] [--only AXIS] [--dense TFLOPS] [--scale N] [--json FILE]
           [--dry-run]"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

BASE = {"hidden_size": 2048, "intermediate_size": 768, "num_experts": 128, "top_k": 8, "max_tokens": 8192}
FALL, BAR = 0.75, 40
AXES = {  # what is changed, the values, and what else is then different from BASE
    "tokens": ("max_tokens", (1, 2, 7, 31, 64, 129, 500, 1000, 2049, 4097, 8192, 16383), {}),
    "inner": ("intermediate_size", (128, 264, 512, 768, 1024, 1408, 1536, 2048, 3072, 5000), {"num_experts": 32}),
    "hidden": ("hidden_size", (512, 1000, 1536, 2048, 2880, 4096, 5120, 7168), {"num_experts": 32}),
    "experts": ("num_experts", (1, 2, 3, 8, 16, 33, 64, 128, 200, 256, 384, 512), {}),
    "slots": ("top_k", (1, 2, 3, 4, 6, 8, 11, 16), {}),
    "zipf": ("routing", ("uniform", "zipf:0.5", "zipf:1", "zipf:1.5", "zipf:2", "zipf:4", "zipf:10"), {"top_k": 1}),
}


def list_cases(only, scale):
    """(axis, value, config, routing)"""
    for axis, (name, values, different) in AXES.items():
        for value in values:
            config = {**BASE, **different}
            if name != "routing": config[name] = value
            config["top_k"] = min(config["top_k"], config["num_experts"])
            for width in ("hidden_size", "intermediate_size"): config[width] = max(config[width] // scale // 8, 1) * 8
            config["max_tokens"] = max(config["max_tokens"] // scale, 1)
            if only in axis: yield axis, value, config, value if name == "routing" else "uniform"


def bench(arguments, backend, folder, cases):
    """The measurement of each case, from one run of the program for each routing."""
    results = [None] * len(cases)
    for routing in dict.fromkeys(case[3] for case in cases):
        mine = [i for i, case in enumerate(cases) if case[3] == routing]
        paths = []
        for i in mine:
            paths.append(os.path.join(folder, f"{backend}_{i}.yaml"))
            with open(paths[-1], "w") as file:
                file.write("".join(f"{key}: {value}\n" for key, value in {"name": f"case_{i}", **cases[i][2]}.items()))
        command = [arguments.program, "bench", *paths, "--backend", backend, "--routing", routing, "--json"]
        command += ["--repeat", str(arguments.repeat)] + (["--dense", str(arguments.dense)] if arguments.dense else [])
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0: raise SystemExit(f"purr bench ended with {done.returncode}: {' '.join(command)}")
        for i, layer in zip(mine, json.loads(done.stdout)["layers"]):
            results[i] = next(m for m in layer["measurements"] if m["num_tokens"] == cases[i][2]["max_tokens"])
    return results


def share(result):
    """Of what the device can do; where it is not known, the rate itself."""
    fractions = [result["fraction_of_dense"], result["fraction_of_copy"]]
    return max((f for f in fractions if f is not None), default=result["tflops_per_s"])


def report(backend, cases, results):
    """Prints all; returns the cases that are cliffs."""
    cliffs, most = [], max(map(share, results))
    for i, ((axis, value, _, _), result) in enumerate(zip(cases, results)):
        if i == 0 or cases[i - 1][0] != axis: print(f"{backend}, {axis}")
        beside = [share(results[j]) for j in (i - 1, i + 1) if 0 <= j < len(cases) and cases[j][0] == axis]
        is_cliff = len(beside) == 2 and share(result) < FALL * min(beside)
        if is_cliff: cliffs.append((axis, value))
        print(f"{value:>10} {result['median_s'] * 1e6:9.0f} us {result['tflops_per_s']:6.0f} TFLOP/s "
              f"{result['weight_tb_per_s']:5.2f} TB/s {share(result):6.2f} "
              f"{'#' * round(BAR * share(result) / most)}{'  <- cliff' if is_cliff else ''}", flush=True)
    return cliffs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/purr")
    parser.add_argument("--backend", default="staged,mega", help="one or several, with commas between (default: staged,mega)")
    parser.add_argument("--only", default="", metavar="AXIS", help="; ".join(AXES))
    parser.add_argument("--dense", type=float, help="TFLOP/s of a dense product here, as purr bench takes it")
    parser.add_argument("--repeat", type=int, default=10, help="runs of each, at least 10 (default: 10)")
    parser.add_argument("--scale", type=int, default=1, help="widths and tokens are so many times fewer (default: 1)")
    parser.add_argument("--json", help="save all measurements here")
    parser.add_argument("--dry-run", action="store_true", help="print the shapes, time nothing")
    arguments = parser.parse_args()
    cases = list(list_cases(arguments.only, arguments.scale))
    if not cases: parser.error(f"no axis has '{arguments.only}' in its name; there are {', '.join(AXES)}")
    if arguments.dry_run:
        for axis, value, config, routing in cases: print(axis, value, routing, config)
        return
    saved, cliffs = [], []
    for backend in arguments.backend.split(","):
        with tempfile.TemporaryDirectory() as folder: results = bench(arguments, backend, folder, cases)
        cliffs += [(backend, *cliff) for cliff in report(backend, cases, results)]
        saved += [{"backend": backend, "axis": axis, "value": value, **config, **result}
                  for (axis, value, config, _), result in zip(cases, results)]
    if arguments.json:
        with open(arguments.json, "w") as file: json.dump(saved, file, indent=1)
    print(f"{len(cliffs)} cliff{'s' * (len(cliffs) != 1)}" + "".join(f"; {backend}: {axis} {value}" for backend, axis, value in cliffs))
    sys.exit(len(cliffs) > 0)


if __name__ == "__main__":
    main()
