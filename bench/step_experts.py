#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two ranks that share a model with experts by data, by tensor or by expert parallelism, in turn:
tokens/s medians, their ratio to data parallelism, and memory a rank.

    bench/step_experts.py BUILD_FOLDER [--rounds 5] [--backends thread mpi] [--steps 4]
"""
import argparse
import json
import pathlib
import statistics

from step_models import MODELS
from turns import run, tokens_per_s

MODEL = "mixtral-4x512"
WAYS = {
    "dp 2": [],
    "dp 2, zero 3": ["--zero", 3],
    "tp 2": ["--tp", 2],
    "tp 2, etp 1": ["--tp", 2, "--etp", 1, "--sequence-parallel"],
    "ep 2": ["--ep", 2],
    "ep 2, 2 pieces": ["--ep", 2, "--ep-chunks", 2],
    "tp 2, ep 2": ["--tp", 2, "--ep", 2, "--etp", 1, "--sequence-parallel"],
}


def command(args, backend, way):
    program = [f"{args.build}/bench/quatrain_bench_step", "--model", MODEL, "--ranks", 2,
               "--backend", backend, "--threads", 1, "--steps", args.steps, "--warmup", 1]
    # Every way sees as many sequences a step.
    sequences = MODELS[MODEL]["batch"]
    shared = "--tp" in WAYS[way]
    program += ["--batch", sequences if shared else sequences // 2, *WAYS[way]]
    launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", 2]
    return [*launcher, *program] if backend == "mpi" else program


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--backends", nargs="+", default=["thread"], choices=["thread", "mpi"])
    args = parser.parse_args()
    rows = []
    for backend in args.backends:
        rates, peaks = {way: [] for way in WAYS}, {}
        for _ in range(args.rounds):
            for way in WAYS:
                result = run(command(args, backend, way))
                if "error" in result:
                    raise SystemExit(f"{way}: {result['error']}")
                rates[way].append(tokens_per_s(result))
                peaks[way] = result["peak_bytes"]
        for way, seen in rates.items():
            ratio = statistics.median(a / b for a, b in zip(seen, rates["dp 2"]))
            rows.append({"backend": backend, "way": way, "tokens_per_s": statistics.median(seen),
                         "to_dp": ratio, "peak_bytes": peaks[way], "rounds": args.rounds})
            print(f"{backend:<8}{way:<18}{rows[-1]['tokens_per_s']:>10.0f} tok/s"
                  f"{ratio:>8.2f} of dp 2{peaks[way] / 1e6:>9.0f} MB a rank", flush=True)
    out = pathlib.Path(args.build) / "bench" / "step_experts.json"
    out.write_text(json.dumps(rows, indent=2) + "\n")
    print(f"written: {out}")


if __name__ == "__main__":
    main()
