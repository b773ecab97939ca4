# SPDX-License-Identifier: Apache-2.0
"""Pipelines: stages against batch, and the bubbles of schedules. Clock ranks are threads that walk
the executor's rows with its messages and sleep instead of computing: they need no cores."""
import json

from machine import shares
from page import MIB, Section, percent

EQUAL = "1,1,1,0.02"  # F, I, W, a message
MODEL_6B = "29.718,29.444,19.927,0.527"  # ms, profiled; arXiv:2401.10241, table 6
TWO_CHUNKS = ("interleaved-1f1b", "looped-bfs", "interleaved-zb1p", "zb-v", "zb-v-auto", "v-half",
              "v-min", "1f1b-v", "dualpipe-v")
QUICK = ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v")


def against_batch(machine):
    section = Section(
        "pipeline_against_batch", "Pipeline ranks and batch",
        "1f1b, micro-batches of one sequence. The rate of a rank is its work over the step; bubbles"
        " are (p - 1) / m of the work. Ranks of the training runs share two cores, so that what"
        " they say of it is the waiting of two ranks, what is sent, and what is kept.")
    published = {curve["name"]: curve for curve in machine.figure(section.file)["curves"]}
    rows, series = [], []
    for colour, batch in enumerate((8, 128)):
        far = published[f"batch {batch}"]
        measured = []
        for i, p in enumerate((1, 2, 4, 8)):
            rates = clocked(machine, p, batch)
            measured.append(rates[1])
            real = trained(machine, p, min(batch, 32))
            rows.append([batch, p, percent(rates[0]), percent(rates[1]), *real,
                         far["predicted"][i], far["published"][i]])
        series += [(f"batch {batch}, simulated", far["x"],
                    [y / far["predicted"][0] for y in far["predicted"]], colour),
                   (f"batch {batch}, clock ranks", [1, 2, 4, 8], measured, colour, True)]
    section.table(
        ["batch", "pp", "rate, % (simulated, equal times)", "rate, % (measured, clock ranks)",
         "waiting, % (measured, training)", "sent, MiB (measured, training)",
         "activations, MiB (measured, training)", "TFLOP/s a GPU (simulated, 121B/8 a stage, A100)",
         "(published)"], rows)
    section.note("Training: batches of 8 and 32.")
    section.lines("Rate against one stage",
                  "pipeline ranks", "share of one rank's rate", series)
    return section


def clocked(machine, p, batch):
    if p == 1:
        return 1.0, 1.0
    both = machine.clock("1f1b", p, batch, EQUAL, 5)
    return [1 - one["bubble_rate"] for one in both]


def trained(machine, p, batch):
    run = machine.train(f"pp{p}-batch{batch}", f"parallel.pp={p}", f"training.global_batch={batch}")
    return [percent(run.waiting) if p == 2 else None, run.sent("pp") / MIB,
            run.peak("activations") / MIB]


def bubbles(machine):
    section = Section(
        "schedule_bubbles", "Bubbles of schedules",
        "Four ranks, eight micro-batches, times of a 6.2B model (arXiv:2401.10241, table 6), by the"
        " clock and by clock ranks; and two training ranks, a core each.")
    listed = QUICK if machine.quick else names(machine)
    rows = []
    for name in listed:
        simulated, measured = machine.clock(name, 4, 8, MODEL_6B, 0.7)
        rows.append([name, percent(simulated["bubble_rate"]), percent(measured["bubble_rate"]),
                     max(simulated["peak_stash"]), simulated["messages"],
                     *trained_schedule(machine, name)])
    section.table(["schedule", "bubble, % (simulated)", "bubble, % (measured, clock ranks)",
                   "peak, activations of a chunk (simulated)", "messages",
                   "pp 2: not computing, % (simulated, this machine)",
                   "pp 2: waiting, % (measured, training)",
                   "pp 2: activations, MiB (measured, training)"], rows)
    section.bars("Bubbles, p = 4, m = 8, times of 6.2B", "% of a step", listed,
                 [("simulated", [float(row[1]) for row in rows]),
                  ("measured, clock ranks", [float(row[2]) for row in rows])])
    return section


def names(machine):
    listed = json.loads(machine.call("schedule", "list", "--json"))["schedules"]
    return [one["schedule"] for one in listed if one["schedule"] != "dualpipe"]  # two replicas


def trained_schedule(machine, name):
    chunks = 2 if name in TWO_CHUNKS else 1
    settings = ["parallel.pp=2", f"parallel.schedule={name}", f"parallel.chunks={chunks}"]
    run = machine.train(f"pp2-{name}", *settings)
    return [percent(shares(machine.simulate(*settings))), percent(run.waiting),
            run.peak("activations") / MIB]
