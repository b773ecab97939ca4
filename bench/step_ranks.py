# SPDX-License-Identifier: Apache-2.0
"""The many-rank half of step.py: `bench/step.py BUILD_FOLDER --ranks 2 [--against ddp ...]`.

Ranks of one compute thread each train the same number of tokens on both sides, the model's own
batch on every rank. The process that ours is compared with runs next to it, in every round:

    ddp        ZeRO-0            DistributedDataParallel
    zero1      ZeRO-1            the same with ZeroRedundancyOptimizer
    fsdp       ZeRO-3            FSDP2, blocks resharded after their forward
    fsdp-keep  ZeRO-2            FSDP2, values kept until the backward
    one-rank   ZeRO-0            one rank of ours with as many threads, on the same global batch
    zero0      ZeRO-3            ZeRO-0 of ours, both with 8,192 tokens a rank and micro-batch
    tp         tp                parallelize_module, loss_parallel
    tp-sp      tp, sequence      the same with SequenceParallel
    tp-one     tp                one rank of ours with as many threads
    tp-torch   tp                one process of PyTorch with as many threads

Under tp (`--tp 2 [--sequence-parallel both]`) all ranks share the model's own batch, which the
tokens of a second count once.

Peak memory is a rank's resident set: of its process, or its share of the process that all ranks are
threads of. "tensors" counts our tensors alone. "exposed" is the share of a step in which a rank
stood still for its collectives, for a slower peer too. Medians are over the rounds in which no
other program had a tenth of a processor, where there are such ("pairs": of them / all).
"""
import json
import pathlib
import statistics

from step_models import MODELS
from turns import run, tokens_per_s

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = HERE.parent / ".venv/bin/python"
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
ZERO_STAGE = {"ddp": 0, "zero1": 1, "fsdp": 3, "fsdp-keep": 2, "one-rank": 0, "zero0": 3}
TENSOR = ("tp", "tp-sp", "tp-one", "tp-torch")  # ranks share each sequence
WIDE_TOKENS = 8192
QUIET = 0.1  # processors that other programs may have had


class Side:
    """Command lines for one model. `key`: what else tells its rows from others of the model."""

    key = {}

    def __init__(self, build, model, args):
        self.program = f"{build}/bench/quatrain_bench_step"
        self.ranks = args.ranks
        self.common = ["--model", model, "--steps", args.steps, "--warmup", args.warmup]
        config = MODELS[model]
        self.batch = args.batch or config["batch"]
        self.wide = WIDE_TOKENS // config["seq"]

    def ours(self, backend, batch, *options):
        command = [self.program, *self.common, "--threads", 1, "--batch", batch, *options]
        if backend == "mpi":
            return [*MPIRUN, "-n", self.ranks, *command, "--backend", "mpi"]
        return [*command, "--ranks", self.ranks]

    def one_process(self, batch):
        """Of ours, with the threads of all ranks."""
        return [self.program, *self.common, "--threads", self.ranks, "--batch", batch]

    def pair(self, backend, against):
        """Our command and the one that it is compared with."""
        if against in TENSOR:
            return self.tensor_pair(backend, against)
        if against == "zero0":
            return [self.ours(backend, self.wide, "--zero", stage) for stage in (3, 0)]
        ours = self.ours(backend, self.batch, "--zero", ZERO_STAGE[against])
        if against == "one-rank":
            return ours, self.one_process(self.batch * self.ranks)
        return ours, self.torch_ranks(against)

    def tensor_pair(self, backend, against):
        options = ["--sequence-parallel"] if against == "tp-sp" else []
        ours = self.ours(backend, self.batch, "--tp", self.ranks, *options)
        if against == "tp-one":
            return ours, self.one_process(self.batch)
        if against == "tp-torch":
            return ours, [PYTHON, HERE / "step_torch.py", *self.common, "--threads", self.ranks,
                          "--batch", self.batch]
        return ours, self.torch_ranks(against)

    def torch_ranks(self, mode):
        return [PYTHON, HERE / "step_torch_ranks.py", *self.common, "--mode", mode,
                "--ranks", self.ranks, "--batch", self.batch]


