#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bubble rates of the executor against the clock's: every schedule through `quatrain schedule run`,
whose stages wait instead of computing. Writes the markdown table of docs/schedules.md; exit 1 where
a measured rate is more than 2 points off or a run fails.

    bench/schedule_clock.py BUILD_FOLDER [--ranks 4 8 16] [--schedules 1f1b zb-h1 ...]

F, B, W and a message take the times of the Zero Bubble paper's models (arXiv:2401.10241, its
profiled times), stretched so that a forward takes 20 ms: 1.5B, 6.2B and 14.6B on 4, 8 and 16 ranks.
Takes 20 minutes; ranks sleep, so one process for each --ranks may run beside the others.
"""
import argparse
import json
import pathlib
import subprocess
import sys

TIMES = {4: "18.522,18.086,9.337,0.601", 8: "29.718,29.444,19.927,0.527",
         16: "11.347,11.248,8.132,0.377"}
UNIT_MS = {4: 1.1, 8: 0.7, 16: 1.8}
ROUNDS = (1, 2, 4)  # micro-batches over ranks
POINTS = 2.0
USAGE = 2  # exit code: not defined there, or the executor refuses it


def quatrain(build, *words):
    """(exit code, the JSON document or the reason why there is none)."""
    done = subprocess.run([f"{build}/quatrain", "schedule", *map(str, words), "--json"],
                          capture_output=True, text=True)
    if done.returncode == 0:
        return 0, json.loads(done.stdout)
    return done.returncode, (done.stderr.strip().splitlines() or ["failed"])[-1]


def listed(build):
    code, document = quatrain(build, "list")
    if code != 0:
        raise SystemExit(document)
    return [row["schedule"] for row in document["schedules"]]


class Table:
    """Cells as they are measured, and what was wrong."""

    def __init__(self, build, runs):
        self.build = build
        self.runs = runs
        self.rows, self.refused, self.failures = [], {}, []

    def add_row(self, schedule, ranks):
        cells = [self.cell(schedule, ranks, rounds * ranks) for rounds in ROUNDS]
        if any(cells):
            self.rows.append(f"| {schedule} | {ranks} | " + " | ".join(c or "-" for c in cells)
                             + " |")

    def cell(self, schedule, ranks, microbatches):
        """Empty where there is nothing to run."""
        where = [schedule, "--ranks", ranks, "--microbatches", microbatches,
                 "--times", TIMES[ranks]]
        if quatrain(self.build, "show", *where)[0] == USAGE:
            return ""
        code, result = quatrain(self.build, "run", *where, "--unit-ms", UNIT_MS[ranks],
                                "--runs", self.runs)
        label = f"{schedule}, {ranks} ranks, {microbatches} micro-batches"
        if code == USAGE:
            self.refused.setdefault(schedule, result)
            return ""
        if code != 0:
            self.failures.append(f"{label}: {result}")
            return "failed"
        predicted, measured = (100 * result[how]["bubble_rate"]
                               for how in ("simulated", "measured"))
        print(f"{label}: {predicted:.1f} %, measured {measured:.1f} %", file=sys.stderr)
        if abs(predicted - measured) <= POINTS:
            return f"{predicted:.1f} / {measured:.1f}"
        self.failures.append(f"{label}: predicted {predicted:.1f} %, measured {measured:.1f} %")
        return f"**{predicted:.1f} / {measured:.1f}**"

    def text(self):
        head = " | ".join(f"m = {rounds if rounds > 1 else ''}p" for rounds in ROUNDS)
        return "\n".join([f"| schedule | p | {head} |", "|---" * (2 + len(ROUNDS)) + "|",
                          *self.rows, ""])


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--ranks", type=int, nargs="+", default=list(TIMES), choices=TIMES)
    parser.add_argument("--schedules", nargs="+", help="default: all that are listed")
    parser.add_argument("--runs", type=int, default=5, help="of which the median counts")
    return parser.parse_args()


def main():
    args = parse_arguments()
    table = Table(args.build, args.runs)
    for schedule in args.schedules or listed(args.build):
        for ranks in args.ranks:
            table.add_row(schedule, ranks)
    which = "" if args.ranks == list(TIMES) else "_p" + "_".join(map(str, args.ranks))
    out = pathlib.Path(args.build) / "bench" / f"schedule_clock{which}.md"
    out.parent.mkdir(exist_ok=True)
    out.write_text(table.text())
    print(table.text())
    for schedule, reason in table.refused.items():
        print(f"{schedule} is not run: {reason}")
    for failure in table.failures:
        print(failure)
    print(f"written: {out}")
    return 1 if table.failures else 0


if __name__ == "__main__":
    sys.exit(main())
