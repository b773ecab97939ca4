# SPDX-License-Identifier: Apache-2.0
"""Calls of the file system that fail while checkpoints are written or read, in the real process.

Each is made to fail by a preloaded library; QUATRAIN_EVERY_FAULT=1 takes every one of them.
"""
import errno
import os
import re
import shutil

from support import CommandTest, column, main

SHIM = os.environ.get("QUATRAIN_FAULT_SHIM", "build/tests/cli/libquatrain_fault_shim.so")
EVERY = os.environ.get("QUATRAIN_EVERY_FAULT") == "1"
BAD_DATA, STORAGE = 65, 74
RANKS = ["parallel.dp_shard=2", "parallel.zero=3", "training.micro_batch=1"]
ERRORS = {"write": errno.ENOSPC, "fsync": errno.EIO, "rename": errno.EIO, "open": errno.EMFILE}
SAID = {errno.ENOSPC: "No space left on device", errno.EIO: "Input/output error",
        errno.EMFILE: "Too many open files"}
MOST_CALLS = 200  # of one kind, more than any run here makes


class Faults(CommandTest):
    """A run of six steps, of which the first two are done; a checkpoint every other step."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for name, geometry in (("one", []), ("two", RANKS)):
            for steps in (2, 6):
                done = cls.train_on(f"{name}-{steps}", steps, *geometry)
                assert done.returncode == 0, done.stderr

    @classmethod
    def train_on(cls, run, steps, *keys, faults=None):
        environment = dict(os.environ)
        if faults:
            environment |= {"LD_PRELOAD": SHIM, "FAULT_UNDER": "checkpoints/step-", **faults}
        return cls.start("train", "tiny.toml", f"run.folder=runs/{run}", f"training.steps={steps}",
                         "lr_schedule.decay_steps=5", "metrics.sample_prompt=",
                         "checkpoint.interval=2", "checkpoint.keep=0",
                         "checkpoint.resume=if_present", *keys, env=environment)

    def run_with(self, name, keys, call, error, at):
        """What the faulty run said, in runs/faulty; none when it did not make so many calls."""
        shutil.rmtree(self.folder / "runs/faulty", ignore_errors=True)
        shutil.copytree(self.folder / f"runs/{name}-2", self.folder / "runs/faulty")
        faults = {"FAULT_CALL": call, "FAULT_ERROR": str(error), "FAULT_AT": str(at)}
        done = self.train_on("faulty", 6, *keys, faults=faults)
        for crash in ("terminate called", "internal error", "core dumped", "what():"):
            self.assertNotIn(crash, done.stderr, done.stderr)
        return done if "fault: " in done.stderr else None

    def steps(self):
        checkpoints = (self.folder / "runs/faulty/checkpoints").glob("step-*")
        return sorted(int(path.name[5:]) for path in checkpoints
                      if (path / "manifest.json").exists())

    def assert_ends_well(self, name, keys, done):
        """Without faults it goes on from the last checkpoint that was acknowledged, or later."""
        said = re.findall(r"checkpoint of step (\d+) ", done.stdout)
        best = max([2, *map(int, said)])
        again = self.train_on("faulty", 6, *keys)
        self.assertEqual(again.returncode, 0, again.stderr)
        resumed = int(re.search(r"resumed   step (\d+),", again.stdout)[1])
        self.assertGreaterEqual(resumed, best)
        got, want = (self.folder / "runs" / run for run in ("faulty", f"{name}-6"))
        self.assertEqual(column(got, "loss_hex"), column(want, "loss_hex"))
        weights = "weights/model.safetensors"
        self.assertEqual((got / weights).read_bytes(), (want / weights).read_bytes())

    def check_failure(self, done, said, reason):
        if done.returncode == BAD_DATA:  # the one checkpoint there was could not be read
            self.assertIn("no checkpoint in runs/faulty/checkpoints is whole", said)
            self.assertEqual(self.steps(), [2])
        else:
            self.assertIn(done.returncode, (0, STORAGE), said)
            # What is not there at the end was the exit code's business.
            self.assertEqual(done.returncode == 0, 6 in self.steps(), said)
            self.assertIn(2, self.steps())
        if self.steps() != [2, 4, 6]:
            self.assertIn(reason, said)

    def check_one(self, name, keys, call, error, at):
        """False when the run makes fewer calls than that."""
        done = self.run_with(name, keys, call, error, at)
        if done is None:
            return False
        with self.subTest(name, keys=keys, call=call, error=error, at=at):
            said = done.stdout + done.stderr
            if error in (0, errno.EINTR):
                self.assertEqual(done.returncode, 0, said)
                self.assertNotIn("error", done.stderr)
                self.assertEqual(self.steps(), [2, 4, 6], said)
            else:
                self.check_failure(done, said, SAID[error])
            self.assert_ends_well(name, keys, done)
        return True

    def check_all(self, name, keys, call, error, first, stride):
        """Every call of one kind in turn, or one in `stride`."""
        for at in range(1 if EVERY else first, MOST_CALLS, 1 if EVERY else stride):
            if not self.check_one(name, keys, call, error, at):
                return
        self.fail(f"more than {MOST_CALLS} calls of {call}")

    def test_training_goes_on(self):
        for call, error in ERRORS.items():
            self.check_all("one", [], call, error, 2, 9)

    def test_training_goes_on_with_saves_in_the_step(self):
        for call, error in ERRORS.items():
            self.check_all("one", ["checkpoint.async=false"], call, error, 4, 13)

    def test_ranks_go_on_together(self):
        for call, error in ERRORS.items():
            self.check_all("two", RANKS, call, error, 3, 15)

    def test_interrupted_and_short_calls_are_made_again(self):
        for call in ERRORS:
            if call != "rename":
                self.check_all("one", [], call, errno.EINTR, 1, 14)
        self.check_all("one", [], "write", 0, 2, 5)

    def test_a_full_disk(self):
        for name, keys in (("one", []), ("two", RANKS)):
            for policy, last in (("continue", 6), ("stop", 4)):
                with self.subTest(name, policy=policy):
                    # Saves in the step: one in the background may fail when the run is at its end.
                    more = [*keys, f"checkpoint.on_error={policy}", "checkpoint.async=false"]
                    done = self.run_with(name, more, "write", errno.ENOSPC, "1-")
                    self.assertEqual(done.returncode, STORAGE, done.stderr)
                    self.assertIn("No space left on device", done.stderr)
                    self.assertIn("checkpoints/step-", done.stderr)
                    self.assertEqual(self.steps(), [2])
                    self.assertEqual(column(self.folder / "runs/faulty", "step")[-1], last)
                    self.assert_ends_well(name, keys, done)


if __name__ == "__main__":
    main()
