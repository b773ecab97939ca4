#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps of Quatrain and PyTorch in turn (A B A B ...), one process each: tokens/s medians,
their ratio and peak memory. Prints one table and writes one JSON file.

    bench/step.py BUILD_FOLDER [--pairs 5] [--threads 2] [--models gpt2-6x384 ...] [--eager-only]
        against "floor": its own products alone, which no step can be faster than
    bench/step.py BUILD_FOLDER --ranks 2 [--against ddp fsdp ...] [--backends thread mpi] [--add]
    bench/step.py BUILD_FOLDER --ranks 2 --tp 2 [--sequence-parallel both] [...]
    bench/step.py BUILD_FOLDER --ranks 2 --tp 2 [--sequence-parallel both] --overlap-chunks 1 2 4
    bench/step.py BUILD_FOLDER --ranks 2 --tp 2 [--sequence-parallel both] --where
    bench/step.py BUILD_FOLDER --ranks 2 --cp 2 [--cp-styles ring ...] [--seqs 512 ...] [--alone]
    bench/step.py BUILD_FOLDER --ranks 2 --pp 2 [--schedules 1f1b zb-v gain] [--microbatches 8]

The others compare ranks with PyTorch's over gloo (step_ranks.py, step_context.py and
step_pipeline.py say what with what), chunks of row-parallel products with whole ones, and compute
with waits (step_tensor.py).
"""
import argparse
import json
import pathlib
import statistics
import sys

import step_context
import step_pipeline
import step_ranks
import step_tensor
from step_models import MODELS
from turns import run, tokens_per_s

HERE = pathlib.Path(__file__).resolve().parent


def compare(ours, theirs, pairs):
    """Runs both in turn; returns per-pair rates and peak bytes, or the error of one of them."""
    rows = []
    for _ in range(pairs):
        a, b = run(ours), run(theirs)
        for result in (a, b):
            if "error" in result:
                return {"error": result["error"]}
        rows.append((tokens_per_s(a), tokens_per_s(b), a["peak_bytes"], b["peak_bytes"]))
    ratios = [a / b for a, b, _, _ in rows]
    return {
        "ours_tokens_per_s": statistics.median(r[0] for r in rows),
        "theirs_tokens_per_s": statistics.median(r[1] for r in rows),
        "ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios),
        "ours_peak_bytes": max(r[2] for r in rows), "theirs_peak_bytes": max(r[3] for r in rows),
        "pairs": pairs,
    }


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of the one rank")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--eager-only", action="store_true")
    ranks = parser.add_argument_group("many ranks")
    ranks.add_argument("--ranks", type=int, default=1)
    ranks.add_argument("--batch", type=int, default=0, help="sequences a rank; 0: the model's")
    ranks.add_argument("--against", nargs="+",
                       choices=[*step_ranks.ZERO_STAGE, *step_ranks.TENSOR, *step_context.AGAINST])
    ranks.add_argument("--backends", nargs="+", default=["thread", "mpi"])
    ranks.add_argument("--add", action="store_true", help="to the rounds of the JSON file")
    tensor = parser.add_argument_group("tensor parallelism")
    tensor.add_argument("--tp", type=int, default=1, help="1, or all ranks")
    tensor.add_argument("--sequence-parallel", default="off", choices=["off", "on", "both"])
    tensor.add_argument("--overlap-chunks", nargs="+", type=int, default=[])
    tensor.add_argument("--where", action="store_true", help="where our step's time goes")
    step_context.add_arguments(parser.add_argument_group("context parallelism"))
    step_pipeline.add_arguments(parser.add_argument_group("pipelines"))
    args = parser.parse_args()
    for name, degree in (("tp", args.tp), ("cp", args.cp), ("pp", args.pp)):
        if degree not in (1, args.ranks):
            parser.error(f"--{name} {degree}: 1 or {args.ranks}, the number of ranks")
    if sum(degree > 1 for degree in (args.tp, args.cp, args.pp)) > 1:
        parser.error("--tp, --cp and --pp: one of them")
    if args.pp not in (1, 2):
        parser.error(f"--pp {args.pp}: models are cut for 2 ranks")
    return args


def main():
    args = parse_arguments()
    if args.tp > 1 and (args.where or args.overlap_chunks):
        return step_tensor.main(args)
    if args.cp > 1:
        return step_context.main(args)
    if args.pp > 1:
        return step_pipeline.main(args)
    if args.ranks > 1:
        return step_ranks.main(args)
    python = HERE.parent / ".venv/bin/python"
    results = []
    print(f"{'model':<14}{'against':<10}{'ours tok/s':>12}{'theirs':>10}{'ratio':>8}"
          f"{'(min - max)':>16}{'ours MB':>9}{'theirs':>8}")
    for model in args.models:
        common = ["--model", model, "--threads", args.threads, "--steps", args.steps,
                  "--warmup", args.warmup]
        ours = [f"{args.build}/bench/quatrain_bench_step", *common]
        others = ["eager"] if args.eager_only else ["eager", "compile"]
        if MODELS[model]["kind"] == "mixtral":  # compiling a loop over experts breaks at each
            others = ["eager", "library"]
        else:
            others += ["floor"]
        for against in others:
            theirs = [python, HERE / "step_torch.py", *common]
            theirs += [f"--{against}"] if against != "eager" else []
            if against == "floor":
                theirs = [*ours, "--floor"]
            r = compare(ours, theirs, args.pairs)
            results.append({"model": model, "against": against, **r})
            if "error" in r:
                print(f"{model:<14}{against:<10}  {r['error']}")
                continue
            print(f"{model:<14}{against:<10}{r['ours_tokens_per_s']:>12.0f}"
                  f"{r['theirs_tokens_per_s']:>10.0f}{r['ratio']:>8.2f}"
                  f"{r['ratio_min']:>9.2f} -{r['ratio_max']:>5.2f}"
                  f"{r['ours_peak_bytes'] / 1e6:>9.0f}{r['theirs_peak_bytes'] / 1e6:>8.0f}")
            sys.stdout.flush()
    out = pathlib.Path(args.build) / "bench" / "step.json"
    out.write_text(json.dumps(results, indent=2) + "\n")
    print(f"written: {out}")


if __name__ == "__main__":
    main()
