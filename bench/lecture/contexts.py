# SPDX-License-Identifier: Apache-2.0
"""Context parallelism's styles by the length of sequences."""
from page import MIB, Section, percent
from tensors import MACHINE, far_table

STYLES = ("ring", "all_gather", "ulysses")
MODEL = ["model.num_hidden_layers=4", "model.num_key_value_heads=2", "training.global_batch=1"]


def by_length(machine):
    section = Section(
        "context_by_length", "Ring, gathered and exchanged heads by length",
        "Four blocks of 128, eight heads over two key and value heads, one sequence over two ranks"
        " with a core each. Attention grows with the square of the length and what is sent with the"
        " length, so that waiting fades; the ring holds two blocks of keys and values where"
        " gathering holds all.")
    lengths = (256, 512, 1024, 2048, 4096, 8192)[:4 if machine.quick else 6]
    rows, rates = [], {style: [] for style in STYLES}
    for length in lengths:
        shape = [*MODEL, f"training.seq_len={length}"]
        alone = machine.train(f"cp1-{length}", *shape)
        for style in STYLES:
            settings = [*shape, "parallel.cp=2", f"parallel.cp_style={style}"]
            run, near = machine.train(f"{style}-{length}", *settings), machine.simulate(*settings)
            rates[style].append(run.tokens_per_s / alone.tokens_per_s)
            rows.append([length, style, run.sent("cp") / MIB, percent(run.waiting),
                         run.peak("activations") / MIB, alone.peak("activations") / MIB,
                         run.step_ms, 1e3 * near["step_s"], rates[style][-1]])
    section.table(["tokens", "style", "sent over cp, MiB (measured)", "waiting, % (measured)",
                   "activations, MiB (measured)", "of one rank (measured)", "step, ms (measured)",
                   f"step, ms (simulated, {MACHINE})",
                   "tokens/s against one rank of one thread (measured)"], rows)
    for figure in machine.figures("context"):
        section.note(f"{figure['title']}:")
        far_table(section, figure, "tokens", figure["y_label"], "H100")
    section.lines("Two ranks against one (measured)", "tokens of a sequence", "times as fast",
                  [(style, list(lengths), values) for style, values in rates.items()])
    return section
