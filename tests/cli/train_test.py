# SPDX-License-Identifier: Apache-2.0
"""quatrain train: the run folder, the lines it prints, repeatability, dry runs."""
import json
import os
import pty
import re
import subprocess

from support import COMMAND, CONFIG, CommandTest, column, main, read_metrics, snapshot

# The keys of a line of metrics.jsonl: those of the reference, then ours.
REFERENCE = ["step", "tokens", "loss", "loss_hex", "grad_norm", "grad_norm_hex", "lr", "step_ms",
             "tokens_per_s", "peak_bytes", "comm", "exposed_comm_ms", "bubble_ms"]
ADDED = ["trained_tokens", "max_logit", "max_attention_lse", "skipped", "flops"]
CATEGORIES = ["params", "grads", "optimizer", "activations", "buffers", "transient"]
CONSOLE = re.compile(
    r"step (\d+)/6  loss \d+\.\d{4}  grad_norm \d+\.\d{4}  lr \d\.\de[-+]\d\d  [\d,]+ tok/s  "
    r"(mfu \d+\.\d %  )?peak \d+(\.\d+)? ([KMG]i)?B  eta \d+:\d\d:\d\d")


class RunFolder(CommandTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.first = cls.start("train", "tiny.toml")
        assert cls.first.returncode == 0, cls.first.stderr

    def test_files(self):
        files = snapshot(self.folder / "runs/tiny")
        self.assertEqual(set(files), {"config.toml", "plan.json", "metrics.jsonl", "log.txt",
                                      "checkpoints/step-00000006/manifest.json",
                                      "checkpoints/step-00000006/rank-00000.safetensors",
                                      "weights/config.json", "weights/model.safetensors",
                                      "weights/generation_config.json",
                                      "weights/tokenizer.json"})
        plan = json.loads(files["plan.json"])
        self.assertEqual(plan["seq_len"], 32)
        self.assertEqual(json.loads(files["weights/config.json"])["model_type"], "llama")
        self.assertFalse([name for name in files if "tmp" in name])

    def test_metrics_keys(self):
        lines = read_metrics(self.folder / "runs/tiny")
        self.assertEqual([line["step"] for line in lines], [1, 2, 3, 4, 5, 6])
        for line in lines:
            extra = ["validation_loss"] if line["step"] == 6 else []
            self.assertEqual(set(line) - {"mfu"}, set(REFERENCE + ADDED + extra))
            self.assertEqual(line["tokens"], line["step"] * 4 * 32)
            self.assertEqual(line["loss"], float.fromhex(line["loss_hex"]))
            self.assertEqual(line["grad_norm"], float.fromhex(line["grad_norm_hex"]))
            self.assertEqual(set(line["peak_bytes"]), {"total", *CATEGORIES})
            self.assertEqual(line["peak_bytes"]["total"],
                             sum(line["peak_bytes"][c] for c in CATEGORIES))
            self.assertEqual(set(line["comm"]), {"control"})
        self.assertLess(lines[-1]["loss"], lines[0]["loss"])
        self.assertEqual(lines[0]["lr"], 1e-2)  # warm-up over

    def test_console_lines(self):
        out = self.first.stdout
        steps = [line for line in out.splitlines() if line.startswith("step ")]
        self.assertEqual([CONSOLE.fullmatch(line).group(1) for line in steps], ["1", "2", "4", "6"])
        self.assertIn("validation loss ", out)
        self.assertRegex(out, r"--- sample\nSing")
        self.assertNotIn("\r", out)  # no progress off a terminal
        self.assertNotIn("\x1b", out)
        self.assertEqual(self.first.stderr, "")

    def test_case_101_layout_and_bytes_at_start(self):
        start = self.first.stdout.split("step 1/6")[0]
        self.assertRegex(start, r"plan +[0-9a-f]{16} ")
        self.assertRegex(start, r"layout +pp1 .*tp1")
        self.assertRegex(start, r"a rank +params .* grads .* optimizer")

    def test_log_holds_what_the_console_said(self):
        log = (self.folder / "runs/tiny/log.txt").read_text()
        for line in self.first.stdout.splitlines():
            self.assertIn(line, log)

    def test_resolved_config_gives_the_same_run(self):
        run = self.folder / "runs/tiny"
        self.run_command("train", "runs/tiny/config.toml", "run.folder=runs/again")
        again = self.folder / "runs/again"
        for key in ("loss_hex", "grad_norm_hex", "lr", "tokens"):
            self.assertEqual(column(run, key), column(again, key))
        self.assertEqual(snapshot(run / "weights"), snapshot(again / "weights"))
        texts = [(f / "config.toml").read_text() for f in (run, again)]
        self.assertEqual(texts[0].replace("runs/tiny", "runs/again"), texts[1])
        self.assertEqual((run / "plan.json").read_text(), (again / "plan.json").read_text())

    def test_same_config_twice(self):
        for name in ("one", "two"):
            self.run_command("train", "tiny.toml", f"run.folder=runs/{name}")
        one, two = (self.folder / f"runs/{name}" for name in ("one", "two"))
        self.assertEqual(column(one, "loss_hex"), column(two, "loss_hex"))
        self.assertEqual(snapshot(one / "weights"), snapshot(two / "weights"))
        # The comparison can fail: another seed is another run.
        self.run_command("train", "tiny.toml", "run.folder=runs/other", "run.seed=8")
        self.assertNotEqual(column(one, "loss_hex"), column(self.folder / "runs/other", "loss_hex"))

    def test_threads_differ_by_rounding_only(self):
        losses = {}
        larger = ["model.hidden_size=128", "model.intermediate_size=512", "training.micro_batch=4"]
        for threads in (1, 2, 4):
            self.run_command("train", "tiny.toml", f"run.threads={threads}", *larger,
                             f"run.folder=runs/threads{threads}")
            losses[threads] = column(self.folder / f"runs/threads{threads}", "loss")
        for threads in (2, 4):
            worst = max(abs(a - b) / abs(a) for a, b in zip(losses[1], losses[threads]))
            self.assertLess(worst, 1e-6, f"{threads} threads against 1")  # seen: 3.4e-8

    def test_second_run_keeps_the_first(self):
        self.run_command("train", "tiny.toml", "run.folder=runs/kept", "training.steps=2")
        before = snapshot(self.folder / "runs/kept")
        done = self.run_command("train", "tiny.toml", "run.folder=runs/kept", "training.steps=1")
        self.assertEqual(snapshot(self.folder / "runs/kept.1"), before)
        self.assertEqual(len(read_metrics(self.folder / "runs/kept")), 1)
        self.assertIn("runs/kept.1", done.stderr)
        self.run_command("train", "tiny.toml", "run.folder=runs/kept", "training.steps=1")
        self.assertEqual(snapshot(self.folder / "runs/kept.1"), before)
        self.assertEqual(len(read_metrics(self.folder / "runs/kept.2")), 1)

    def test_json_is_one_document(self):
        done = self.run_command("train", "tiny.toml", "run.folder=runs/json", "--json")
        document = json.loads(done.stdout)
        self.assertEqual(document["step"], 6)
        self.assertEqual(document["loss_hex"], column(self.folder / "runs/json", "loss_hex")[-1])
        self.assertEqual(document["validation_loss"],
                         read_metrics(self.folder / "runs/json")[-1]["validation_loss"])
        self.assertIn("step 1/6", done.stderr)

    def test_progress_on_a_terminal(self):
        master, slave = pty.openpty()
        run = subprocess.Popen([COMMAND, "train", "tiny.toml", "run.folder=runs/terminal"],
                               cwd=self.folder, stdout=slave, stderr=subprocess.DEVNULL)
        os.close(slave)
        out = b""
        while True:
            try:
                part = os.read(master, 4096)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            out += part
        os.close(master)
        self.assertEqual(run.wait(60), 0)
        self.assertIn(b"step 3/6", out)  # not a multiple of log_every: progress
        self.assertRegex(out, rb"\r +\r")


class DryRun(CommandTest):
    def dry(self, *overrides):
        return self.run_json("train", "tiny.toml", "--dry-run", *overrides)

    def test_writes_nothing_and_prints_the_keys(self):
        before = snapshot(self.folder)
        document = self.dry()
        self.assertEqual(set(document), {"world", "plan", "hash", "bytes_per_rank",
                                         "comm_bytes_per_step", "flops_per_step"})
        self.assertEqual(set(document["bytes_per_rank"]),
                         {"params", "grads", "optimizer", "activations", "buffers"})
        self.assertEqual(document["world"], 1)
        out = self.run_command("train", "tiny.toml", "--dry-run").stdout
        self.assertIn(document["hash"], out)
        self.assertIn("layout", out)
        self.assertEqual(snapshot(self.folder), before)

    def test_text_leaves_no_cache(self):
        (self.folder / "train.txt").write_text("A text of a few words. " * 20)
        before = snapshot(self.folder)
        self.dry('data.train=[{ path = "train.txt", weight = 1.0 }]')
        self.assertEqual(snapshot(self.folder), before)

    def test_case_101_bytes_equal_what_the_run_counts(self):
        variants = {
            "adamw": [],
            "sgd": ["optimizer.name=sgd", "optimizer.momentum=0.9"],
            "sgd_plain": ["optimizer.name=sgd"],
            "bf16": ["training.dtype=bfloat16"],
            "fp64": ["training.dtype=float64", "model.tie_word_embeddings=false"],
            "frozen": ['training.trainable=["*mlp*"]'],
        }
        for name, overrides in variants.items():
            with self.subTest(name):
                predicted = self.dry(*overrides)
                self.run_command("train", "tiny.toml", f"run.folder=runs/{name}",
                                 "training.steps=2", *overrides)
                for line in read_metrics(self.folder / f"runs/{name}"):
                    for category in ("params", "grads", "optimizer"):
                        self.assertEqual(line["peak_bytes"][category],
                                         predicted["bytes_per_rank"][category], category)
                    self.assertEqual(line["flops"], predicted["flops_per_step"])

    def test_hash_follows_the_plan(self):
        self.assertEqual(self.dry()["hash"], self.dry("run.seed=9")["hash"])
        self.assertNotEqual(self.dry()["hash"], self.dry("training.seq_len=16")["hash"])


class Help(CommandTest):
    def test_every_command_has_an_example(self):
        for command in (["train"], ["eval"], ["generate"], ["data", "tokenize"],
                        ["data", "train-tokenizer"], ["data", "inspect"]):
            with self.subTest(" ".join(command)):
                text = self.run_command(*command, "--help").stdout
                self.assertIn("Example:\n  quatrain " + " ".join(command), text)
        self.assertIn("train", self.run_command("--help").stdout)
        self.assertRegex(self.run_command("--version").stdout, r"^quatrain \d+\.\d+\.\d+\n$")

    def test_help_config_lists_the_keys(self):
        text = self.run_command("train", "--help-config").stdout
        for line in CONFIG.splitlines():
            if " = " in line:
                self.assertIn(line.split(" = ")[0], text)
        self.assertRegex(text, r"seq_len .*1024")

    def test_help_says_how_to_stop(self):
        self.assertIn("SIGTERM", self.run_command("train", "--help").stdout)


if __name__ == "__main__":
    main()
