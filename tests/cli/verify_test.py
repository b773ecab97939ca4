# SPDX-License-Identifier: Apache-2.0
"""quatrain verify: equal geometries, a planted fault that is found, what is refused."""
import json

from support import CommandTest, main, snapshot

UP = "model.layers.1.mlp.up_proj.weight"


class Verify(CommandTest):
    def verify(self, *arguments, code=0):
        done = self.run_command("verify", "tiny.toml", *arguments, "--json", code=code)
        document = json.loads(done.stdout)
        self.assertEqual(document["equal"], code == 0)
        return document

    def test_equal_geometries(self):
        before = snapshot(self.folder)
        for degrees in (["parallel.dp_shard=2", "parallel.zero=3"],
                        ["parallel.tp=2", "parallel.sequence_parallel=true"],
                        ["parallel.dp_replicate=2", "training.recompute=full"]):
            document = self.verify(*degrees, "--steps", "2")
            self.assertEqual(document["dtype"], "float64")
            self.assertEqual(document["steps"], 2)
            self.assertLess(document["max_rel"], document["tolerance"])
            self.assertIsNone(document["first"])
            kinds = [row["kind"] for row in document["tensors"]]
            self.assertEqual(kinds.count("gradient"), kinds.count("weight"))
            self.assertIn("loss", kinds)
            self.assertIn("grad_norm", kinds)
        self.assertEqual(snapshot(self.folder), before)

    def test_case_017_one_percent_of_one_weight(self):
        for dtype in ("float64", "float32"):
            document = self.verify("parallel.dp_shard=2", "parallel.zero=1", "--dtype", dtype,
                                   "--inject", f"scale={UP}:1.01", code=1)
            first = document["first"]
            self.assertEqual((first["step"], first["kind"], first["tensor"]), (1, "gradient", UP))
            self.assertAlmostEqual(first["max_rel"], 0.01, places=4)
            self.assertIsNone(first["axis"])
            self.assertIn("1.01 times the gradient", first["hint"])
            self.assertEqual(document["tensors"][0]["tensor"], UP)
            self.assertGreater(document["max_rel"], document["tolerance"])

    def test_the_axis_is_named(self):
        norm = "model.layers.1.input_layernorm.weight"
        for degrees, fault, axis, hint in (
                (["parallel.dp_shard=2"], f"drop_reduce={UP}", "dp_shard", "is missing"),
                (["parallel.tp=2", "parallel.sequence_parallel=true"], f"drop_reduce={norm}",
                 "tp", "a sum over tp is missing"),
                (["parallel.tp=2"], "shift_positions=tp", "tp", "it vanishes with tp = 1")):
            first = self.verify(*degrees, "--inject", fault, "--steps", "1", code=1)["first"]
            self.assertEqual(first["axis"], axis)
            self.assertEqual(first["axes"], [axis])
            self.assertIn(hint, first["hint"])

    def test_lower_dtypes_are_bounded_by_the_references_rounding(self):
        for dtype in ("float32", "bfloat16"):
            for degrees in (["parallel.dp_shard=2", "parallel.zero=3"], ["parallel.tp=2"]):
                document = self.verify(*degrees, "--dtype", dtype)
                self.assertEqual(document["dtype"], dtype)

    def test_pipelines(self):
        stages = ["parallel.pp=2", "parallel.schedule=zb-h1", "training.micro_batch=1",
                  "--steps", "1"]
        self.assertLess(self.verify(*stages)["max_rel"], 1e-12)
        said = self.run_command("verify", "tiny.toml", *stages).stdout
        self.assertIn("verify    pp 2, zero 0, zb-h1, 4 x 1 sequences a rank", said)
        self.assertIn("against   one rank, zero 0, 4 x 1 sequences a rank", said)
        table = "model.embed_tokens.weight"
        for fault, hint in (("missing_weight=1:2", "only tensors of stage 1 differ"),
                            ("stale_tied", "only the copy at pp 1 is wrong"),
                            ("shift_positions=pp", "it vanishes with pp = 1")):
            first = self.verify(*stages, "--inject", fault, code=1)["first"]
            self.assertEqual((first["step"], first["tensor"], first["axis"]), (1, table, "pp"))
            self.assertIn(hint, first["hint"])

    def test_shared_sequences(self):
        for style in ("ring", "all_gather"):
            shared = ["parallel.cp=2", f"parallel.cp_style={style}", "training.micro_batch=1",
                      "--steps", "1"]
            self.assertLess(self.verify(*shared)["max_rel"], 1e-12)
            for fault in ("local_positions", "local_mask", "own_lse", "stale_block"):
                if style == "all_gather" and fault in ("own_lse", "stale_block"):
                    self.refuse("verify", "tiny.toml", *shared, "--inject", fault, code=2,
                                says=["has nothing that it changes"])
                    continue
                first = self.verify(*shared, "--inject", fault, code=1)["first"]
                self.assertEqual((first["axis"], first["axes"]), ("cp", ["cp"]))
                self.assertIn("it vanishes with cp = 1", first["hint"])

    def test_against(self):
        document = self.verify("parallel.dp_shard=2", "parallel.zero=3", "--against",
                               "parallel.zero=0 training.recompute=full")
        self.assertLess(document["max_rel"], 1e-13)
        # Another seed is another run.
        first = self.verify("--against", "run.seed=8", "--steps", "1", code=1)["first"]
        self.assertEqual((first["step"], first["kind"]), (0, "weight"))

    def test_text(self):
        equal = self.run_command("verify", "tiny.toml", "parallel.tp=2", "--steps", "1").stdout
        self.assertIn("verify    tp 2, zero 0, 2 x 2 sequences a rank", equal)
        self.assertIn("against   one rank, zero 0, 2 x 2 sequences a rank", equal)
        self.assertIn("equal: 1 steps in float64", equal)
        different = self.run_command("verify", "tiny.toml", "--inject", f"scale={UP}:2", "--steps",
                                     "1", code=1).stdout
        self.assertIn(f"different: first at step 1, the gradient of {UP}", different)
        self.assertIn("hint: 2 times the gradient", different)

    def test_refused(self):
        for arguments, says in (
                (["--inject", "scal=x:1"], "no such fault; there are: scale=NAME:FACTOR"),
                (["--inject", f"scale={UP[:-1]}:2"], f"did you mean {UP}"),
                (["--inject", f"drop_reduce={UP}"], "has nothing that it changes"),
                (["--inject", "missing_weight=1:0"], "has nothing that it changes"),
                (["--against", "parallel.dp=2"], "dp"),
                (["--against", "parallel.dp_shard=3"], "global_batch = 4"),
                (["--dtype", "float16"], "float16"),
                (["--steps", "0"], "--steps")):
            self.refuse("verify", "tiny.toml", *arguments, code=2, says=[says])
        self.refuse("verify", "none.toml", code=2, says=["no such file"])


if __name__ == "__main__":
    main()