def sample(commands):
    """One round: both sides in turn. Their first losses tell that they train the same thing."""
    ours, theirs = (run(command) for command in commands)
    for result in (ours, theirs):
        if "error" in result:
            return result
    a, b = ours["losses"][0], theirs["losses"][0]
    if not abs(a - b) < 0.05 * b or ours["tokens"] != theirs["tokens"]:
        return {"error": f"not the same work: losses {a:.3f}, {b:.3f}, "
                         f"tokens {ours['tokens']}, {theirs['tokens']}"}
    return {"ours": ours, "theirs": theirs}


def quiet(rounds):
    """Rounds in which other programs left the processors alone; all where there is none."""
    undisturbed = [r for r in rounds
                   if max(r[side]["other_cpus"] for side in ("ours", "theirs")) < QUIET]
    return undisturbed or rounds


def summary(row):
    rounds = quiet(row["rounds"])
    rates = [(tokens_per_s(r["ours"]), tokens_per_s(r["theirs"])) for r in rounds]
    ratios = [a / b for a, b in rates]
    exposed = [sum(r["ours"]["exposed_comm_s"]) / sum(r["ours"]["seconds"]) for r in rounds]
    return {
        "ours_tokens_per_s": statistics.median(a for a, _ in rates),
        "theirs_tokens_per_s": statistics.median(b for _, b in rates),
        "ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios),
        "ours_peak_bytes": max(r["ours"]["peak_bytes"] for r in rounds),
        "theirs_peak_bytes": max(r["theirs"]["peak_bytes"] for r in rounds),
        "ours_peak_tensor_bytes": max(r["ours"]["peak_tensor_bytes"] for r in rounds),
        "exposed_share": statistics.median(exposed), "pairs": len(rounds),
    }


HEADER = (f"{'model':<13}{'against':<10}{'ours':<15}{'tok/s':>7}{'theirs':>8}{'ratio':>7}"
          f"{'(min - max)':>14}{'pairs':>6}{'MB':>7}{'theirs':>8}{'tensors':>8}{'exposed':>8}")


def line(row):
    r = row["summary"]
    zero = ZERO_STAGE.get(row["against"])
    ours = f"{row['backend']} " + (f"tp {row['ranks']}" if zero is None else f"ZeRO-{zero}")
    return (f"{row['model']:<13}{row['against']:<10}{ours:<15}{r['ours_tokens_per_s']:>7.0f}"
            f"{r['theirs_tokens_per_s']:>8.0f}{r['ratio']:>7.2f}"
            f"{r['ratio_min']:>8.2f} -{r['ratio_max']:>4.2f}{r['pairs']:>3}/{len(row['rounds']):<2}"
            f"{r['ours_peak_bytes'] / 1e6:>7.0f}{r['theirs_peak_bytes'] / 1e6:>8.0f}"
            f"{r['ours_peak_tensor_bytes'] / 1e6:>8.0f}{100 * r['exposed_share']:>7.1f}%")


def comparisons(args):
    if args.tp == 1:
        return args.against or list(ZERO_STAGE)
    return args.against or {"off": ["tp"], "on": ["tp-sp"],
                            "both": ["tp", "tp-sp"]}[args.sequence_parallel]


def measure(args, side_of, against_all, rows, save):
    """Fills `rows` round by round, saving after each, so that a part of them is of use too."""
    for model in args.models:
        side = side_of(args.build, model, args)
        for _ in range(args.pairs):
            for against in against_all:
                for backend in args.backends:
                    key = {"model": model, "against": against, "backend": backend,
                           "ranks": args.ranks, **side.key}
                    measured = sample(side.pair(backend, against))
                    if "error" in measured:
                        print(f"{model:<13}{against:<10}{backend:<10}{measured['error']}",
                              flush=True)
                        continue
                    row = rows.setdefault(tuple(key.values()), {**key, "rounds": []})
                    row["rounds"].append(measured)
                    row["summary"] = summary(row)
            save()


def measured_rows(args, side_of, against_all, out):
    """Rows of this run and, to add to them, of `out`; afterwards they are in `out`."""
    rows = {}
    if args.add and out.exists():
        for row in json.loads(out.read_text()):
            key = tuple(v for name, v in row.items() if name not in ("rounds", "summary"))
            rows[key] = row
    save = lambda: out.write_text(json.dumps(list(rows.values()), indent=1) + "\n")
    measure(args, side_of, against_all, rows, save)
    return rows


def main(args):
    out = pathlib.Path(args.build) / "bench" / "step_ranks.json"
    rows = measured_rows(args, Side, comparisons(args), out)
    print(HEADER)
    for row in rows.values():
        print(line(row))
    print(f"written: {out}")
