# SPDX-License-Identifier: Apache-2.0
"""Checkpoints looked at, proved and compared from outside."""
import json
import math

from support import CommandTest, main

STEP = "checkpoints/step-{:08}"


class Checkpoints(CommandTest):
    """Two runs of one model, by one rank and by two."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for name, *more in (("one",), ("two", "parallel.dp_shard=2", "parallel.zero=3")):
            done = cls.start("train", "tiny.toml", f"run.folder=runs/{name}", "training.steps=4",
                             "checkpoint.interval=2", *more)
            assert done.returncode == 0, done.stderr

    def damage(self, copy, file, position=-1):
        """A copy of the run's last step with one bit turned."""
        folder = self.folder / copy
        folder.mkdir(parents=True)
        for path in (self.folder / "runs/one" / STEP.format(4)).iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        data = bytearray((folder / file).read_bytes())
        data[position] ^= 1
        (folder / file).write_bytes(data)
        return folder


class Inspect(Checkpoints):
    def test_says_what_is_there(self):
        said = self.run_command("checkpoint", "inspect", "runs/one")
        for text in ("step 4", "512 tokens", "seed 7", "exp_avg", "config: "):
            self.assertIn(text, said.stdout)
        self.assertIn(f"newest valid step is runs/one/{STEP.format(4)}", said.stderr)
        self.assertNotIn("model.norm.weight", said.stdout)
        said = self.run_command("checkpoint", "inspect", "runs/one", "--tensors")
        self.assertIn("model.norm.weight", said.stdout)

    def test_json(self):
        for path in ("runs/two", "runs/two/checkpoints", f"runs/two/{STEP.format(2)}"):
            with self.subTest(path):
                facts = self.run_json("checkpoint", "inspect", path)
                step = 2 if path.endswith("2") else 4
                self.assertEqual((facts["step"], facts["seed"]), (step, 7))
                self.assertEqual(facts["files"], 2)
                self.assertIn("[model]", facts["extra"]["config"])
                weights = [kind for kind in facts["kinds"] if kind["kind"] == "weight"]
                self.assertEqual([kind["dtype"] for kind in weights], ["F32"])
        facts = self.run_json("checkpoint", "inspect", "runs/two", "--tensors")
        norm = [t for t in facts["tensors"] if t["name"] == "model.norm.weight"]
        self.assertTrue(all(tensor["shape"] == [32] for tensor in norm))
        total = sum(4 * math.prod(tensor["shape"]) for tensor in facts["tensors"])
        self.assertEqual(facts["bytes"], total)

    def test_refuses_what_is_none(self):
        (self.folder / "empty").mkdir()
        for command in ("inspect", "verify"):
            self.refuse("checkpoint", command, "nowhere", code=2, says=["no such folder"])
            self.refuse("checkpoint", command, "tiny.toml", code=2, says=["it is a file"])
            self.refuse("checkpoint", command, "empty", code=65, says=["no checkpoint"])
            self.refuse("checkpoint", command, code=2, says=["folder"])
        self.refuse("checkpoint", code=2, says=["subcommand"])
        self.refuse("checkpoint", "inspekt", code=2, says=["inspect"])

    def test_help_has_examples(self):
        for command in ("inspect", "verify", "diff"):
            said = self.run_command("checkpoint", command, "--help").stdout
            self.assertIn(f"Example:\n  quatrain checkpoint {command} runs/", said)


class Verify(Checkpoints):
    def test_whole(self):
        self.assertEqual(self.run_json("checkpoint", "verify", "runs/two"),
                         {"ok": True, "problems": []})
        self.assertIn("whole", self.run_command("checkpoint", "verify", "runs/one").stdout)

    def test_one_bit(self):
        folder = self.damage("bit", "rank-00000.safetensors")
        done = self.run_command("checkpoint", "verify", folder, "--json", code=1)
        report = json.loads(done.stdout)
        self.assertFalse(report["ok"])
        self.assertEqual(len(report["problems"]), 1)
        self.assertIn("rank-00000.safetensors", report["problems"][0]["where"])
        self.assertIn("weight", self.run_command("checkpoint", "verify", folder, code=1).stdout)
        self.damage("manifest", "manifest.json", 40)
        self.run_command("checkpoint", "inspect", "manifest", code=65)

    def test_lost_files(self):
        folder = self.damage("lost/step-00000004", "manifest.json")
        (folder / "manifest.json").unlink()
        done = self.run_command("checkpoint", "verify", folder, code=1)
        self.assertIn("manifest.json", done.stdout)


class Diff(Checkpoints):
    def test_itself(self):
        done = self.run_command("checkpoint", "diff", "runs/one", f"runs/one/{STEP.format(4)}")
        self.assertIn("equal", done.stdout)
        report = self.run_json("checkpoint", "diff", "runs/two", "runs/two")
        self.assertEqual(report, {"equal": True, "state": [], "tensors": []})

    def test_two_steps(self):
        done = self.run_command("checkpoint", "diff", f"runs/one/{STEP.format(2)}", "runs/one",
                                "--json", code=1)
        report = json.loads(done.stdout)
        self.assertIn("step: 2 and 4", report["state"])
        names = {tensor["name"] for tensor in report["tensors"]}
        self.assertIn("model.norm.weight", names)
        self.assertTrue(all(tensor["elements"] > 0 for tensor in report["tensors"]))

    def test_damage_is_no_difference(self):
        folder = self.damage("damaged", "rank-00000.safetensors")
        self.refuse("checkpoint", "diff", folder, "runs/one", code=65,
                    says=["rank-00000.safetensors"])


if __name__ == "__main__":
    main()
