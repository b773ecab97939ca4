#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Communication between ranks: the thread and mpi backends, Open MPI's own collectives and plain
copies of the same bytes, in turn. Prints one table and writes one JSON file.

    bench/comm.py BUILD_FOLDER [--rounds 5] [--ranks 2 4] [--bytes 67108864]

Bandwidths as nccl-tests define them: algorithm bandwidth is S / t; bus bandwidth is what each link
of a ring would carry, 2 (n-1)/n S / t in all_reduce, (n-1)/n S / t in all_gather, reduce_scatter
and all_to_all, S / t in send/recv.

The bound of memory: all ranks together read and write so many bytes (MOVED, from the algorithm of
the thread backend), and memory moves them no faster than plain copies of S by every rank at once,
which read and write 2 n S. share = bound / time of the thread backend; above 100 % where the
copies, with two buffers, leave a cache in which one buffer still fits.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

# Bytes that one of n ranks reads and writes, in units of S.
MOVED = {
    "all_reduce": lambda n: 2.0,              # a piece of every rank's, written to every rank
    "all_gather": lambda n: 2.0,              # every piece is read and written once
    "reduce_scatter": lambda n: 1.0 + 1.0 / n,  # a piece of every rank's, one written
    "all_to_all": lambda n: 2.0,
    "send/recv": lambda n: 2.0,
}
BUS = {
    "all_reduce": lambda n: 2.0 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "send/recv": lambda n: 1.0,
}
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def collect(build, ranks, rounds, options):
    """(ranks, operation, bytes) -> contender -> seconds, one a round; processes take turns."""
    times = {}
    for _ in range(rounds):
        for n in ranks:
            commands = [[f"{build}/bench/quatrain_bench_comm", "--ranks", str(n), *options]]
            mpi = f"{build}/bench/quatrain_bench_comm_mpi"
            if os.path.exists(mpi):
                commands.append([*MPIRUN, "-n", str(n), mpi, *options])
            for command in commands:
                for row in run(command):
                    if 4 * row["bytes"] <= 4 * n:  # the next size has one float a rank too
                        continue
                    case = times.setdefault((n, row["operation"], row["bytes"]), {})
                    case.setdefault(row["contender"], []).extend(row["seconds"])
    return times


def summarise(case, contenders):
    n, operation, nominal = case
    whole = max(nominal, 4 * n)  # one float a rank at least
    seconds = {name: statistics.median(values) for name, values in contenders.items()}
    bound = seconds["copy"] * MOVED[operation](n) / 2.0
    row = {"operation": operation, "bytes": whole, "ranks": n, "seconds": seconds,
           "memory_bound_s": bound, "share_of_bound": bound / seconds["thread"],
           "algorithm_GBps": {}, "bus_GBps": {}, "samples": contenders}
    for name, value in seconds.items():
        row["algorithm_GBps"][name] = whole / value / 1e9
        if not name.startswith("copy"):
            row["bus_GBps"][name] = whole / value / 1e9 * BUS[operation](n)
    if "Open MPI" in seconds:
        for ours in ("thread", "mpi"):
            row[f"{ours}_speedup"] = seconds["Open MPI"] / seconds[ours]
    return row


def cell(value, width, digits=2):
    return f"{value:>{width}.{digits}f}" if value is not None else f"{'-':>{width}}"


def print_table(rows):
    print("microseconds a call; GB/s of the thread backend; speed-up over Open MPI")
    print(f"{'operation':<15}{'n':>2}{'bytes':>10}{'thread':>10}{'mpi':>10}{'OpenMPI':>10}"
          f"{'copy':>10}{'one copy':>10}{'alg GB/s':>9}{'bus GB/s':>9}{'share %':>8}"
          f"{'thread x':>9}{'mpi x':>7}")
    for r in rows:
        us = {name: 1e6 * s for name, s in r["seconds"].items()}
        print(f"{r['operation']:<15}{r['ranks']:>2}{r['bytes']:>10}"
              + "".join(cell(us.get(name), 10)
                        for name in ("thread", "mpi", "Open MPI", "copy", "copy by one"))
              + cell(r["algorithm_GBps"]["thread"], 9) + cell(r["bus_GBps"]["thread"], 9)
              + cell(100 * r["share_of_bound"], 8, 0)
              + cell(r.get("thread_speedup"), 9) + cell(r.get("mpi_speedup"), 7))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--budget", type=float, default=0.01)
    parser.add_argument("--bytes", type=int, default=64 << 20)
    args = parser.parse_args()
    options = ["--budget", str(args.budget), "--bytes", str(args.bytes)]
    times = collect(args.build, args.ranks, args.rounds, options)
    rows = [summarise(case, contenders) for case, contenders in times.items()]
    rows.sort(key=lambda r: (r["ranks"], list(MOVED).index(r["operation"]), r["bytes"]))
    print_table(rows)
    out = pathlib.Path(args.build) / "bench" / "comm.json"
    out.write_text(json.dumps(rows, indent=2) + "\n")
    print(f"written: {out}")


if __name__ == "__main__":
    main()
