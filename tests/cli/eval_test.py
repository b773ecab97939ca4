# SPDX-License-Identifier: Apache-2.0
"""quatrain eval and generate: the loss of a run found again, text that follows from the seed."""
import json
import shutil
import struct

from support import CommandTest, main, read_metrics, snapshot


class Eval(CommandTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        done = cls.start("train", "tiny.toml")
        assert done.returncode == 0, done.stderr
        cls.final = read_metrics(cls.folder / "runs/tiny")[-1]["validation_loss"]

    def test_equals_the_runs_validation_loss(self):
        before = snapshot(self.folder)
        for config in ("tiny.toml", "runs/tiny/config.toml"):
            document = self.run_json("eval", config)
            self.assertEqual(document["loss"], self.final)
            self.assertEqual(float.fromhex(document["loss_hex"]), self.final)
            self.assertEqual(document["sequences"], 7)
        self.assertEqual(snapshot(self.folder), before)
        out = self.run_command("eval", "tiny.toml").stdout
        self.assertIn(f"loss {self.final:.6f}", out)

    def test_case_034_micro_batch(self):
        reports = [
            self.run_json("eval", "tiny.toml", f"training.micro_batch={micro}",
                          f"training.global_batch={whole}")
            for micro, whole in ((1, 1), (1, 3), (2, 4), (7, 7), (8, 8))
        ]
        for report in reports:
            self.assertEqual(report["sequences"], 7)
            self.assertEqual(report["tokens"], reports[0]["tokens"])
            # Token losses are added in float64: seen, one unit in the last place.
            self.assertLess(abs(report["loss"] - self.final) / self.final, 1e-12)

    def test_weights_by_name(self):
        shutil.copytree(self.folder / "runs/tiny/weights", self.folder / "hf")
        for weights in ("hf", "runs/tiny", "runs/tiny/weights"):
            report = self.run_json("eval", "tiny.toml", f"model.weights={weights}",
                                   "run.folder=elsewhere")
            self.assertEqual(report["loss"], self.final)
        # Training goes on from them: the first loss is far below a fresh model's.
        self.run_command("train", "tiny.toml", "model.weights=hf", "run.folder=runs/more",
                         "training.steps=1")
        fresh = read_metrics(self.folder / "runs/tiny")[0]["loss"]
        self.assertLess(read_metrics(self.folder / "runs/more")[0]["loss"], 0.9 * fresh)


class Generate(CommandTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        done = cls.start("train", "tiny.toml", "training.steps=40")
        assert done.returncode == 0, done.stderr

    def text(self, *arguments, source="runs/tiny"):
        report = self.run_json("generate", "--from", source, "--prompt", "Sing, O", "--tokens",
                               "24", *arguments)
        self.assertEqual(report["prompt"], "Sing, O")
        self.assertTrue(report["text"].startswith("Sing, O"))
        return report["text"]

    def test_follows_from_the_seed(self):
        hot = [self.text("--temperature", "2", "--seed", str(seed)) for seed in (1, 1, 2, 3)]
        self.assertEqual(hot[0], hot[1])
        self.assertGreater(len(set(hot)), 2)

    def test_temperature_0_is_the_likeliest(self):
        cold = {self.text("--temperature", "0", "--seed", str(seed)) for seed in (1, 2)}
        self.assertEqual(len(cold), 1)
        self.assertEqual(cold, {self.text("--temperature", "3", "--top-k", "1")})
        self.assertEqual(cold, {self.text("--temperature", "0", "--threads", "2")})

    def test_ranks_that_share_each_matrix_write_the_same(self):
        for how in (("--temperature", "0"), ("--temperature", "2", "--seed", "3")):
            one = self.text(*how)
            for tp in ("2", "4"):
                self.assertEqual(self.text(*how, "--tp", tp), one, how)
        self.run_command("generate", "--from", "runs/tiny", "--prompt", "x", "--tp", "3", code=2)

    def test_text_without_json(self):
        plain = self.run_command("generate", "--from", "runs/tiny", "--prompt", "Sing, O",
                                 "--tokens", "24", "--temperature", "0").stdout
        self.assertEqual(plain, self.text("--temperature", "0") + "\n")

    def test_from_the_weights_as_a_hugging_face_folder(self):
        self.assertEqual(self.text("--seed", "5"),
                         self.text("--seed", "5", source="runs/tiny/weights"))

    def test_nothing_is_written(self):
        before = snapshot(self.folder)
        self.text()
        self.assertEqual(snapshot(self.folder), before)

    def test_empty_prompt_begins_a_document(self):
        self.run_command("generate", "--from", "runs/tiny", "--prompt", "", "--tokens", "2")


class HandMadeFolder(CommandTest):
    """A GPT-2 whose weights make it copy: after byte b comes b + 1."""

    def write(self):
        vocab, width = 257, 257
        folder = self.folder / "counter"
        folder.mkdir()
        tensors = {}
        eye = [[1.0 if r == c else 0.0 for c in range(width)] for r in range(vocab)]
        tensors["wte.weight"] = eye
        tensors["wpe.weight"] = [[0.0] * width] * 16
        for norm in ("h.0.ln_1", "h.0.ln_2", "ln_f"):
            tensors[norm + ".weight"] = [1.0] * width
            tensors[norm + ".bias"] = [0.0] * width
        zeros = {"attn.c_attn": 3 * width, "attn.c_proj": width, "mlp.c_proj": width}
        for name, columns in zeros.items():
            tensors[f"h.0.{name}.weight"] = [[0.0] * columns] * width
            tensors[f"h.0.{name}.bias"] = [0.0] * columns
        # The MLP adds 30 at the next byte: up is the identity, down the shift.
        tensors["h.0.mlp.c_fc.weight"] = eye
        tensors["h.0.mlp.c_fc.bias"] = [0.0] * width
        tensors["h.0.mlp.c_proj.weight"] = [
            [30.0 if c == r + 1 else 0.0 for c in range(width)] for r in range(width)]
        config = {"model_type": "gpt2", "vocab_size": vocab, "n_embd": width, "n_layer": 1,
                  "n_head": 1, "n_inner": width, "n_positions": 16,
                  "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
                  "tie_word_embeddings": True}
        (folder / "config.json").write_text(json.dumps(config))
        self.write_safetensors(folder / "model.safetensors", tensors)

    @staticmethod
    def write_safetensors(path, tensors):
        header, data = {}, b""
        for name, rows in tensors.items():
            flat = [x for row in rows for x in row] if isinstance(rows[0], list) else rows
            shape = [len(rows), len(rows[0])] if isinstance(rows[0], list) else [len(rows)]
            packed = struct.pack(f"<{len(flat)}f", *flat)
            header[name] = {"dtype": "F32", "shape": shape,
                            "data_offsets": [len(data), len(data) + len(packed)]}
            data += packed
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data)

    def test_counts_bytes(self):
        self.write()
        for cached in ("5", "1"):
            report = self.run_json("generate", "--from", "counter", "--tokenizer", "bytes",
                                   "--prompt", "a", "--tokens", cached, "--temperature", "0")
            self.assertEqual(report["text"], "abcdef"[:1 + int(cached)])


if __name__ == "__main__":
    main()
