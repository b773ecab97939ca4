# SPDX-License-Identifier: Apache-2.0
"""Weak scaling: the same work for each rank, on more of them."""
from page import MIB, Section, cell, percent

WORK_MS = 576  # of each clock rank a step
RANKS = (1, 2, 4, 8, 16)
PARTS = ("compute", "exposed_tp", "exposed_pp", "bubble", "exposed_dp", "optimizer")


def weak(machine):
    section = Section(
        "weak_scaling", "Weak scaling",
        f"Clock ranks: a model cut over p ranks and four micro-batches for each, so that a rank"
        f" works {WORK_MS} ms whatever p is; what a step takes more is the bubble, (p - 1) / 4p of"
        " the work under 1f1b and nearly nothing under zb-v. Training: data ranks with ZeRO-1,"
        " one sequence each; tokens/s of both cores say what a rank costs beside its work.\n\n"
        "Simulated: 32,768 tokens of an accelerator and step (405B: 1,024). What grows is what data"
        " ranks exchange, exposed_dp: over more nodes at less bandwidth each, and in more steps of"
        " latency. All else stays to the bit, but for the optimizer, whose shards shrink.")
    clock, steps = clocks(machine)
    section.table(["ranks", "1f1b, ms (simulated)", "1f1b, ms (measured, clock ranks)",
                   "zb-v, ms (simulated)", "zb-v, ms (measured, clock ranks)",
                   "tokens/s of both cores (measured, training)",
                   "sent, MiB a rank (measured, training)"], clock)
    for scaling in machine.lecture["weak_scaling"]:
        section.note(f"Simulated, H100, {scaling['name']}; parts in ms:")
        section.table(["accelerators", "step, ms", "against the first", *PARTS],
                      [far_row(row, scaling["rows"][0]) for row in scaling["rows"]])
    series = [(f"{name}, clock ranks (measured)", list(RANKS), ys, i, True)
              for i, (name, ys) in enumerate(steps.items())]
    series += [(f"{of['name']} (simulated)", [row["gpus"] for row in of["rows"]],
                [row["step_s"] / of["rows"][0]["step_s"] for row in of["rows"]], 2 + i)
               for i, of in enumerate(machine.lecture["weak_scaling"])]
    section.lines("A step at a fixed batch of each rank", "ranks", "against the fewest", series)
    return section


def clocks(machine):
    rows, steps = [], {"1f1b": [], "zb-v": []}
    for ranks in RANKS:
        row = [ranks]
        for schedule, ratios in steps.items():
            simulated, measured = clock(machine, schedule, ranks)
            row += [simulated, measured]
            ratios.append(measured / WORK_MS)
        run = machine.train(f"weak-{ranks}", f"parallel.dp_shard={ranks}", "parallel.zero=1",
                            f"training.global_batch={ranks}")
        rows.append([*row, run.tokens_per_s, run.sent() / MIB])
    return rows, steps


def clock(machine, schedule, ranks):
    """Milliseconds of a step: simulated, measured."""
    unit_ms = WORK_MS / 12  # 4 p micro-batches, a p-th of three units each
    if ranks == 1:
        schedule = "1f1b"  # a V needs two
    share = 1 / ranks
    both = machine.clock(schedule, ranks, 4 * ranks, f"{share},{share},{share},0", unit_ms)
    return [one["makespan"] * unit_ms for one in both]


def far_row(row, first):
    parts = [cell(1e3 * row["parts_s"][part]) for part in PARTS]
    return [f"{row['gpus']:,}", 1e3 * row["step_s"],
            f"{percent(row['step_s'] / first['step_s'])} %", *parts]
