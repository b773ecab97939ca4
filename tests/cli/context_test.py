# SPDX-License-Identifier: Apache-2.0
"""Context parallelism from the command line: training, validation, sampling, resuming, refusals."""
import unittest

from support import (MPIRUN, TEXT, CommandTest, column, ids_of, main, read_metrics,
                     write_megatron)

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

    # What a layer keeps of its tokens falls as 1 / cp, exactly; attention's scores are never kept.
    def test_long_sequences_fit(self):
        write_megatron(self.folder / "long", [ids_of((TEXT * 24)[:70000])])

        def peak(cp, tokens):
            name = f"long_{cp}_{tokens}"
            self.run_command(
                "train", "tiny.toml", f"run.folder=runs/{name}", f"training.seq_len={tokens}",
                f"model.max_position_embeddings={tokens}", f"parallel.cp={cp}", "training.steps=1",
                'data.train=[{path="long.idx",weight=1.0}]', "data.validation=[]",
                "training.micro_batch=1", "training.global_batch=1", "model.num_key_value_heads=1",
                "model.num_attention_heads=2", "metrics.sample_tokens=1")
            return column(self.folder / f"runs/{name}", "peak_bytes")[0]

        kept = peak(4, 65536)
        self.assertLess(kept["total"], 88 << 20)
        bytes_of = {4096 // cp: peak(cp, 4096)["activations"] for cp in (2, 4, 8)}
        a_token, rest = divmod(bytes_of[1024] - bytes_of[512], 512)
        self.assertEqual(rest, 0)
        self.assertEqual(bytes_of[2048], bytes_of[1024] + 1024 * a_token)
        self.assertEqual(kept["activations"], bytes_of[1024] + (16384 - 1024) * a_token)
        self.assertLess(bytes_of[512] - 512 * a_token, 256)  # what is a rank's, not a token's

    def test_refusals_name_what_fits(self):
        refused = self.run_command("train", "tiny.toml", "parallel.cp=7",
                                   "parallel.cp_style=ulysses", code=2)
        self.assertIn("degrees that fit", refused.stderr)
        refused = self.run_command("train", "tiny.toml", "parallel.cp=2", "parallel.cp_heads=2",
                                   code=2)
        self.assertIn("cp_style", refused.stderr)


if __name__ == "__main__":
    main()
