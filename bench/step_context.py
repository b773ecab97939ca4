# SPDX-License-Identifier: Apache-2.0
"""The shared sequences of step.py: `bench/step.py BUILD_FOLDER --ranks 2 --cp 2 [...]`.

Ranks of one compute thread each share every sequence, in each of `--cp-styles`, next to

    cp-one    one rank of ours with as many threads, on the same sequences
    cp-torch  PyTorch over gloo: keys and values gathered (step_torch_context.py)

`--seqs` gives other lengths than the model's, with `--batch` sequences of each. `--alone` runs ours
only: how much of a step a rank waits for keys, values and their gradients ("exposed": late peers
and bytes) of the time in which they are under way ("flight").
"""
import json
import pathlib
import statistics
import tempfile

from step_ranks import QUIET, Side, summary
from step_ranks import sample as sample_pair
from turns import run, tokens_per_s

AGAINST = ("cp-one", "cp-torch")
STYLES = ("ring", "all_gather", "ulysses")


def add_arguments(group):
    group.add_argument("--cp", type=int, default=1, help="1, or all ranks")
    group.add_argument("--cp-styles", nargs="+", default=list(STYLES), choices=STYLES)
    group.add_argument("--seqs", nargs="+", type=int, default=[0], help="0: the model's")
    group.add_argument("--alone", action="store_true", help="ours only: what waits are exposed")


class ContextSide(Side):
    """Command lines for one model, style and length."""

    def __init__(self, build, model, args, style, seq):
        super().__init__(build, model, args)
        self.style = style
        self.common += ["--seq", seq] if seq else []

    def shared(self, backend):
        return self.ours(backend, self.batch, "--cp", self.ranks, "--cp-style", self.style)

    def pair(self, backend, against):
        if against == "cp-one":
            return self.shared(backend), self.one_process(self.batch)
        return self.shared(backend), self.torch_ranks("cp")


def events_of(prefix, rank):
    return json.loads(pathlib.Path(f"{prefix}.{rank}.json").read_text())["traceEvents"]


def alone(side, backend):
    """Of the last step's trace, beside its seconds: those in which a rank waited for its sequences'
    group, and those in which operations of it were under way, means over ranks."""
    with tempfile.TemporaryDirectory() as folder:
        prefix = pathlib.Path(folder) / "step"
        result = run([*side.shared(backend), "--trace", prefix])
        if "error" in result:
            return result
        for kind in ("wait", "flight"):
            result[kind + "_s"] = sum(
                row["dur"] for rank in range(side.ranks) for row in events_of(prefix, rank)
                if row.get("cat") == kind and row["name"].startswith("cp ")) / 1e6 / side.ranks
    return {"ours": result}


def exposed(row):
    rounds = [r["ours"] for r in row["rounds"]]
    undisturbed = [r for r in rounds if r["other_cpus"] < QUIET] or rounds
    waits, flights = ([r[kind] / r["seconds"][-1] for r in undisturbed]
                      for kind in ("wait_s", "flight_s"))
    return {"ours_tokens_per_s": statistics.median(map(tokens_per_s, undisturbed)),
            "exposed_share": statistics.median(waits), "exposed_min": min(waits),
            "exposed_max": max(waits), "flight_share": statistics.median(flights),
            "pairs": len(undisturbed)}


def cases(args):
    """In the order of a round."""
    for model in args.models:
        for seq in args.seqs:
            for style in args.cp_styles:
                for backend in args.backends:
                    for against in ["alone"] if args.alone else args.against or AGAINST:
                        yield model, seq, style, backend, against


def measure(args, rows, save):
    for _ in range(args.pairs):
        for case in cases(args):
            model, seq, style, backend, against = case
            side = ContextSide(args.build, model, args, style, seq)
            measured = (alone(side, backend) if args.alone
                        else sample_pair(side.pair(backend, against)))
            if "error" in measured:
                print(*case, measured["error"], flush=True)
                continue
            row = rows.setdefault(case, dict(model=model, seq=seq, style=style, backend=backend,
                                             against=against, rounds=[]))
            row["rounds"].append(measured)
            row["summary"] = exposed(row) if args.alone else summary(row)
        save()


def line(row):
    r = row["summary"]
    text = (f"{row['model']:<14}{row['seq'] or '':<6}{row['style']:<11}{row['backend']:<8}"
            f"{row['against']:<9}{r['pairs']:>2}/{len(row['rounds']):<2}"
            f"{r['ours_tokens_per_s']:>8.0f}")
    if row["against"] == "alone":
        return text + (f"   exposed {100 * r['exposed_share']:.1f} % "
                       f"({100 * r['exposed_min']:.1f} - {100 * r['exposed_max']:.1f}) of a step, "
                       f"flight {100 * r['flight_share']:.1f} %")
    return text + (f"{r['theirs_tokens_per_s']:>8.0f}{r['ratio']:>7.2f}{r['ratio_min']:>8.2f} -"
                   f"{r['ratio_max']:>5.2f}{100 * r['exposed_share']:>8.1f}%"
                   f"{r['ours_peak_bytes'] / 1e6:>7.0f}{r['theirs_peak_bytes'] / 1e6:>8.0f}")


HEADER = (f"{'model':<14}{'seq':<6}{'style':<11}{'backend':<8}{'against':<9}{'pairs':<5}"
          f"{'tok/s':>8}{'theirs':>8}{'ratio':>7}{'(min - max)':>15}{'exposed':>9}{'MB':>7}"
          f"{'theirs':>8}")


def main(args):
    out = pathlib.Path(args.build) / "bench" / (
        "step_context_alone.json" if args.alone else "step_context.json")
    rows = {}
    measure(args, rows, lambda: out.write_text(json.dumps(list(rows.values()), indent=1) + "\n"))
    print(HEADER)
    for row in rows.values():
        print(line(row))
    print(f"written: {out}")
