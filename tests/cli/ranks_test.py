# SPDX-License-Identifier: Apache-2.0
"""quatrain train on many ranks: threads of one process and processes under mpirun."""
import os
import subprocess
import unittest

from support import COMMAND, MPIRUN, CommandTest, column, main, read_metrics, snapshot

BATCH = ["training.global_batch=8", "training.micro_batch=1"]
KEYS = ("loss_hex", "grad_norm_hex", "tokens", "trained_tokens")


def geometry(ranks, zero):
    return [f"parallel.dp_shard={ranks}", f"parallel.zero={zero}", *BATCH]


class Ranks(CommandTest):
    def train(self, name, *overrides, processes=0, **options):
        launcher = [*MPIRUN, "-n", processes] if processes else []
        self.run_command("train", "tiny.toml", f"run.folder=runs/{name}", *overrides,
                         launcher=launcher, **options)
        return self.folder / f"runs/{name}"

    def expect_same_run(self, one, other):
        for key in KEYS:
            self.assertEqual(column(one, key), column(other, key), key)
        self.assertEqual(snapshot(one / "weights"), snapshot(other / "weights"))

    def test_threads_equal_one_rank(self):
        one = column(self.train("one", *BATCH), "loss")
        for ranks, zero in ((2, 0), (2, 3), (4, 1), (4, 2)):
            with self.subTest(ranks=ranks, zero=zero):
                many = self.train(f"{ranks}-{zero}", *geometry(ranks, zero))
                worst = max(abs(a - b) / b for a, b in zip(column(many, "loss"), one))
                self.assertLess(worst, 1e-5)

    def test_tensor_parallel_ranks_equal_one_rank(self):
        one = self.train("one-tp", *BATCH)
        for name, *overrides in (("tp2", "parallel.tp=2"),
                                 ("tp4sp", "parallel.tp=4", "parallel.sequence_parallel=true"),
                                 ("tp2dp2", "parallel.tp=2", "parallel.dp_shard=2",
                                  "parallel.zero=3", "debug.check_replicas=2")):
            with self.subTest(name):
                many = self.train(name, *BATCH, *overrides)
                worst = max(abs(a - b) / b
                            for a, b in zip(column(many, "loss"), column(one, "loss")))
                self.assertLess(worst, 1e-5)
                self.assertEqual({path.name for path in (many / "weights").iterdir()},
                                 {path.name for path in (one / "weights").iterdir()})
                self.run_command("generate", "--from", f"runs/{name}", "--prompt", "Sing",
                                 "--tokens", "4")

    def test_pipelines_equal_one_rank(self):
        deep = [*BATCH, "model.num_hidden_layers=4"]
        one = self.train("one-pp", *deep)
        for name, *overrides in (
                ("pp2", "parallel.pp=2", "parallel.schedule=zb-h1", "metrics.trace_steps=2"),
                ("pp2v", "parallel.pp=2", "parallel.chunks=2", "parallel.schedule=zb-v",
                 "parallel.dp_shard=2", "parallel.zero=3", "debug.check_replicas=2"),
                ("pp4post", "parallel.pp=4", "parallel.post_validation=true",
                 "optimizer.max_norm=0.5")):
            with self.subTest(name):
                many = self.train(name, *deep, *overrides)
                if name != "pp4post":
                    worst = max(abs(a - b) / b
                                for a, b in zip(column(many, "loss"), column(one, "loss")))
                    self.assertLess(worst, 1e-5)
                self.run_command("generate", "--from", f"runs/{name}", "--prompt", "Sing",
                                 "--tokens", "4", "--pp", "2", "--tp", "2")
        plain = self.train("pp4plain", *deep, "parallel.pp=4", "optimizer.max_norm=0.5")
        self.expect_same_run(plain, self.folder / "runs/pp4post")
        traced = (self.folder / "runs/pp2/trace.json").read_text()
        self.assertIn("simulated rank 1", traced)
        self.assertIn("ms of rank", (self.folder / "runs/pp2/log.txt").read_text())

    def test_a_schedule_of_ones_own(self):
        shown = self.run_command("schedule", "show", "gpipe", "--ranks", "2", "--microbatches",
                                 "4", "--format", "csv").stdout
        (self.folder / "my.csv").write_text(shown)
        run = [*BATCH, "training.global_batch=4", "parallel.pp=2"]
        self.expect_same_run(self.train("own", *run, "parallel.schedule=file:my.csv"),
                             self.train("gpipe", *run, "parallel.schedule=gpipe"))
        (self.folder / "bad.csv").write_text(shown.replace("0F0,", ""))
        self.refuse("train", "tiny.toml", *run, "parallel.schedule=file:bad.csv", code=2,
                    says=["0F0"])

    @unittest.skipUnless(MPIRUN, "no MPI")
    def test_processes_have_the_bits_of_threads(self):
        for replicas, ranks, zero in ((1, 2, 0), (1, 2, 3), (1, 4, 0), (1, 4, 3), (2, 4, 2)):
            with self.subTest(replicas=replicas, ranks=ranks, zero=zero):
                run = [*geometry(ranks // replicas, zero), f"parallel.dp_replicate={replicas}",
                       "training.steps=3", "metrics.sample_tokens=1"]
                name = f"{replicas}-{ranks}-{zero}"
                self.expect_same_run(self.train(f"threads{name}", *run),
                                     self.train(f"mpi{name}", *run, processes=ranks))
        run = [*geometry(2, 1), "parallel.tp=2", "parallel.sequence_parallel=true",
               "training.steps=3"]
        self.expect_same_run(self.train("threads-tp", *run),
                             self.train("mpi-tp", *run, processes=4))

    @unittest.skipUnless(MPIRUN, "no MPI")
    def test_fifty_steps_on_eight_ranks(self):
        run = [*geometry(8, 3), "training.steps=50", "metrics.sample_tokens=1"]
        threads = self.train("threads8", *run)
        self.assertEqual(len(column(threads, "loss")), 50)
        self.expect_same_run(threads, self.train("mpi8", *run, processes=8))

    @unittest.skipUnless(MPIRUN, "no MPI")
    def test_one_process_over_mpi(self):
        self.expect_same_run(self.train("self", *BATCH),
                             self.train("mpi1", "--backend", "mpi", *BATCH, processes=1))

    @unittest.skipUnless(MPIRUN, "no MPI")
    def test_case_139_two_jobs_at_once(self):
        run = [*MPIRUN, "-n", "2", COMMAND, "train", "tiny.toml", *geometry(2, 3)]
        jobs = [subprocess.Popen([*run, f"run.folder=runs/job{job}"], cwd=self.folder,
                                 stdout=subprocess.DEVNULL) for job in (0, 1)]
        self.assertEqual([job.wait(timeout=60) for job in jobs], [0, 0])
        self.expect_same_run(self.folder / "runs/job0", self.folder / "runs/job1")


class Predicted(CommandTest):
    SHAPES = {
        "tp": ["parallel.tp=2"],
        "sp": ["parallel.tp=4", "parallel.sequence_parallel=true"],
        "again": ["parallel.tp=2", "parallel.sequence_parallel=true", "parallel.gather_again=true"],
        "chunks": ["parallel.tp=2", "parallel.overlap_chunks=3", "training.recompute=full"],
        "zero": ["parallel.tp=2", "parallel.sequence_parallel=true", "training.recompute=selective",
                 "parallel.dp_shard=2", "parallel.zero=3"],
        "hybrid": ["parallel.tp=2", "parallel.dp_shard=2", "parallel.dp_replicate=2",
                   "parallel.zero=2"],
    }

    def test_a_dry_run_says_what_ranks_send_and_keep(self):
        for name, shape in self.SHAPES.items():
            with self.subTest(name):
                run = ["train", "tiny.toml", *BATCH, *shape, "training.steps=2"]
                predicted = self.run_json(*run, "--dry-run")
                self.run_command(*run, f"run.folder=runs/{name}")
                for line in read_metrics(self.folder / f"runs/{name}"):
                    sent = {group: {operation: count["bytes"] for operation, count in calls.items()}
                            for group, calls in line["comm"].items() if group != "control"}
                    self.assertEqual(sent, predicted["comm_bytes_per_step"])
                    for category in ("params", "optimizer"):
                        self.assertEqual(line["peak_bytes"][category],
                                         predicted["bytes_per_rank"][category], category)


class Launch(CommandTest):
    def test_ranks_option_fills_the_open_degree(self):
        done = self.run_command("train", "tiny.toml", "--ranks", 4, *geometry(-1, 1))
        self.assertIn("on 4 ranks (thread)", done.stdout)
        self.refuse("train", "tiny.toml", *geometry(-1, 1), code=2, says=["--ranks N"])
        self.refuse("train", "tiny.toml", "--ranks", 3, *geometry(4, 1), code=2,
                    says=["= 4 ranks, but there are 3", "dp_shard = 3 fits"])

    def test_one_process_has_no_ranks(self):
        self.refuse("train", "tiny.toml", "--backend", "self", *geometry(2, 0), code=2,
                    says=["comm.backend", "thread"])

    @unittest.skipUnless(MPIRUN, "no MPI")
    def test_the_launcher_fills_the_open_degree(self):
        done = self.run_command("train", "tiny.toml", *geometry(-1, 1),
                                launcher=[*MPIRUN, "-n", 2])
        self.assertIn("on 2 ranks (mpi)", done.stdout)
        self.assertEqual(done.stdout.count("step 1/6"), 1)  # one rank speaks

    @unittest.skipUnless(MPIRUN, "no MPI")
    def test_other_number_of_processes(self):
        self.refuse("train", "tiny.toml", *geometry(4, 1), code=2, launcher=[*MPIRUN, "-n", 2],
                    says=["dp_shard 4", "= 4 ranks, but there are 2; dp_shard = 2 fits"])

    def test_bad_data_is_said_once(self):
        (self.folder / "broken.idx").write_text("garbage")
        for launcher in [(), [*MPIRUN, "-n", 2]] if MPIRUN else [()]:
            done = self.refuse("train", "tiny.toml", "data.train=['broken.idx']", *geometry(2, 1),
                               code=65, launcher=launcher, says=["bad data: broken.idx"])
            self.assertEqual(done.stderr.count("bad data"), 1, done.stderr)

    def test_torchrun_on_cpus(self):
        torchrun = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
        self.refuse("train", "tiny.toml", *geometry(2, 1), code=2, env=os.environ | torchrun,
                    says=["RANK = 1", "WORLD_SIZE = 2", "mpirun -n 2 quatrain train"])

    # A launcher that MPI knows nothing of: every process would believe to be rank 0.
    def test_case_140_all_rank_0(self):
        for variables in ({"PMI_RANK": "0", "PMI_SIZE": "4"},
                          {"SLURM_JOB_ID": "7", "SLURM_PROCID": "3", "SLURM_NTASKS": "4",
                           "SLURM_LOCALID": "3"}):
            self.refuse("train", "tiny.toml", *geometry(4, 1), code=2, env=os.environ | variables,
                        says=["4 processes, all rank 0" if MPIRUN else "MPI"])

    def test_case_139_launchers_that_disagree(self):
        variables = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "RANK": "0",
                     "WORLD_SIZE": "2"}
        self.refuse("train", "tiny.toml", *geometry(2, 1), code=2, env=os.environ | variables,
                    says=["OMPI_COMM_WORLD_RANK = 1", "RANK = 0", "disagree"])


if __name__ == "__main__":
    main()
