# SPDX-License-Identifier: Apache-2.0
"""Ranks that fail: the job ends soon, says who and where, and leaves nothing behind."""
import os
import re
import subprocess
import time
import unittest
from pathlib import Path

from support import COMMAND, MPIRUN, CommandTest, main

CALL = 37  # of the data ranks' collectives: an all_gather of the third or fourth step
AT_ONCE = 1.0  # seconds, on a busy machine
MPIRUN_ENDS = 3.0  # it gives the survivors a second, and takes one itself


class Failures(CommandTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # Where MPI keeps a job's sockets and shared memory: of its own, to be found empty.
        cls.scratch = cls.folder / "mpi"
        cls.scratch.mkdir()
        cls.environment = os.environ | {"TMPDIR": str(cls.scratch),
                                        "OMPI_MCA_btl_vader_backing_directory": str(cls.scratch)}

    def break_job(self, ranks, fault, *overrides, launcher=(), within=AT_ONCE):
        """Trains until the fault; returns the exit code, our lines on stderr, and all of it."""
        done = self.start("train", "tiny.toml", f"parallel.dp_shard={ranks}", "parallel.zero=3",
                          "training.micro_batch=1", "training.global_batch=8",
                          f"debug.fault=group=dp,sequence={CALL},{fault}", *overrides,
                          launcher=launcher, env=self.environment)
        last_step = (self.folder / "runs/tiny/metrics.jsonl").stat().st_mtime
        self.assertLess(time.time() - last_step, within, done.stderr)
        self.expect_nothing_left()
        # mpirun says who wrote a line: "[1,2]<stderr>:".
        lines = [re.sub(r"^\[\d+,\d+\]<stderr>:", "", line) for line in done.stderr.splitlines()]
        ours = [line for line in lines if line.startswith("quatrain: ")]
        return done.returncode, ours, done.stderr

    def leftovers(self):
        """Processes of the job, and its files outside the run's folder."""
        left = [str(path) for path in self.scratch.rglob("*") if not path.is_dir()]
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if (process / "cwd").readlink() == self.folder:
                    left.append((process / "cmdline").read_text())
            except OSError:  # it has ended
                pass
        return left

    def expect_nothing_left(self):
        for _ in range(40):
            left = self.leftovers()
            if not left:
                return
            time.sleep(0.05)
        self.fail(left)


class Threads(Failures):
    def test_case_142_the_first_error_comes_first(self):
        code, lines, _ = self.break_job(8, "rank=5,action=throw")
        self.assertEqual(code, 70)  # of 70 and 69 the worst
        self.assertEqual(len(lines), 2, lines)
        self.assertIn(f"rank 5: internal error, please report it: fault: rank 5 throws at "
                      f"thread all_gather #{CALL} on dp {{0, 1, 2, 3, 4, 5, 6, 7}}", lines[0])
        self.assertIn("ranks 0, 1, 2, 3, 4, 6, 7 ended because rank 5 failed", lines[1])

    def test_case_080_a_rank_that_sleeps(self):
        code, lines, _ = self.break_job(4, "rank=3,action=sleep", "comm.timeout_s=1",
                                       within=1.0 + 2.0)
        self.assertEqual(code, 69)
        self.assertRegex(lines[0], rf"rank [012]: communication: thread all_gather #{CALL} on dp "
                         r"\{0, 1, 2, 3\}: no answer in 1 s from ranks \{3\}")
        self.assertRegex(lines[0], rf"; rank 3 .*last finished thread \w+ #\d+ on dp")
        self.assertIn("rank 3 did not come back", lines[-1])

    def test_case_079_another_shape_or_operation(self):
        for action, says in (("shape", "rank 2 calls all_gather Float[rows] rows"),
                             ("other", "rank 2 calls barrier")):
            with self.subTest(action):
                code, lines, _ = self.break_job(4, f"rank=2,action={action}")
                self.assertEqual(code, 69)
                self.assertEqual(len(lines), 2, lines)
                self.assertIn(says, lines[0])
                self.assertIn(f"#{CALL} on dp {{0, 1, 2, 3}}", lines[0])

    def test_fault_that_is_not_understood(self):
        for fault, says in (("rank=1", "rank=1"), ("action=explode", "action=explode"),
                            ("rank=x,action=throw", "rank=x"), ("who=1,action=die", "who=1"),
                            ("rank=2,action=die", "there are 2 ranks")):
            self.refuse("train", "tiny.toml", "parallel.dp_shard=2", f"debug.fault={fault}", code=2,
                        says=["debug.fault", says])


@unittest.skipUnless(MPIRUN, "no MPI")
class Processes(Failures):
    def break_job(self, *arguments, **options):
        return super().break_job(4, *arguments, launcher=[*MPIRUN, "-n", 4], **options)

    def test_a_killed_rank(self):
        code, lines, err = self.break_job("rank=2,action=die", within=MPIRUN_ENDS)
        self.assertEqual(code, 137)
        self.assertIn("exited on signal 9", err)
        self.assertEqual(len(lines), 3, lines)
        for survivor in (0, 1, 3):
            said = [line for line in lines if f"rank {survivor}: " in line]
            self.assertEqual(len(said), 1, lines)
            self.assertRegex(said[0], r"mpi \w+ #\d+ on dp \{0, 1, 2, 3\}: interrupted, waits for ")

    def test_case_142_the_first_error_comes_first(self):
        code, lines, _ = self.break_job("rank=2,action=throw", within=MPIRUN_ENDS)
        self.assertEqual(code, 70)
        self.assertIn(f"rank 2: internal error, please report it: fault: rank 2 throws at "
                      f"mpi all_gather #{CALL} on dp {{0, 1, 2, 3}}", lines[0])
        self.assertEqual(sorted(re.findall(r"^quatrain: rank (\d)", "\n".join(lines), re.M)),
                         ["0", "1", "2", "3"])  # one line each

    def test_case_080_a_rank_that_sleeps(self):
        code, lines, _ = self.break_job("rank=3,action=sleep", "comm.timeout_s=1",
                                       within=1.0 + 2.0)
        self.assertEqual(code, 69)
        self.assertRegex(lines[0], rf"rank [012]: communication: mpi all_gather #{CALL} on dp "
                         r"\{0, 1, 2, 3\}: no answer in 1 s from ranks \{3\}")

    def test_case_079_another_shape_or_operation(self):
        for action, says in (("shape", rf"rank 2 calls all_gather #{CALL} Float"),
                             ("other", rf"rank 2 calls barrier #{CALL}, rank")):
            with self.subTest(action):
                code, lines, _ = self.break_job(f"rank=2,action={action}", "comm.checked=true",
                                           within=MPIRUN_ENDS)
                self.assertEqual(code, 69)
                self.assertTrue(any(says in line for line in lines), lines)

    def test_killed_from_outside(self):
        run = subprocess.Popen([*MPIRUN, "-n", "2", COMMAND, "train", "tiny.toml",
                                "parallel.dp_shard=2", "training.steps=1000000",
                                "run.folder=runs/killed"],
                               cwd=self.folder, env=self.environment, text=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        metrics = self.folder / "runs/killed/metrics.jsonl"
        for _ in range(600):
            if metrics.exists() and metrics.stat().st_size:
                break
            time.sleep(0.05)
        run.terminate()
        _, err = run.communicate(timeout=15)
        self.assertNotEqual(run.returncode, 0)
        self.assertNotIn("Segmentation", err)
        self.expect_nothing_left()


if __name__ == "__main__":
    main()
