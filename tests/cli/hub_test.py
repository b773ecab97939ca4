# SPDX-License-Identifier: Apache-2.0
"""Hugging Face folders of seven families in and out, against transformers itself; and exports of
checkpoints that several ranks trained."""
import json
import os
import shutil
import subprocess
import unittest
from pathlib import Path

from support import CommandTest, main

PYTHON = os.environ.get("QUATRAIN_PYTHON", "")
FOLDERS = Path(__file__).with_name("hub_folders.py")


def read_safetensors(path):
    """{name: (dtype, shape, bytes)}, and whether the offsets are contiguous."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    assert header.pop("__metadata__") == {"format": "pt"}
    at = 0
    tensors = {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        first, last = entry["data_offsets"]
        assert first == at, name
        at = last
        tensors[name] = (entry["dtype"], entry["shape"], data[begin + first:begin + last])
    assert begin + at == len(data)
    return tensors


def read_folder(folder):
    """All tensors; an index must name each of them, in the file that has it, and their bytes."""
    tensors, places = {}, {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in read_safetensors(path).items():
            assert name not in tensors, name
            tensors[name], places[name] = tensor, path.name
    index = folder / "model.safetensors.index.json"
    if index.exists():
        document = json.loads(index.read_text())
        assert document["weight_map"] == places
        size = sum(len(data) for _, _, data in tensors.values())
        assert document["metadata"]["total_size"] == size
    else:
        assert set(places.values()) == {"model.safetensors"}
    return tensors


@unittest.skipUnless(PYTHON, "no Python with transformers")
class RoundTrip(CommandTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.hub = cls.folder / "hub"
        cls.python("make")
        cls.cases = json.loads((cls.hub / "cases.json").read_text())

    @classmethod
    def python(cls, command):
        done = subprocess.run([PYTHON, "-B", FOLDERS, command, cls.hub], capture_output=True,
                              text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def exported(self, name):
        limit = "20KB" if name.endswith("sharded") else "5GB"
        self.run_command("checkpoint", "import", f"hub/{name}", f"in/{name}")
        report = self.run_json("checkpoint", "export", f"in/{name}", f"hub/{name}.out",
                               "--max-shard-size", limit)
        self.assertTrue(report["ok"], report["fault"])
        return read_folder(self.hub / f"{name}.out")

    def test_case_062_import_then_export(self):
        """Byte-equal tensors; indexes that name what is there, contiguous offsets (read_folder)."""
        for name in self.cases:
            with self.subTest(name):
                theirs, ours = read_folder(self.hub / name), self.exported(name)
                self.assertEqual(theirs.keys(), ours.keys())
                self.assertEqual([n for n in theirs if theirs[n] != ours[n]], [])
                self.assertEqual("lm_head.weight" in ours, "-untied-" in name)
        for name, result in json.loads(self.python("check")).items():
            with self.subTest(name):
                self.assertEqual((result["missing"], result["unexpected"]), ([], []))
                self.assertLessEqual(result["difference"], 1e-5)


class Trained(CommandTest):
    """fp64: what ranks sum in another order differs in the last digits alone."""

    GEOMETRIES = {
        "one": [],
        "dp2": ["parallel.dp_shard=2", "parallel.zero=3"],
        "tp2": ["parallel.tp=2"],
        "pp2": ["parallel.pp=2", "training.micro_batch=1"],
    }

    def export(self, name, *more, code=0):
        return self.run_command("checkpoint", "export", f"runs/{name}", f"out/{name}", *more,
                                code=code)

    def train(self, name, *more):
        self.run_command("train", "tiny.toml", f"run.folder=runs/{name}", "training.steps=2",
                         "checkpoint.interval=2", *more)

    def doubles(self, tensors):
        import array
        return {name: array.array("d", data) for name, (_, _, data) in tensors.items()}

    def test_case_052_ranks_export_what_one_does(self):
        for tied in ("true", "false"):
            exported = {}
            for name, more in self.GEOMETRIES.items():
                name += f"-{tied}"
                self.train(name, "training.dtype=float64", f"model.tie_word_embeddings={tied}",
                           *more)
                self.export(name)
                exported[name] = read_folder(self.folder / f"out/{name}")
            want = exported[f"one-{tied}"]
            self.assertEqual(want["model.embed_tokens.weight"][1], [257, 32])
            self.assertEqual("lm_head.weight" in want, tied == "false")
            for name, have in exported.items():
                with self.subTest(name):
                    self.assertEqual({n: t[:2] for n, t in want.items()},
                                     {n: t[:2] for n, t in have.items()})
                    theirs, ours = self.doubles(want), self.doubles(have)
                    worst = max(abs(a - b) for n in ours for a, b in zip(theirs[n], ours[n]))
                    self.assertLess(worst, 1e-11)

    def test_case_056_biases_under_tensor_parallelism(self):
        self.train("bias", "model.attention_bias=true", "model.mlp_bias=true")
        self.export("bias")
        self.run_command("checkpoint", "import", "out/bias", "in/bias")
        for tp in (1, 2):
            self.train(f"bias-tp{tp}", "model.attention_bias=true", "model.mlp_bias=true",
                       "model.weights=in/bias", f"parallel.tp={tp}", "optimizer.lr=1e-30",
                       "training.steps=1")
            self.export(f"bias-tp{tp}")
        first = [json.loads((self.folder / f"runs/bias-tp{tp}/metrics.jsonl").read_text()
                            .splitlines()[0])["loss"] for tp in (1, 2)]
        self.assertAlmostEqual(*first, places=5)
        want = read_folder(self.folder / "out/bias")
        for tp in (1, 2):
            self.assertEqual(want, read_folder(self.folder / f"out/bias-tp{tp}"))

    def test_case_058_tied_heads_after_an_import(self):
        self.train("tied")
        self.export("tied")
        self.run_command("checkpoint", "import", "out/tied", "in/tied")
        losses = []
        for name, more in self.GEOMETRIES.items():
            run = f"tied-{name}"
            self.train(run, "model.weights=in/tied", *more)
            lines = (self.folder / f"runs/{run}/metrics.jsonl").read_text().splitlines()
            losses.append(json.loads(lines[0])["loss"])
        for loss in losses[1:]:
            self.assertAlmostEqual(loss, losses[0], places=5)
        # Learnt weights: far below the loss of a head that was drawn anew.
        last = json.loads((self.folder / "runs/tied/metrics.jsonl").read_text().splitlines()[-1])
        self.assertLess(losses[0], last["loss"] + 0.5)

    def test_types_and_shards(self):
        self.train("typed")
        self.export("typed")
        whole = read_folder(self.folder / "out/typed")
        for dtype, short in (("bfloat16", "BF16"), ("float16", "F16"), ("float32", "F32")):
            self.export("typed", "--dtype", dtype, "--max-shard-size", "10KB")
            tensors = read_folder(self.folder / "out/typed")
            self.assertEqual({t[0] for t in tensors.values()}, {short})
            config = json.loads((self.folder / "out/typed/config.json").read_text())
            self.assertEqual(config["torch_dtype"], dtype)
            self.assertFalse((self.folder / "out/typed/model.safetensors").exists())
            self.assertGreater(len(list((self.folder / "out/typed").glob("model-*"))), 2)
        self.export("typed")  # the shards of the longer save go
        self.assertEqual(whole, read_folder(self.folder / "out/typed"))
        for file in ("tokenizer.json", "generation_config.json"):
            self.assertTrue((self.folder / "out/typed" / file).exists(), file)
        said = self.run_command("generate", "--from", "out/typed", "--prompt", "Sing",
                                "--tokens", 4)
        self.assertTrue(said.stdout)

    def test_refusals(self):
        self.train("refused")
        for arguments, says in ((("--dtype", "int8"), "int8"),
                                (("--max-shard-size", "5GiB"), "5GB"),
                                (("--max-shard-size", "0"), "at least")):
            self.refuse("checkpoint", "export", "runs/refused", "out/none", *arguments, code=2,
                        says=[says])
        self.refuse("checkpoint", "export", "runs/refused", "runs/refused", code=2,
                    says=["holds checkpoints"])
        self.refuse("checkpoint", "import", "runs", "in/none", code=2, says=["Hugging Face"])
        self.export("refused")
        self.refuse("checkpoint", "import", "out/refused", "runs/refused", code=2,
                    says=["holds checkpoints"])

    def test_help_has_examples(self):
        for command in ("export", "import"):
            said = self.run_command("checkpoint", command, "--help").stdout
            self.assertIn(f"Example:\n  quatrain checkpoint {command} ", said)


class Imported(CommandTest):
    """A folder that says more than a model of ours does, imported once."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for arguments in (("train", "tiny.toml", "run.folder=runs/first", "training.steps=1"),
                          ("checkpoint", "export", "runs/first/checkpoints", "hub")):
            done = cls.start(*arguments, *(["checkpoint.interval=1"] * (arguments[0] == "train")))
            assert done.returncode == 0, done.stderr
        path = cls.folder / "hub/config.json"
        config = json.loads(path.read_text())
        # What training refuses must not keep the model from being read.
        cls.more = {"pad_token_id": 5, "of_others": {"list": [1, 2]}, "attention_dropout": 0.1}
        path.write_text(json.dumps(config | cls.more))
        (cls.folder / "hub/special_tokens_map.json").write_text("{}")
        done = cls.start("checkpoint", "import", "hub", "in")
        assert done.returncode == 0, done.stderr

    def config_of(self, folder):
        config = json.loads((self.folder / folder / "config.json").read_text())
        return {key: config.get(key) for key in self.more}

    def test_keys_of_the_source_survive(self):
        self.run_command("checkpoint", "export", "in", "out")
        self.assertEqual(self.config_of("out"), self.more)
        self.assertTrue((self.folder / "out/special_tokens_map.json").exists())
        more = ["checkpoint.interval=1", "run.folder=runs/on", "parallel.dp_shard=2"]
        self.run_command("train", "tiny.toml", "model.weights=in", "training.steps=1", *more)
        self.run_command("train", "tiny.toml", "model.weights=in", "training.steps=2",
                         "checkpoint.resume=if_present", *more)
        self.run_command("checkpoint", "export", "runs/on", "trained")
        self.assertEqual(self.config_of("trained"), self.more | {"attention_dropout": 0.0})

    def test_generates_from_a_folder_that_has_moved(self):
        self.run_command("checkpoint", "import", "hub", "was/in")
        (self.folder / "was").rename(self.folder / "is")
        gone = str(self.folder / "was/in/tokenizer")
        arguments = ("--prompt", "Sing", "--tokens", 4)
        want = self.run_command("generate", "--from", "in", *arguments).stdout
        for source in ("is/in", "is/in/step-00000000"):
            have = self.run_command("generate", "--from", source, *arguments).stdout
            self.assertEqual(want, have)
        shutil.rmtree(self.folder / "is/in/tokenizer")
        done = self.run_command("generate", "--from", "is/in", *arguments, code=2)
        self.assertIn(gone, done.stderr)
        done = self.run_command("checkpoint", "export", "is/in", "is/out")
        self.assertIn(f"the tokenizer {gone} is gone", done.stderr)

    def test_the_source_is_not_written_over(self):
        (self.folder / "link").symlink_to("hub")
        (self.folder / "in_link").symlink_to("in")
        for out in ("hub", "link", "./in/../hub"):
            self.refuse("checkpoint", "export", "in", out, code=2, says=["the model came from"])
        for out in ("in", "in_link"):
            self.refuse("checkpoint", "export", "in", out, code=2, says=["holds checkpoints"])
        self.refuse("checkpoint", "export", "in", "in/tokenizer", code=2, says=["tokenizer"])
        for out in ("hub", "link"):
            self.refuse("checkpoint", "import", "hub", out, code=2, says=["folder to import"])


if __name__ == "__main__":
    main()
