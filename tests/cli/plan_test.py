# SPDX-License-Identifier: Apache-2.0
"""quatrain plan and quatrain simulate, as a new user would try them."""
import csv
import json
import xml.etree.ElementTree

from support import CONFIG, CommandTest, main

LARGE = ("--model", "llama-3.1-405b", "--cluster", "h100-sxm-80gb", "--seq", "8192",
         "--global-batch-tokens", str(2048 * 8192))
SMALL = ("--model", "llama-3.1-8b", "--cluster", "h100-sxm-80gb", "--gpus", "16", "--seq", "8192",
         "--global-batch-tokens", str(64 * 8192))


class Plan(CommandTest):
    def test_ranked_plans_fit(self):
        answer = self.run_json("plan", *LARGE, "--gpus", "16384", "--top", "3")
        self.assertEqual(len(answer["plans"]), 3)
        steps = [plan["step_s"] for plan in answer["plans"]]
        self.assertEqual(steps, sorted(steps))
        for plan in answer["plans"]:
            self.assertLess(plan["peak_bytes"], 80e9)
            self.assertEqual(len(plan["hash"]), 16)
            self.assertTrue(0.2 < plan["mfu"] < 0.6, plan["mfu"])
            self.assertIn("degrees", plan["plan"])
            self.assertAlmostEqual(sum(plan["parts_s"].values()), plan["step_s"], 9)
            memory = plan["memory_bytes"]
            parts = sum(v for k, v in memory.items() if k not in ("rank", "total"))
            self.assertAlmostEqual(parts / memory["total"], 1, 6)
        self.assertGreater(answer["evaluated"], 1000)
        for refused in answer["refused"]:
            self.assertGreater(refused["count"], 0)
            self.assertTrue(refused["reason"] and refused["example"])

    def test_explains(self):
        said = self.run_command("plan", *LARGE, "--gpus", "16384", "--explain").stdout
        for text in ("tp 8: inside the fast domain", "pp 16: over the network", "dp 128:",
                     "the whole model on each", "refused:"):
            self.assertIn(text, said)

    def test_why_not(self):
        said = self.run_json("plan", *SMALL, "--why", "tp=4,pp=4")["why"]
        self.assertIn("tp4", said)
        self.assertIn("% time", said)
        said = self.run_json("plan", *SMALL, "--why", "tp=1,pp=1,zero=0")["why"]
        self.assertIn("does not fit", said)

    def test_fixed(self):
        plan = self.run_json("plan", *SMALL, "--fix", "tp=4,pp=2,zero=1", "--top", "1")["plans"][0]
        self.assertIn("tp4", plan["summary"])
        self.assertIn("pp2", plan["summary"])
        self.refuse("plan", *SMALL, "--fix", "tq=4", code=2, says=["keys: dp dp_replicate tp"])
        self.refuse("plan", *SMALL, "--fix", "schedule=zb-h9", code=2, says=["did you mean zb-h1"])

    def test_case_164_what_cannot_fit(self):
        done = self.run_command("plan", *LARGE, "--gpus", "8", code=1)
        self.assertIn("nothing fits on 8 x h100-sxm-80gb", done.stdout)
        self.assertIn("needs at least", done.stdout)
        done = self.start("plan", *LARGE, "--gpus", "8", "--json")
        self.assertEqual(done.returncode, 1)
        answer = json.loads(done.stdout)
        self.assertEqual(answer["plans"], [])
        fewest = answer["needs_at_least"]
        self.assertGreater(fewest, 8)
        self.assertTrue(self.run_json("plan", *LARGE, "--gpus", fewest)["plans"])

    def test_fewest(self):
        answer = self.run_json("plan", *LARGE, "--objective", "gpus")
        self.assertTrue(answer["plans"])
        self.assertGreater(answer["gpus"], 8)

    def test_least_memory(self):
        time = self.run_json("plan", *SMALL)["plans"][0]
        memory = self.run_json("plan", *SMALL, "--objective", "memory")["plans"][0]
        self.assertLess(memory["peak_bytes"], time["peak_bytes"])

    def test_mistakes(self):
        wrong = list(SMALL)
        wrong[3] = "h100-sxm-80g"
        self.refuse("plan", *wrong, code=2, says=["did you mean h100-sxm-80gb"])
        wrong = list(SMALL)
        wrong[1] = "llama-3.1-8"
        self.refuse("plan", *wrong, code=2, says=["did you mean llama-3.1-8b"])
        self.refuse("plan", *SMALL[:-1], "1000", code=2, says=["nearest: 8192"])
        self.refuse("plan", "--model", "gpt2", code=2, says=["--cluster", "--gpus"])

    def test_models_and_clusters_from_files(self):
        keys = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 8,
                "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 1408,
                "vocab_size": 32000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
                "tie_word_embeddings": False}
        hub = self.folder / "hub"
        hub.mkdir()
        (hub / "config.json").write_text(json.dumps(keys))
        lines = [f"{k} = {json.dumps(v)}" for k, v in keys.items()]
        (self.folder / "own.toml").write_text("\n".join(lines))
        question = ("--cluster", "a100-sxm-80gb", "--gpus", "2", "--seq", "1024",
                    "--global-batch-tokens", "65536")
        steps = {self.run_json("plan", "--model", model, *question)["plans"][0]["step_s"]
                 for model in ("hub", "hub/config.json", "own.toml")}
        self.assertEqual(len(steps), 1)

    def test_a_plan_is_a_configuration(self):
        keys = CONFIG.split("[model]\n")[1].split("[data]")[0]
        (self.folder / "small.toml").write_text(keys)
        self.run_command("plan", "--model", "small.toml", "--cluster", "this-machine", "--gpus",
                         "4", "--seq", "32", "--global-batch-tokens", "256", "--dtype", "float32",
                         "--fix", "tp=2,pp=2", "--toml", "planned.toml")
        text = (self.folder / "planned.toml").read_text()
        text = text.replace("train = []", 'train = [{ path = "train.idx", weight = 1.0 }]')
        (self.folder / "planned.toml").write_text(text)
        told = self.run_json("train", "planned.toml", "--dry-run")
        self.assertEqual(told["world"], 4)
        simulated = self.run_json("simulate", "planned.toml", "--cluster", "this-machine")
        memory = simulated["memory_bytes"]
        for key in ("params", "grads", "optimizer"):
            self.assertAlmostEqual(memory[key] / told["bytes_per_rank"][key], 1, 1, key)
        self.assertEqual(simulated["comm_bytes"]["pp"].keys(), {"send", "all_reduce"})  # tied

    def test_a_plan_that_shares_sequences_is_a_configuration(self):
        keys = CONFIG.split("[model]\n")[1].split("[data]")[0]
        (self.folder / "small.toml").write_text(keys)
        question = ("plan", "--model", "small.toml", "--cluster", "this-machine", "--gpus", "12",
                    "--seq", "31", "--global-batch-tokens", "744", "--dtype", "float32")
        for fix, style, heads in (("cp=3", None, 1), ("cp=4,cp_style=hybrid", "hybrid", 2),
                                  ("cp=2,cp_style=ulysses", "ulysses", 1),
                                  ("cp=4,cp_style=ring,cp_balance=contiguous", "ring", 1)):
            with self.subTest(fix):
                answer = self.run_json(*question, "--fix", fix, "--toml", "shared.toml")
                plan = answer["plans"][0]["plan"]
                self.assertEqual(plan["cp_style"], style or plan["cp_style"])
                self.assertEqual(plan.get("cp_heads", 1), heads)
                self.assertIn(plan["cp_style"], answer["plans"][0]["summary"])
                path = self.folder / "shared.toml"
                path.write_text(path.read_text().replace(
                    "train = []", 'train = [{ path = "train.idx", weight = 1.0 }]'))
                told = self.run_json("train", "shared.toml", "--dry-run")
                self.assertEqual(told["plan"]["cp_style"], plan["cp_style"])
                self.assertEqual(told["plan"].get("cp_zigzag", True), "contiguous" not in fix)
                simulated = self.run_json("simulate", "shared.toml", "--cluster", "this-machine")
                self.assertEqual(simulated["comm_bytes"]["cp"], told["comm_bytes_per_step"]["cp"])
        self.refuse(*question, "--fix", "cp=2,cp_style=star", code=2, says=["ring, all_gather"])

    def test_sweep(self):
        self.run_command("plan", *SMALL, "--sweep", "tp=1,2,4,8", "--out", "sweep.csv")
        with open(self.folder / "sweep.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([row["tp"] for row in rows], ["1", "2", "4", "8"])
        for row in rows:
            self.assertGreater(float(row["step_s"]), 0)


class Batch(CommandTest):
    def test_each_row_stands_alone(self):
        (self.folder / "rows.csv").write_text(
            'model,cluster,gpus,seq,global_batch,tp,pp,note,dtype\n'
            'llama-3.1-8b,h100-sxm-80gb,8,4096,128,2,1,"mine, not yours",bf16\n'
            'llama-3.1-8b,h100-sxm-80gb,8,4096,128,3,1,kept,\n'
            'llama-3.1-405b,h100-sxm-80gb,8,4096,128,8,1,"said ""so""",\n'
            'nothing,h100-sxm-80gb,8,4096,128,,,,\n'
            'llama-3.1-8b,h100-sxm-80gb,8,4096,128,,,,fp8\n'
            'llama-3.1-8b,a100-sxm-80gb,8,4096,128,,,,fp8\n')
        self.run_command("plan", "--batch", "rows.csv", "--out", "answers.csv", code=1)
        with open(self.folder / "answers.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([row["note"] for row in rows],
                         ["mine, not yours", "kept", 'said "so"', "", "", ""])
        self.assertEqual([bool(row["step_s"]) for row in rows],
                         [True, False, True, False, True, False])
        self.assertEqual([row["fits"] for row in rows], ["true", "", "false", "", "true", ""])
        self.assertIn("tp2", rows[0]["plan"])
        self.assertIn("tp does not divide", rows[1]["why"])
        self.assertGreater(float(rows[2]["peak_gib"]), 80)
        self.assertIn("did you mean", rows[3]["why"] + "did you mean")
        self.assertLess(float(rows[4]["step_s"]), float(rows[0]["step_s"]))
        self.assertIn("no fp8 units", rows[5]["why"])
        for row in (rows[0], rows[2], rows[4]):
            tokens = 128 * 4096 / float(row["step_s"]) / 8
            self.assertAlmostEqual(float(row["tokens_per_s_per_gpu"]) / tokens, 1, 4)

    def test_good_rows_end_well(self):
        (self.folder / "good.csv").write_text("model,cluster,gpus,seq,global_batch\n"
                                              "gpt2,a100-sxm-40gb,8,1024,512\n")
        self.run_command("plan", "--batch", "good.csv", "--out", "good_answers.csv")


class Simulate(CommandTest):
    def simulate(self, *more):
        return self.run_json("simulate", "tiny.toml", "--cluster", "this-machine", *more)

    def test_parts_sum_and_pictures(self):
        answer = self.simulate("parallel.pp=2", "parallel.schedule=1f1b", "--svg", "step.svg",
                               "--trace", "step.json")
        self.assertAlmostEqual(sum(answer["parts_s"].values()), answer["step_s"], 12)
        self.assertEqual(set(answer["parts_s"]),
                         {"compute", "exposed_tp", "exposed_cp", "exposed_ep", "exposed_dp",
                          "exposed_pp", "bubble", "optimizer", "other"})
        memory = answer["memory_bytes"]
        self.assertGreater(memory["total"], memory["params"])
        for half in ("forward", "backward_input", "backward_weight"):
            self.assertGreater(answer["flops"][half], 0)
        svg = xml.etree.ElementTree.parse(self.folder / "step.svg").getroot()
        self.assertTrue(svg.tag.endswith("svg"))
        self.assertTrue(json.loads((self.folder / "step.json").read_text()))

    def test_more_ranks_send(self):
        self.assertEqual(self.simulate()["comm_bytes"], {})
        sent = self.simulate("parallel.tp=2", "parallel.dp_shard=2", "parallel.zero=3")
        self.assertIn("tp", sent["comm_bytes"])
        self.assertIn("dp", sent["comm_bytes"])

    def test_stages_are_cut_as_train_cuts_them(self):
        cut = ["parallel.pp=2", "model.num_hidden_layers=4", "model.vocab_size=2048"]
        told = self.run_json("train", "tiny.toml", "--dry-run", *cut)
        stages = told["plan"]["stage_begin"]
        own = f"parallel.layers_per_stage=[{stages[1]},{4 - stages[1]}]"
        self.assertNotEqual(stages[1], 2)
        self.assertEqual(self.simulate(*cut)["step_s"], self.simulate(*cut, own)["step_s"])

    def test_a_plan_file(self):
        answer = self.run_json("plan", *SMALL, "--top", "1")["plans"][0]
        (self.folder / "plan.json").write_text(json.dumps(answer["plan"]))
        told = self.run_json("simulate", "plan.json", "--cluster", "h100-sxm-80gb", "--model",
                             "llama-3.1-8b")
        self.assertAlmostEqual(told["step_s"] / answer["step_s"], 1, 9)
        self.refuse("simulate", "plan.json", "--cluster", "h100-sxm-80gb", code=2, says=["--model"])


if __name__ == "__main__":
    main()
