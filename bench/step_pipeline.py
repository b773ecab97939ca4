# SPDX-License-Identifier: Apache-2.0
"""The pipelines of step.py: `bench/step.py BUILD_FOLDER --ranks 2 --pp 2 [--schedules ...]`.

Two ranks of one compute thread each hold the two halves of a model and train on the same
micro-batches, cut into stages in the same way on both sides:

    gpipe, 1f1b, interleaved-1f1b, interleaved-zb1p, zb-v    PyTorch's schedule of that name
    gain                                                     zb-v of ours with 1f1b of ours

The last three have two chunks a rank. "m x b": micro-batches, sequences of each. "waits" is the
share of a step in which a rank of ours stood still for messages: bubbles, late peers and bytes. The
gain is printed beside two that the clock foretells: with the time that each action took here in the
median, and with equal stages, where F, B, W and a message take `--times`.
"""
import json
import pathlib
import statistics
import subprocess

from step_ranks import HERE, PYTHON, Side, measured_rows, quiet

# Schedules' chunks a rank.
CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved-1f1b": 2, "interleaved-zb1p": 2, "zb-v": 2}
# Blocks a stage, by chunks. The heads weigh as much as 1.6, 3 and 5.4 blocks and are the last stage
# alone where there are four, so that ranks have about equal work whichever holds stages 0 and 3.
LAYERS = {"gpt2-6x384": {1: "4,2", 2: "2,2,2,0"}, "llama-8x512": {1: "5,3", 2: "3,3,2,0"},
          "gpt2-124m": {1: "9,3", 2: "4,4,4,0"}}


def add_arguments(group):
    group.add_argument("--pp", type=int, default=1, help="1, or all ranks")
    group.add_argument("--schedules", nargs="+", default=[*CHUNKS, "gain"],
                       choices=[*CHUNKS, "gain"])
    group.add_argument("--microbatches", type=int, default=8)
    group.add_argument("--times", default="1,1,1,0",
                       help="F,B,W,message of the simulated gain, in any unit")


class PipelineSide(Side):
    """Command lines for one model. Micro-batches are a quarter of the model's batch."""

    def __init__(self, build, model, args):
        super().__init__(build, model, args)
        self.model, self.microbatches = model, args.microbatches
        self.batch = args.batch or max(1, self.batch // 4)
        self.key = {"microbatches": self.microbatches, "batch": self.batch}

    def cut(self, schedule):
        return ["--schedule", schedule, "--microbatches", self.microbatches,
                "--layers-per-stage", LAYERS[self.model][CHUNKS[schedule]]]

    def ours_under(self, backend, schedule):
        return self.ours(backend, self.batch, "--pp", self.ranks, "--chunks", CHUNKS[schedule],
                         *self.cut(schedule))

    def pair(self, backend, against):
        if against == "gain":
            return [self.ours_under(backend, schedule) for schedule in ("zb-v", "1f1b")]
        return self.ours_under(backend, against), [
            PYTHON, HERE / "step_torch_pipeline.py", *self.common, "--ranks", self.ranks,
            "--batch", self.batch, *self.cut(against)]


def simulated_makespan(args, schedule, microbatches):
    show = [f"{args.build}/quatrain", "schedule", "show", schedule, "--ranks", str(args.pp),
            "--microbatches", str(microbatches), "--chunks", str(CHUNKS[schedule]),
            "--times", args.times, "--json"]
    done = subprocess.run(show, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["makespan"]


HEADER = (f"{'model':<13}{'schedule':<17}{'backend':<8}{'m x b':>6}{'tok/s':>7}{'theirs':>8}"
          f"{'ratio':>7}{'(min - max)':>14}{'pairs':>6}{'MB':>7}{'theirs':>8}{'waits':>7}")


def line(row):
    r = row["summary"]
    work = f"{row['microbatches']} x {row['batch']}"
    return (f"{row['model']:<13}{row['against']:<17}{row['backend']:<8}{work:>6}"
            f"{r['ours_tokens_per_s']:>7.0f}{r['theirs_tokens_per_s']:>8.0f}{r['ratio']:>7.2f}"
            f"{r['ratio_min']:>8.2f} -{r['ratio_max']:>4.2f}{r['pairs']:>3}/{len(row['rounds']):<2}"
            f"{r['ours_peak_bytes'] / 1e6:>7.0f}{r['theirs_peak_bytes'] / 1e6:>8.0f}"
            f"{100 * r['exposed_share']:>6.1f}%")


def gains(args, row):
    """Of zb-v over 1f1b: measured, by the clock with the run's own times, and with equal stages."""
    clocks = [r["theirs"]["clock_s"] / r["ours"]["clock_s"] for r in quiet(row["rounds"])]
    before, after = (simulated_makespan(args, schedule, row["microbatches"])
                     for schedule in ("1f1b", "zb-v"))
    return [ratio - 1 for ratio in
            (row["summary"]["ratio"], statistics.median(clocks), before / after)]


def gain_line(args, row):
    measured, own, even = gains(args, row)
    return (f"{row['model']}, {row['backend']}, m = {row['microbatches']}: zb-v gains "
            f"{100 * measured:.1f} % over 1f1b; by the clock {100 * own:.1f} % with its own times "
            f"({measured / own:.2f} of it), {100 * even:.1f} % with equal stages "
            f"({measured / even:.2f})")


def main(args):
    out = pathlib.Path(args.build) / "bench" / "step_pipeline.json"
    rows = measured_rows(args, PipelineSide, args.schedules, out)
    print(HEADER)
    for row in rows.values():
        print(line(row))
    for row in rows.values():
        if row["against"] == "gain":
            print(gain_line(args, row))
    print(f"written: {out}")
