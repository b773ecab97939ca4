# SPDX-License-Identifier: Apache-2.0
"""Context parallelism from the command line: training, validation, sampling, resuming, refusals."""
import unittest

from support import MPIRUN, CommandTest, column, main, read_metrics

LLAMA = ["training.dtype=float64", "training.global_batch=4", "training.micro_batch=1"]
CUTS = (
    ("ring", "parallel.cp=2"),
    ("odd", "parallel.cp=3", "parallel.cp_balance=contiguous", "debug.check_replicas=2"),
    ("gathered", "parallel.cp=2", "parallel.cp_style=all_gather", "parallel.zero=3",
     "parallel.dp_shard=2"),
    ("ulysses", "parallel.cp=2", "parallel.cp_style=ulysses", "training.recompute=full"),
    ("hybrid", "parallel.cp=4", "parallel.cp_style=hybrid", "parallel.cp_heads=2"),
    ("stages", "parallel.cp=2", "parallel.pp=2", "parallel.schedule=zb-h1", "parallel.tp=2",
     "parallel.sequence_parallel=true"),
)
# cp 2 and nothing else, uneven where it can be.
ALONE = tuple((f"{style}_alone", "parallel.cp=2", f"parallel.cp_style={style}",
               "training.seq_len=31") for style in ("ring", "all_gather", "ulysses"))


class Context(CommandTest):
    def train(self, name, *overrides, **options):
        return self.run_command("train", "tiny.toml", f"run.folder=runs/{name}", *LLAMA, *overrides,
                                **options)

    def losses(self, name, what="loss"):
        return column(self.folder / f"runs/{name}", what)

    def test_every_style_equals_one_rank(self):
        self.train("one")
        for name, *overrides in CUTS:
            with self.subTest(name):
                self.train(name, *overrides)
                ours, one = self.losses(name), self.losses("one")
                self.assertEqual(len(ours), len(one))
                self.assertLess(max(abs(a - b) / b for a, b in zip(ours, one)), 1e-9)

    def test_the_books_hold(self):
        for name, *overrides in CUTS:
            with self.subTest(name):
                self.run_command("train", "tiny.toml", "--dry-run", *LLAMA, *overrides)

    def test_simulation_counts_what_runs_count(self):
        for name, *overrides in (*CUTS, *ALONE):
            with self.subTest(name):
                self.train(f"counted_{name}", "training.steps=2", "metrics.log_every=1", *overrides)
                simulated = self.run_json("simulate", "tiny.toml", "--cluster", "this-machine",
                                          *LLAMA, *overrides)["comm_bytes"]
                self.assertGreater(sum(simulated["cp"].values()), 0)
                for line in read_metrics(self.folder / f"runs/counted_{name}"):
                    sent = {group: {operation: cost["bytes"] for operation, cost in of.items()
                                    if operation != "recv"}
                            for group, of in line["comm"].items() if group != "control"}
                    self.assertEqual(sent, simulated)

    def test_runs_go_on_under_another_cut(self):
        self.train("whole", "lr_schedule.decay_steps=6")
        self.train("first", "training.steps=3", "checkpoint.interval=3",
                   "lr_schedule.decay_steps=6", "parallel.cp=2", "parallel.zero=3")
        for name, *overrides in (
                ("alone",),
                ("three", "parallel.cp=3", "parallel.cp_style=all_gather"),
                ("data", "parallel.dp_shard=2", "parallel.zero=1")):
            with self.subTest(name):
                self.train(name, "checkpoint.resume=runs/first/checkpoints",
                           "lr_schedule.decay_steps=6", *overrides)
                for ours, whole in zip(self.losses(name)[-3:], self.losses("whole")[-3:]):
                    self.assertAlmostEqual(ours, whole, delta=1e-9 * whole)

    @unittest.skipUnless(MPIRUN, "a build without MPI")
    def test_processes_equal_threads(self):
        for name, *overrides in (CUTS[0], CUTS[2], CUTS[3]):
            with self.subTest(name):
                ranks = 4 if name == "gathered" else 2
                self.train(f"threads_{name}", *overrides)
                self.train(f"mpi_{name}", *overrides, launcher=[*MPIRUN, "-n", ranks])
                self.assertEqual(self.losses(f"mpi_{name}"), self.losses(f"threads_{name}"))

    def test_refusals_name_what_fits(self):
        refused = self.run_command("train", "tiny.toml", "parallel.cp=7",
                                   "parallel.cp_style=ulysses", code=2)
        self.assertIn("degrees that fit", refused.stderr)
        refused = self.run_command("train", "tiny.toml", "parallel.cp=2", "parallel.cp_heads=2",
                                   code=2)
        self.assertIn("cp_style", refused.stderr)


if __name__ == "__main__":
    main()
