# SPDX-License-Identifier: Apache-2.0
"""SIGINT and SIGTERM: the step ends, everything is flushed, weights are written, exit code 0."""
import signal
import subprocess
import time

from support import COMMAND, CommandTest, column, main, read_metrics


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
        out, err = run.communicate(timeout=30)
        self.assertEqual(run.returncode, 0, err)
        return out

    def test_ends_after_the_step(self):
        for number, name in ((signal.SIGINT, "int"), (signal.SIGTERM, "term")):
            with self.subTest(name):
                out = self.stop(name, number)
                folder = self.folder / f"runs/{name}"
                self.assertTrue((folder / "metrics.jsonl").read_text().endswith("}\n"))
                lines = read_metrics(folder)  # every line is whole
                last = lines[-1]["step"]
                self.assertEqual([line["step"] for line in lines], list(range(1, last + 1)))
                self.assertLess(last, 1000000)
                self.assertIn("validation_loss", lines[-1])
                self.assertIn(f"step {last}/1000000", out)
                self.assertIn(f"after step {last}", out)
                self.assertIn(f"after step {last}", (folder / "log.txt").read_text())
                # What was written is the state after that step.
                report = self.run_json("eval", "tiny.toml", f"run.folder=runs/{name}")
                self.assertEqual(report["loss"], lines[-1]["validation_loss"])

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
                report = self.run_json("eval", "tiny.toml", f"run.folder=runs/{name}")
                self.assertAlmostEqual(report["loss"], last["validation_loss"], places=5)

    def test_second_interrupt_ends_at_once(self):
        run = self.begin("twice")
        self.wait_for_steps(run, "twice", 1)
        while run.poll() is None:
            run.send_signal(signal.SIGINT)
        run.communicate()
        self.assertIn(run.returncode, (0, -signal.SIGINT))
        read_metrics(self.folder / "runs/twice")  # lines are whole all the same


if __name__ == "__main__":
    main()
