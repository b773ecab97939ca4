# SPDX-License-Identifier: Apache-2.0
"""What tensor parallelism costs a step of ours, over `--pairs` rounds, medians:

    step.py BUILD_FOLDER --ranks 2 --tp 2 --overlap-chunks 1 2 4    tokens/s by chunks
    step.py BUILD_FOLDER --ranks 2 --tp 2 --where                   a step's time, from its trace

A chunk of a row-parallel product is summed over ranks while the next is computed. A rank that waits
for a collective is "late" until the last rank has called it, then "moving": bytes copied and added,
by its own thread too. "behind" is the time between call and wait, filled with weight gradients.
"between" actions gradients are set to zero.
"""
import json
import pathlib
import re
import statistics
import tempfile

from step_ranks import Side
from turns import run, tokens_per_s

PHASES = {"F": "forward", "B": "backward", "OPTIMIZER_STEP": "update"}


def forms(args):
    return {"off": [False], "on": [True], "both": [False, True]}[args.sequence_parallel]


def command(args, model, backend, sequence_parallel, *options):
    side = Side(args.build, model, args)
    form = ["--sequence-parallel"] if sequence_parallel else []
    return side.ours(backend, side.batch, "--tp", args.tp, *form, *options)


def chunk_rates(args, model, backend, sequence_parallel):
    """Rows of one form: the numbers of chunks take turns."""
    rounds = {chunks: [] for chunks in args.overlap_chunks}
    for _ in range(args.pairs):
        for chunks, results in rounds.items():
            result = run(command(args, model, backend, sequence_parallel,
                                 "--overlap-chunks", chunks))
            if "error" in result:
                raise SystemExit(result["error"])
            results.append(result)
    first = rounds[args.overlap_chunks[0]]
    for chunks, results in rounds.items():
        rates = [tokens_per_s(r) for r in results]
        ratios = [rate / tokens_per_s(one) for rate, one in zip(rates, first)]
        exposed = [sum(r["exposed_comm_s"]) / sum(r["seconds"]) for r in results]
        yield {"model": model, "backend": backend, "sequence_parallel": sequence_parallel,
               "chunks": chunks, "tokens_per_s": statistics.median(rates),
               "ratio": statistics.median(ratios), "ratio_min": min(ratios),
               "ratio_max": max(ratios), "exposed_share": statistics.median(exposed),
               "rounds": results}


def print_chunks(args):
    print(f"{'model':<13}{'backend':<9}{'sequence':<9}{'chunks':>7}{'tok/s':>8}{'ratio':>7}"
          f"{'(min - max)':>14}{'exposed':>9}")
    rows = []
    for model in args.models:
        for backend in args.backends:
            for form in forms(args):
                for r in chunk_rates(args, model, backend, form):
                    rows.append(r)
                    print(f"{model:<13}{backend:<9}{'cut' if form else 'whole':<9}{r['chunks']:>7}"
                          f"{r['tokens_per_s']:>8.0f}{r['ratio']:>7.2f}{r['ratio_min']:>8.2f} -"
                          f"{r['ratio_max']:>4.2f}{100 * r['exposed_share']:>8.1f}%", flush=True)
    return rows


def phases_of(rows):
    """(name, begin, end) of a rank's actions."""
    for row in rows:
        if row.get("cat") == "compute":
            kind = re.match(r"\d*([A-Z_]+)", row["name"]).group(1)
            yield PHASES.get(kind, kind.lower()), row["ts"], row["ts"] + row["dur"]


def collectives_of(rows):
    flights = [row for row in rows if row.get("cat") == "flight"]
    waits = [row for row in rows if row.get("cat") == "wait" and "args" in row]
    return [{"name": f["name"], "bytes": f["args"]["bytes"], "called": f["ts"], "wait": w["ts"],
             "done": w["ts"] + w["dur"]} for f, w in zip(flights, waits)]


