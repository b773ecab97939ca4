# SPDX-License-Identifier: Apache-2.0
"""The command and the benchmarks' programs, as the sweeps use them: runs that are measured, and
what the simulator says of the same configuration."""
import json
import shutil
import statistics
import subprocess

CONFIG = """\
[run]
name = "{name}"
threads = 1

[model]
model_type = "llama"
hidden_size = 128
num_hidden_layers = 8
num_attention_heads = 8
num_key_value_heads = 8
intermediate_size = 344
vocab_size = 512
max_position_embeddings = 16384
tie_word_embeddings = false

[data]
train = [{{ path = "text.txt", weight = 1.0 }}]
tokenizer = "bytes"

[training]
steps = 5
seq_len = 128
micro_batch = 1
global_batch = 8
"""
# No loss is read here.
TEXT = "Where tokens go, gradients come back; what one rank keeps, another need not. " * 4000


class Run:
    """Medians of a run's steps behind the first."""

    def __init__(self, folder):
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        self.folder, self.last, self.steps = folder, lines[-1], lines[1:]

    def median(self, key):
        return statistics.median(line[key] for line in self.steps)

    @property
    def step_ms(self):
        return self.median("step_ms")

    @property
    def waiting(self):
        """Share of a step for which the rank that waits longest is blocked on others."""
        waits = [line["exposed_comm_ms"] + line["bubble_ms"] for line in self.steps]
        return statistics.median(waits) / self.step_ms

    @property
    def tokens_per_s(self):
        return self.last["trained_tokens"] / self.step_ms * 1e3

    @property
    def flops(self):
        return self.last["flops"]

    def sent(self, *axes):
        """Bytes that the busiest rank sends in a step; without `axes` over all but control."""
        return sum(operation["bytes"] for axis, operations in self.last["comm"].items()
                   if (axis in axes if axes else axis != "control")
                   for operation in operations.values())

    def peak(self, category):
        return self.last["peak_bytes"][category]


class Machine:
    """This machine: `build` holds the programs, `out` takes what they write."""

    def __init__(self, build, out, quick):
        self.build, self.out, self.quick = build, out, quick
        self.runs = []  # folders, since the last take_runs()
        shutil.rmtree(out / "runs", ignore_errors=True)  # else earlier ones would be kept beside
        out.mkdir(parents=True, exist_ok=True)
        (out / "text.txt").write_text(TEXT)
        self.cluster = out / "this-machine.toml"
        self.call("calibrate", "--out", self.cluster, "--budget", 0.05 if quick else 0.3)
        self.lecture = self.at_published_scale()

    def run(self, *words):
        words = [str(word) for word in words]
        done = subprocess.run(words, capture_output=True, text=True, cwd=self.out)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(words)}\n{done.stderr}")
        return done.stdout

    def call(self, *words):
        return self.run(self.build / "quatrain", *words)

    def config(self, name):
        path = self.out / f"{name}.toml"
        path.write_text(CONFIG.format(name=name))
        return path

    def train(self, name, *settings):
        """A run of a few steps, each rank a thread; settings: section.key=value."""
        folder = self.out / "runs" / name
        self.call("train", self.config(name), f"run.folder={folder}", *settings)
        self.runs.append(folder)
        return Run(folder)

    def simulate(self, *settings):
        """The same configuration where each rank has a core of this machine to itself."""
        answer = self.call("simulate", self.config("simulated"), "--cluster", self.cluster,
                           "--json", *settings)
        return json.loads(answer)

    def clock(self, schedule, ranks, microbatches, times, unit_ms):
        """(simulated, measured) of a schedule on ranks that wait instead of computing."""
        answer = json.loads(self.call(
            "schedule", "run", schedule, "--ranks", ranks, "--microbatches", microbatches,
            "--times", times, "--unit-ms", unit_ms, "--runs", 1 if self.quick else 3, "--json"))
        return answer["simulated"], answer["measured"]

    def at_published_scale(self):
        """What the planner says of published runs: {"figures": [...], "weak_scaling": [...]}."""
        answer = self.out / "published.json"
        self.run(self.build / "bench/quatrain_bench_planner", "--lecture", self.out / "published",
                 "--json", answer)
        return json.loads(answer.read_text())

    def figures(self, begin):
        return [one for one in self.lecture["figures"] if one["file"].startswith(begin)]

    def figure(self, name):
        return self.figures(name)[0]

    def draw(self, charts):
        path = self.out / "charts.json"
        path.write_text(json.dumps(charts))
        self.run(self.build / "bench/quatrain_bench_draw", path, self.out)

    def report(self, name):
        """One page of the runs since the last; None where nothing ran."""
        runs, self.runs = self.runs, []
        if not runs:
            return None
        page = self.out / f"{name}.html"
        self.call("report", *runs, "--out", page)
        return page


def shares(document):
    """Share of a simulated step that is neither computing nor the optimizer's."""
    parts = document["parts_s"]
    return 1 - (parts["compute"] + parts["optimizer"] + parts["other"]) / document["step_s"]
