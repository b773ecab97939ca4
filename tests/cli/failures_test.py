# SPDX-License-Identifier: Apache-2.0
"""Ranks that fail: the job ends soon, says who and where, and leaves nothing behind."""
import re
import subprocess
import time
import unittest
from pathlib import Path

from support import COMMAND, MPIRUN, CommandTest, main

CALL = 37  # of the data ranks' collectives: an all_gather of the third or fourth step
STARTS = 4.0  # seconds that a busy machine may need to start and end a job


def leftovers():
    """Shared memory and session folders of MPI jobs, and processes of this command."""
    found = {str(path) for pattern in ("vader_segment*", "osc_*", "sem.*")
             for path in Path("/dev/shm").glob(pattern)}
    found |= {str(path) for path in Path("/tmp").glob("ompi.*/*")}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes()
            dead = "\nState:\tZ" in (process / "status").read_text()
        except OSError:  # it has ended meanwhile
            continue
        if COMMAND.encode() in line.split(b"\0") and not dead:
            found.add(str(process))
    return found


class Failures(CommandTest):
    def break_job(self, ranks, fault, *overrides, launcher=(), within=0.0):
        """Trains until the fault, and returns the exit code and our lines on stderr."""
        before = leftovers()
        begin = time.monotonic()
        done = self.start("train", "tiny.toml", f"parallel.dp_shard={ranks}", "parallel.zero=3",
                          "training.micro_batch=1", "training.global_batch=8",
                          f"debug.fault=group=dp,sequence={CALL},{fault}", *overrides,
                          launcher=launcher)
        self.assertLess(time.monotonic() - begin, within + STARTS, done.stderr)
        self.expect_nothing_new(before)
        # mpirun says who wrote a line: "[1,2]<stderr>:".
        lines = [re.sub(r"^\[\d+,\d+\]<stderr>:", "", line) for line in done.stderr.splitlines()]
        return done.returncode, [line for line in lines if line.startswith("quatrain: ")], done

    def expect_nothing_new(self, before):
        for _ in range(40):
            left = leftovers() - before
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
        code, lines, _ = self.break_job(4, "rank=3,action=sleep", "comm.timeout_s=1", within=3.0)
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
        code, lines, done = self.break_job("rank=2,action=die", within=1.0)
        self.assertEqual(code, 137)
        self.assertIn("exited on signal 9", done.stderr)
        self.assertEqual(len(lines), 3, lines)
        for survivor in (0, 1, 3):
            said = [line for line in lines if f"rank {survivor}: " in line]
            self.assertEqual(len(said), 1, lines)
            self.assertRegex(said[0], r"mpi \w+ #\d+ on dp \{0, 1, 2, 3\}: interrupted, waits for ")

    def test_case_142_the_first_error_comes_first(self):
        code, lines, _ = self.break_job("rank=2,action=throw", within=1.0)
        self.assertEqual(code, 70)
        self.assertIn(f"rank 2: internal error, please report it: fault: rank 2 throws at "
                      f"mpi all_gather #{CALL} on dp {{0, 1, 2, 3}}", lines[0])
        self.assertEqual(sorted(re.findall(r"^quatrain: rank (\d)", "\n".join(lines), re.M)),
                         ["0", "1", "2", "3"])  # one line each

    def test_case_080_a_rank_that_sleeps(self):
        code, lines, _ = self.break_job("rank=3,action=sleep", "comm.timeout_s=1", within=3.0)
        self.assertEqual(code, 69)
        self.assertRegex(lines[0], rf"rank [012]: communication: mpi all_gather #{CALL} on dp "
                         r"\{0, 1, 2, 3\}: no answer in 1 s from ranks \{3\}")

    def test_case_079_another_shape_or_operation(self):
        for action, says in (("shape", rf"rank 2 calls all_gather #{CALL} Float"),
                             ("other", rf"rank 2 calls barrier #{CALL}, rank")):
            with self.subTest(action):
                code, lines, _ = self.break_job(f"rank=2,action={action}", "comm.checked=true",
                                           within=1.0)
                self.assertEqual(code, 69)
                self.assertTrue(any(says in line for line in lines), lines)

    def test_killed_from_outside(self):
        before = leftovers()
        run = subprocess.Popen([*MPIRUN, "-n", "2", COMMAND, "train", "tiny.toml",
                                "parallel.dp_shard=2", "training.steps=1000000"],
                               cwd=self.folder, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
        metrics = self.folder / "runs/tiny/metrics.jsonl"
        for _ in range(400):
            if metrics.exists() and metrics.stat().st_size:
                break
            time.sleep(0.05)
        run.terminate()
        _, err = run.communicate(timeout=15)
        self.assertNotEqual(run.returncode, 0)
        self.assertNotIn("Segmentation", err)
        self.expect_nothing_new(before)


if __name__ == "__main__":
    main()