def account(traces):
    """{(phase, what): milliseconds} of one step, the mean of its ranks. `traces`: rows by rank."""
    collectives = [collectives_of(rows) for rows in traces]
    last_call = [max(c["called"] for c in same) for same in zip(*collectives)]
    sums = {}

    def add(phase, what, **values):
        entry = sums.setdefault((phase, what), {})
        for key, value in values.items():
            entry[key] = entry.get(key, 0.0) + value / len(traces)

    for rows, own in zip(traces, collectives):
        for phase, begin, end in phases_of(rows):
            inside = [(c, last) for c, last in zip(own, last_call) if begin <= c["wait"] < end]
            for c, last in inside:
                waited = c["done"] - c["wait"]
                late = min(max(last - c["wait"], 0.0), waited)
                add(phase, f"{c['name']} {kilobytes(c['bytes'])}", calls=1, late=late / 1e3,
                    moving=(waited - late) / 1e3, behind=(c["wait"] - c["called"]) / 1e3)
            computed = end - begin - sum(c["done"] - c["wait"] for c, _ in inside)
            add(phase, "compute", compute=computed / 1e3)
    return sums


def kilobytes(count):
    return f"{count / 1024:.0f} KiB" if count >= 1024 else f"{count} B"


def traced_step(args, model, backend, sequence_parallel):
    chunks = ["--overlap-chunks", args.overlap_chunks[0]] if args.overlap_chunks else []
    with tempfile.TemporaryDirectory() as folder:
        prefix = pathlib.Path(folder) / "step"
        result = run(command(args, model, backend, sequence_parallel, "--trace", prefix, *chunks))
        if "error" in result:
            raise SystemExit(result["error"])
        sums = account([json.loads(pathlib.Path(f"{prefix}.{rank}.json").read_text())["traceEvents"]
                        for rank in range(args.ranks)])
    rest = 1e3 * result["seconds"][-1] - sum(milliseconds(e) for e in sums.values())
    return sums | {("between", "compute"): {"compute": rest}}


def milliseconds(entry):
    return sum(entry.get(part, 0.0) for part in ("compute", "late", "moving"))


def median_of(accounts):
    """Entries of all rounds, each number its median; what a round lacks is 0 there."""
    keys = {key: sorted(entry) for a in accounts for key, entry in a.items()}
    return {key: {name: statistics.median(a.get(key, {}).get(name, 0.0) for a in accounts)
                  for name in names} for key, names in keys.items()}


def print_where(args):
    rows = []
    for model in args.models:
        for backend in args.backends:
            for form in forms(args):
                sums = median_of([traced_step(args, model, backend, form)
                                  for _ in range(args.pairs)])
                total = sum(milliseconds(e) for e in sums.values())
                print(f"\n{model}, {backend}, sequence {'cut' if form else 'whole'}: "
                      f"a step of {total:.0f} ms")
                print_account(sums, total)
                rows.append({"model": model, "backend": backend, "sequence_parallel": form,
                             "step_ms": total, "account": [{"phase": p, "what": w, **e}
                                                           for (p, w), e in sums.items()]})
    return rows


def print_account(sums, total):
    print(f"{'phase':<10}{'what':<34}{'calls':>6}{'ms':>9}{'of step':>9}{'late':>8}{'moving':>8}"
          f"{'behind':>8}")
    for (phase, what), e in sums.items():
        ms = milliseconds(e)
        text = f"{phase:<10}{what:<34}{e.get('calls', 0):>6.0f}{ms:>9.1f}{100 * ms / total:>8.1f}%"
        if "late" in e:
            text += f"{e['late']:>8.1f}{e['moving']:>8.1f}{e['behind']:>8.1f}"
        print(text, flush=True)


def main(args):
    rows = print_where(args) if args.where else print_chunks(args)
    out = pathlib.Path(args.build) / "bench" / ("step_where.json" if args.where else
                                                "step_chunks.json")
    out.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"written: {out}")
