# SPDX-License-Identifier: Apache-2.0
"""SIGINT, SIGTERM, SIGUSR1 and files that ask: the step ends, its state is saved, exit code 75."""
import os
import signal
import subprocess
import time
import unittest

from support import COMMAND, MPIRUN, CommandTest, column, main, read_metrics


class Stop(CommandTest):
    def begin(self, name, *overrides):
        return subprocess.Popen(
            [COMMAND, "train", "tiny.toml", f"run.folder=runs/{name}", "training.steps=1000000",
             "lr_schedule.type=constant", *overrides],
            cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wait_for_steps(self, run, name, steps):
        path = self.folder / f"runs/{name}/metrics.jsonl"
        for _ in range(600):
            if run.poll() is not None:
                self.fail(f"ended early: {run.communicate()}")
            if path.exists() and path.read_bytes().count(b"\n") >= steps:
                return
            time.sleep(0.05)
        run.kill()
        self.fail("no steps in 30 s")

    def stop(self, name, number, *overrides):
        run = self.begin(name, *overrides)
        self.wait_for_steps(run, name, 3)
        run.send_signal(number)
        out, err = run.communicate(timeout=60)
        self.assertEqual(run.returncode, 75, err)
        return out

    def test_ends_after_the_step(self):
        for number, name in ((signal.SIGINT, "int"), (signal.SIGTERM, "term"),
                             (signal.SIGUSR1, "usr1")):
            with self.subTest(name):
                out = self.stop(name, number)
                folder = self.folder / f"runs/{name}"
                self.assertTrue((folder / "metrics.jsonl").read_text().endswith("}\n"))
                lines = read_metrics(folder)  # every line is whole
                last = lines[-1]["step"]
                self.assertEqual([line["step"] for line in lines], list(range(1, last + 1)))
                self.assertLess(last, 1000000)
                self.assertIn(f"step {last}/1000000", out)
                self.assertIn(f"after step {last}", out)
                self.assertIn(f"after step {last}", (folder / "log.txt").read_text())
                saved = [path.name for path in (folder / "checkpoints").iterdir()]
                self.assertEqual(saved, [f"step-{last:08}"])

    def test_steps_are_those_of_a_run_that_was_not_stopped(self):
        self.stop("stopped", signal.SIGTERM)
        stopped = column(self.folder / "runs/stopped", "loss_hex")
        self.run_command("train", "tiny.toml", "run.folder=runs/whole", "lr_schedule.type=constant",
                         f"training.steps={len(stopped)}")
        self.assertEqual(stopped, column(self.folder / "runs/whole", "loss_hex"))

    def test_ranks_end_after_the_same_step(self):
        ranks = ["parallel.dp_shard=4", "parallel.zero=3", "training.micro_batch=1"]
        for number, name in ((signal.SIGINT, "ranks-int"), (signal.SIGTERM, "ranks-term")):
            with self.subTest(name):
                out = self.stop(name, number, *ranks)
                last = read_metrics(self.folder / f"runs/{name}")[-1]
                self.assertIn(f"stopped by signal {number.value} after step {last['step']}", out)
                self.assertTrue((self.folder / f"runs/{name}/checkpoints/step-{last['step']:08}"
                                 / "manifest.json").exists())

    def test_second_interrupt_ends_at_once(self):
        run = self.begin("twice")
        self.wait_for_steps(run, "twice", 1)
        while run.poll() is None:
            run.send_signal(signal.SIGINT)
        run.communicate()
        self.assertIn(run.returncode, (75, -signal.SIGINT))
        read_metrics(self.folder / "runs/twice")  # lines are whole all the same

    def test_again_and_during_a_save(self):
        # Whatever moment a signal meets, and however many come, the state is saved once.
        for number in (signal.SIGTERM, signal.SIGUSR1):
            with self.subTest(number.name):
                run = self.begin(f"again-{number}", "checkpoint.interval=1")
                self.wait_for_steps(run, f"again-{number}", 2)
                for _ in range(20):
                    run.send_signal(number)
                    time.sleep(0.001)
                _, err = run.communicate(timeout=60)
                self.assertEqual(run.returncode, 75, err)
                folder = self.folder / f"runs/again-{number}"
                last = read_metrics(folder)[-1]["step"]
                self.assertTrue((folder / f"checkpoints/step-{last:08}/manifest.json").exists())

    def test_files_ask(self):
        run = self.begin("files")
        folder = self.folder / "runs/files"
        self.wait_for_steps(run, "files", 2)
        (folder / "save-now").touch()
        for _ in range(600):
            if any((folder / "checkpoints").glob("*/manifest.json")):
                break
            time.sleep(0.05)
        self.assertFalse((folder / "save-now").exists())
        self.assertIsNone(run.poll())
        (folder / "stop-now").touch()
        out, err = run.communicate(timeout=60)
        self.assertEqual(run.returncode, 75, err)
        self.assertIn("stopped as asked", out)
        self.assertFalse((folder / "stop-now").exists())


@unittest.skipUnless(MPIRUN, "no mpirun")
class StopProcesses(Stop):
    """Under mpirun, which passes SIGUSR1 on, and SIGTERM as the beginning of the end."""

    def begin(self, name, *overrides):
        return subprocess.Popen(
            [*MPIRUN, "-n", "2", COMMAND, "train", "tiny.toml", f"run.folder=runs/{name}-mpi",
             "training.steps=1000000", "lr_schedule.type=constant", "parallel.dp_shard=2",
             "metrics.log_every=100000", *overrides],
            cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"OMPI_MCA_odls_base_sigkill_timeout": "5"})

    def setUp(self):
        if self._testMethodName != "test_processes":
            self.skipTest("of threads")

    def test_processes(self):
        for number in (signal.SIGUSR1, signal.SIGTERM):
            with self.subTest(number.name):
                run = self.begin(f"p{number}")
                self.wait_for_steps(run, f"p{number}-mpi", 3)
                run.send_signal(number)
                _, err = run.communicate(timeout=60)
                folder = self.folder / f"runs/p{number}-mpi"
                last = read_metrics(folder)[-1]["step"]
                saved = folder / f"checkpoints/step-{last:08}/manifest.json"
                self.assertTrue(saved.exists(), err)
                if number == signal.SIGUSR1:  # mpirun has its own code for its own SIGTERM
                    self.assertEqual(run.returncode, 75, err)


if __name__ == "__main__":
    main()
