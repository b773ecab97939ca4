# SPDX-License-Identifier: Apache-2.0
"""What recomputation costs and buys, and how ZeRO-3 and three axes spend a fixed batch."""
from page import MIB, Section, percent
from tensors import MACHINE, far_table

STAGES = 8


def recompute(machine):
    section = Section(
        "recompute_against_batch", "Recomputation against batch",
        "Eight stages of one block, micro-batches of one sequence: a larger batch fills the"
        " pipeline, and up to eight micro-batches are kept at once. Recomputation is slower at"
        " every batch and fits where keeping all does not. Activations are measured on the fullest"
        " rank; the limit stands for a memory that four micro-batches fill.")
    batches = (1, 2, 4, 8, 16, 32)[:4 if machine.quick else 6]
    kinds = ("none", "selective", "full")
    runs = {kind: [point(machine, kind, batch) for batch in batches] for kind in kinds}
    limit = runs["none"][2][0]
    rows = [[batch, *[value for kind in kinds for value in runs[kind][i]]]
            for i, batch in enumerate(batches)]
    section.table(["batch"] + [
        f"{kind}: {what}" for kind in kinds for what in
        ("activations, MiB (measured)", "tokens/s of both cores (measured)",
         f"sequences/s (simulated, {MACHINE})")], rows)
    section.note(f"Limit of the chart: {limit:.3g} MiB of activations.")
    far_table(section, machine.figure(section.file), "batch", "sequences/s", "145B, 128 A100")
    section.lines("Rate (simulated) where activations fit (measured)",
                  "batch, sequences", "sequences/s",
                  [(f"recompute {kind}", list(batches),
                    [rate if kept <= limit * 1.0001 else None for kept, _, rate in runs[kind]])
                   for kind in kinds])
    return section


def point(machine, kind, batch):
    settings = [f"parallel.pp={STAGES}", f"training.global_batch={batch}",
                f"training.recompute={kind}"]
    run = machine.train(f"recompute-{kind}-batch{batch}", *settings)
    return (run.peak("activations") / MIB, run.tokens_per_s,
            batch / machine.simulate(*settings)["step_s"])


THREE_AXES = {2: dict(tp=2), 4: dict(tp=2, pp=2), 8: dict(tp=2, pp=2, dp_shard=2, zero=1)}


def zero3_against_3d(machine):
    section = Section(
        "zero3_against_3d", "ZeRO-3 against three axes at a fixed batch",
        "Eight sequences a step, whatever the ranks. ZeRO-3 sends its parameters three times"
        " however few tokens a rank has, so its bytes for each FLOP grow with the ranks; three axes"
        " send less as each rank has less. At published scale the planner has the order and the"
        " fall of both and misses ZeRO-3's level (docs/planner_accuracy.md says why).")
    rows, intensity = [], {"ZeRO-3": [], "three axes": []}
    for ranks, axes in THREE_AXES.items():
        for name, degrees, micro_batch in (
                ("ZeRO-3", dict(dp_shard=ranks, zero=3), 8 // ranks), ("three axes", axes, 1)):
            settings = [f"parallel.{key}={value}" for key, value in degrees.items()]
            settings.append(f"training.micro_batch={micro_batch}")
            if "tp" in degrees:
                settings.append("parallel.sequence_parallel=true")
            run = machine.train(f"{name.replace(' ', '-')}-{ranks}", *settings)
            near = machine.simulate(*settings)
            intensity[name].append(1e6 * run.sent() / run.flops)
            rows.append([ranks, name, " ".join(f"{k} {v}" for k, v in degrees.items()),
                         run.sent() / MIB, intensity[name][-1],
                         percent(run.waiting) if ranks == 2 else None, run.tokens_per_s,
                         percent(1 - near["parts_s"]["compute"] / near["step_s"])])
    section.table(["ranks", "how", "degrees", "sent, MiB a rank (measured)",
                   "bytes a MFLOP (measured)", "waiting, % (measured)",
                   "tokens/s of both cores (measured)", f"not computing, % (simulated, {MACHINE})"],
                  rows)
    far_table(section, machine.figure(section.file), "GPUs", "TFLOP/s a GPU", "A100")
    section.lines("Eight sequences over more ranks (measured)", "ranks", "bytes sent for a MFLOP",
                  [(name, list(THREE_AXES), ys) for name, ys in intensity.items()])
    return section
