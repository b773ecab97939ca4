# SPDX-License-Identifier: Apache-2.0
"""Experts: whole on their ranks (ep), or cut over ranks (etp)."""
from page import MIB, Section
from tensors import far_table

MODEL = ["model.model_type=mixtral", "model.num_hidden_layers=4", "model.num_local_experts=8",
         "model.num_experts_per_tok=2"]


def by_width(machine):
    section = Section(
        "experts_by_width", "Expert against tensor parallelism for experts",
        "Mixtral's blocks at 4 x 128 with eight experts, two a token, on eight ranks that share"
        " them: ep x etp = 8. Attention is cut alike (tp = etp), or whole beside cut experts"
        " (folding). Whole experts send their tokens' rows once; cut ones send rows to all ranks of"
        " a cut, and multiply thinner matrices.")
    rows, sent = [], {"attention cut alike": [], "attention whole": []}
    for name, values in sent.items():
        for etp in (1, 2, 4, 8):
            tp = etp if name == "attention cut alike" else 1
            run = machine.train(f"etp{etp}-tp{tp}", *settings_of(tp, etp))
            values.append(run.sent("tp", "ep") / MIB)
            rows.append([name, f"{8 // etp} x {etp}", tp, run.sent("ep") / MIB,
                         run.sent("tp") / MIB, run.sent("dp", "edp") / MIB,
                         run.peak("activations") / MIB, run.tokens_per_s])
    section.table(["attention", "ep x etp", "tp", "sent over ep, MiB (measured)",
                   "sent over tp, MiB (measured)", "sent over data ranks, MiB (measured)",
                   "activations, MiB (measured)", "tokens/s of both cores (measured)"], rows)
    far_table(section, machine.figure(section.file), "etp", "TFLOP/s a GPU",
              "Mixtral 8x7B, 64 H100")
    section.lines("Tokens' rows that a rank sends a step (measured)",
                  "ranks that share an expert (etp)", "MiB over ep and tp",
                  [(name, [1, 2, 4, 8], values) for name, values in sent.items()])
    return section


def settings_of(tp, etp):
    settings = MODEL + [f"parallel.dp_shard={8 // tp}", f"parallel.tp={tp}",
                             f"parallel.ep={8 // etp}", f"parallel.etp={etp}", "parallel.zero=1"]
    return settings + (["parallel.sequence_parallel=true"] if tp > 1 else [])
