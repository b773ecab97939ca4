# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism: its degree, and its split with pipelines over the same ranks."""
from machine import shares
from page import MIB, Section, percent

MACHINE = "this machine, a core a rank"


def degree(machine):
    section = Section(
        "tensor_degree", "Degree of tensor parallelism",
        "One model of 8 x 128, eight sequences a step, sequence parallelism from tp 2 on. Bytes and"
        " activations are exact whatever cores there are; waiting is measured where each rank has a"
        " core; tokens/s are the whole machine's, so they fall by what the same work costs more.")
    far = machine.figure(section.file)["curves"][0]
    alone, rows, waits = None, [], []
    for tp in (1, 2, 4, 8):
        settings = [f"parallel.tp={tp}"]
        if tp > 1:
            settings.append("parallel.sequence_parallel=true")
        run, near = machine.train(f"tp{tp}", *settings), machine.simulate(*settings)
        alone = alone or near["step_s"]
        waits.append(shares(near))
        at = far["x"].index(tp) if tp in far["x"] else None
        rows.append([tp, run.sent("tp") / MIB, run.peak("activations") / MIB,
                     percent(run.waiting) if tp <= 2 else None, run.tokens_per_s,
                     percent(shares(near)), alone / tp / near["step_s"],
                     *[far[key][at] if at is not None else None
                       for key in ("predicted", "published")]])
    section.table(["tp", "sent, MiB (measured)", "activations, MiB (measured)",
                   "waiting, % (measured)", "tokens/s of both cores (measured)",
                   f"not computing, % (simulated, {MACHINE})",
                   "rate of a rank (simulated, the same)",
                   "tokens/s a GPU (simulated, 3B, H100)", "(published)"], rows)
    best = far["predicted"][0]
    section.lines("Rate of a rank (simulated)",
                  "tensor ranks", "against the smallest degree",
                  [("3B on H100", far["x"], [y / best for y in far["predicted"]], 0),
                   ("published", far["x"], [y / far["published"][0] for y in far["published"]], 0,
                    True),
                   ("8 x 128, a core a rank", [row[0] for row in rows],
                    [row[6] for row in rows], 1)])
    return section


def against_pipeline(machine):
    section = Section(
        "tensor_against_pipeline", "Tensor against pipeline ranks",
        "Eight ranks as tp x pp, sequence parallelism from tp 2 on, 1f1b. A tensor rank sends every"
        " layer's rows, a pipeline rank those between stages; a pipeline pays by its bubble, less"
        " so at a larger batch.")
    rows, curves = [], {8: [], 32: []}
    for batch in curves:
        for tp in (1, 2, 4, 8):
            settings = [f"parallel.tp={tp}", f"parallel.pp={8 // tp}",
                        f"training.global_batch={batch}"]
            if tp > 1:
                settings.append("parallel.sequence_parallel=true")
            run = machine.train(f"tp{tp}-of-8-batch{batch}", *settings)
            near = machine.simulate(*settings)
            curves[batch].append(batch / near["step_s"] / 8)
            rows.append([batch, f"{tp} x {8 // tp}", run.sent("tp") / MIB, run.sent("pp") / MIB,
                         run.peak("activations") / MIB,
                         percent(near["parts_s"]["exposed_tp"] / near["step_s"]),
                         percent(near["parts_s"]["bubble"] / near["step_s"]), curves[batch][-1]])
    section.table(["batch", "tp x pp", "sent over tp, MiB (measured)",
                   "sent over pp, MiB (measured)", "activations, MiB (measured)",
                   f"tp, % (simulated, {MACHINE})",
                   "bubble, % (simulated, the same)", "sequences/s a rank (simulated, the same)"],
                  rows)
    far_table(section, machine.figure(section.file), "tp of 64", "TFLOP/s a GPU", "162.2B, A100")
    section.lines("Eight ranks with a core each (simulated)", "tensor ranks",
                  "sequences/s a rank",
                  [(f"batch {batch}", [1, 2, 4, 8], ys) for batch, ys in curves.items()])
    return section


def far_table(section, figure, x, y, where):
    """The published scale: a column a curve and kind."""
    heads, columns = [x], [figure["curves"][0]["x"]]
    for curve in figure["curves"]:
        for key, kind in (("predicted", f"simulated, {where}"), ("published", "published")):
            if any(value is not None for value in curve[key]):
                heads.append(f"{curve['name']}: {y} ({kind})")
                columns.append(curve[key])
    section.table(heads, [[f"{row[0]:,.0f}", *row[1:]] for row in zip(*columns)])
