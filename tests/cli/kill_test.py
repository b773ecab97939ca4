# SPDX-License-Identifier: Apache-2.0
"""SIGKILL at random moments: what was acknowledged is there, and the run ends with the same bits.

QUATRAIN_KILLS says how many, QUATRAIN_SEED which moments.
"""
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from support import COMMAND, MPIRUN, CommandTest, column, main

KILLS = int(os.environ.get("QUATRAIN_KILLS", "15"))
SEED = int(os.environ.get("QUATRAIN_SEED", "1"))
KILLS_A_RUN = 4  # and then it is let go to its end
SMALL = ["model.hidden_size=16", "model.intermediate_size=32", "metrics.log_every=1000",
         "metrics.sample_prompt=", "checkpoint.interval=2", "checkpoint.resume=if_present"]
ACKNOWLEDGED = re.compile(r"checkpoint of step (\d+) ")
RESUMED = re.compile(r"resumed   step (\d+),")


@dataclass
class Variant:
    name: str
    like: str  # the run that is left alone and must have the same bits
    keys: list
    launcher: list = field(default_factory=list)
    victims: str = "process"  # or one rank of the launcher's, or all of them


ALONE = ["training.steps=200"]
RANKS = ["training.steps=60", "parallel.dp_shard=2", "parallel.zero=3", "training.micro_batch=1"]
OF_TWO = [*MPIRUN, "-n", "2"]
WHOLE = [Variant("one", "", ALONE), Variant("threads", "", RANKS)]
VARIANTS = [
    Variant("one", "one", ALONE),
    Variant("threads", "threads", RANKS),
    Variant("one-sync", "one", [*ALONE, "checkpoint.async=false"]),
]
if MPIRUN:
    WHOLE.append(Variant("mpi", "", RANKS, OF_TWO))
    VARIANTS.insert(1, Variant("mpi-one", "mpi", RANKS, OF_TWO, "one"))
    VARIANTS.append(Variant("mpi-all", "mpi", RANKS, OF_TWO, "all"))


def children(pid):
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(child) for child in text.split()]
    except FileNotFoundError:
        return []


def steps_in(pattern, text):
    return [int(step) for step in pattern.findall(text)]


def acknowledged(text):
    return max(steps_in(ACKNOWLEDGED, text), default=0)


class Kill(CommandTest):
    def arguments(self, variant, run):
        return [*variant.launcher, COMMAND, "train", "tiny.toml", f"run.folder=runs/{run}", *SMALL,
                *variant.keys]

    def kill(self, process, variant):
        ranks = children(process.pid)
        if variant.victims == "process" or not ranks:
            return process.kill()
        for pid in ranks if variant.victims == "all" else [self.random.choice(ranks)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def run_for(self, variant, run, seconds=None):
        """Runs it, to its end or a SIGKILL after so many seconds; its code and what it said."""
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(self.arguments(variant, run), cwd=self.folder, stdout=said,
                                       stderr=subprocess.STDOUT)
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.kill(process, variant)
                process.wait(60)
            said.seek(0)
            return process.returncode, said.read()

    def partial_saves(self, run):
        folders = (self.folder / "runs" / run / "checkpoints").glob("step-*")
        return sum(not (folder / "manifest.json").exists() for folder in folders)

    def assert_killed(self, variant, code, said):
        # Open MPI's launcher itself crashes now and then (in PMIx_server_finalize) once its ranks
        # are gone: then what it said of them counts.
        if variant.launcher and code == -signal.SIGSEGV and "exited on signal 9" in said:
            return
        self.assertIn(code, (-signal.SIGKILL, 128 + signal.SIGKILL), said)

    def kill_and_resume(self, variant, run):
        """One run to its end, killed on the way."""
        best = 0  # the last step that was acknowledged
        for kills in range(KILLS_A_RUN + 1):
            moment = (self.random.uniform(0.1, self.seconds[variant.like])
                      if kills < KILLS_A_RUN else None)
            code, said = self.run_for(variant, run, moment)
            for step in steps_in(RESUMED, said):
                self.assertGreaterEqual(step, best, said)
                self.count["resumed"] += 1
            if best > 0 and "no checkpoint is there" in said:
                self.fail(f"step {best} was acknowledged and nothing is there\n{said}")
            log = self.folder / "runs" / run / "log.txt"
            logged = log.read_text() if log.exists() else ""
            best = max(best, acknowledged(said), acknowledged(logged))
            if code == 0:
                return
            self.assertIsNotNone(moment, f"exit code {code}\n{said}")
            self.assert_killed(variant, code, said)
            self.count["kills"] += 1
            self.count["within a save"] += self.partial_saves(run)

    def assert_same_run(self, run, whole):
        got, want = (self.folder / "runs" / name for name in (run, whole))
        for key in ("step", "loss_hex"):
            self.assertEqual(column(got, key), column(want, key))
        weights = "weights/model.safetensors"
        self.assertEqual((got / weights).read_bytes(), (want / weights).read_bytes())

    def test_restarts_end_with_the_bits_of_the_run_that_was_left_alone(self):
        self.random = random.Random(SEED)
        self.count = Counter()
        self.seconds = {}
        for variant in WHOLE:
            begin = time.monotonic()
            code, said = self.run_for(variant, f"whole-{variant.name}")
            self.assertEqual(code, 0, said)
            self.seconds[variant.name] = time.monotonic() - begin
        runs = 0
        while self.count["kills"] < KILLS:
            variant = VARIANTS[runs % len(VARIANTS)]
            run = f"killed-{runs}"
            with self.subTest(variant.name, run=run):
                self.kill_and_resume(variant, run)
                self.assert_same_run(run, f"whole-{variant.like}")
            for folder in (self.folder / "runs").glob(f"{run}*"):
                shutil.rmtree(folder)
            runs += 1
        print(f"{runs} runs, " + ", ".join(f"{n} {what}" for what, n in self.count.items()))


if __name__ == "__main__":
    main()
