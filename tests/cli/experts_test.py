# SPDX-License-Identifier: Apache-2.0
"""Models with experts from the command line: training, sampling, metrics, verify, refusals."""
import json

from support import CONFIG, CommandTest, column, main, read_metrics

MODEL = """\
model_type = "deepseek_v3"
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 4
intermediate_size = 64
moe_intermediate_size = 16
first_k_dense_replace = 1
n_routed_experts = 4
n_shared_experts = 1
num_experts_per_tok = 2
n_group = 2
topk_group = 1
q_lora_rank = 12
kv_lora_rank = 16
qk_nope_head_dim = 8
qk_rope_head_dim = 4
v_head_dim = 8
vocab_size = 257
max_position_embeddings = 64
tie_word_embeddings = true
"""
DATA = CONFIG.index("[data]")
EXPERTS = CONFIG[:CONFIG.index("[model]")] + "[model]\n" + MODEL + "\n" + CONFIG[DATA:]
BATCH = ["training.global_batch=8", "training.micro_batch=1", "training.dtype=float64",
         "training.router_bias_rate=0.01", "training.router_z_loss=0.001"]
TENSOR = ["parallel.tp=2", "parallel.etp=2"]


class Experts(CommandTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "experts.toml").write_text(EXPERTS)

    def train(self, name, *overrides):
        self.run_command("train", "experts.toml", f"run.folder=runs/{name}", *BATCH, *overrides)
        return self.folder / f"runs/{name}"

    def test_many_ranks_equal_one(self):
        one = self.train("one")
        for name, *overrides in (
                ("dp2", "parallel.dp_shard=2", "parallel.zero=3"),
                ("tp2", *TENSOR, "parallel.sequence_parallel=true", "debug.check_replicas=2"),
                ("pp2", "parallel.pp=2", "parallel.schedule=zb-h1", "training.recompute=full"),
                ("ep2", "parallel.dp_shard=2", "parallel.ep=2", "parallel.zero=3"),
                ("folded", "parallel.dp_shard=2", "parallel.tp=2", "parallel.ep=4",
                 "parallel.zero=1", "debug.check_replicas=2")):
            with self.subTest(name):
                many = self.train(name, *overrides)
                worst = max(abs(a - b) / b
                            for a, b in zip(column(many, "loss"), column(one, "loss")))
                self.assertLess(worst, 1e-9)
                for ours, theirs in zip(read_metrics(many), read_metrics(one)):
                    self.assertEqual(ours["router"]["loads"], theirs["router"]["loads"])
                self.run_command("generate", "--from", f"runs/{name}", "--prompt", "Sing",
                                 "--tokens", "4", "--tp", "2")

    def test_metrics(self):
        folder = self.train("metrics")
        for line in read_metrics(folder):
            router = line["router"]
            self.assertEqual(set(router),
                             {"balance_loss", "z_loss", "entropy", "max_load", "dropped", "loads"})
            self.assertEqual(router["dropped"], 0)
            self.assertEqual([sum(layer) for layer in router["loads"]], [0, 8 * 32 * 2])
            self.assertEqual(router["max_load"], max(router["loads"][1]) / (8 * 32 * 2 / 4))
            self.assertGreater(router["z_loss"], 0)
        weights = json.loads((folder / "weights/config.json").read_text())
        self.assertEqual(weights["model_type"], "deepseek_v3")
        self.assertRegex((folder / "log.txt").read_text(), r"load \d\.\d\d")

    def test_room(self):
        for who in ("position", "probability"):
            folder = self.train(who, "training.expert_capacity=1.0", f"training.expert_drop={who}")
            for line in read_metrics(folder):
                room = 32 * 2 / 4  # of a micro-batch of one sequence
                least = sum(max(0, load - 8 * room) for load in line["router"]["loads"][1])
                self.assertGreaterEqual(line["router"]["dropped"], least)
                self.assertLess(line["router"]["dropped"], 8 * 32 * 2)
            self.assertGreater(line["router"]["dropped"], 0)

    def test_verify(self):
        for degrees in (["parallel.dp_shard=2", "parallel.ep=2", "parallel.zero=1"],
                        ["parallel.dp_shard=2", "parallel.tp=2", "parallel.ep=4"],
                        [*TENSOR, "parallel.sequence_parallel=true", "parallel.dp_shard=2",
                         "parallel.zero=3"],
                        ["parallel.pp=2", "training.recompute=full"]):
            done = self.run_command("verify", "experts.toml", *degrees, "--steps", "2", "--json")
            self.assertTrue(json.loads(done.stdout)["equal"])

    # Queries' compression meets each rank's own rows: without the sum over tp a term is missing.
    def test_verify_finds_a_missing_sum(self):
        name = "model.layers.1.self_attn.q_a_proj.weight"
        done = self.run_command("verify", "experts.toml", *TENSOR,
                                "parallel.sequence_parallel=true", "--inject",
                                f"drop_reduce={name}", "--steps", "1", "--json", code=1)
        first = json.loads(done.stdout)["first"]
        self.assertEqual((first["tensor"], first["axis"]), (name, "tp"))

    def test_what_cannot_be_is_refused(self):
        self.refuse("train", "experts.toml", "parallel.ep=3", "parallel.dp_shard=3",
                    "training.global_batch=9", code=2, says=["ep = 3 does not divide 4 experts"])
        self.refuse("train", "experts.toml", "parallel.ep=4", "parallel.dp_shard=2", code=2,
                    says=["ep 4 x etp 1 does not divide the 2 ranks of a stage"])
        self.refuse("train", "experts.toml", "training.expert_capacity=0.5", code=2,
                    says=["expert_capacity = 0.5 has no room for an even load"])
        self.refuse("train", "tiny.toml", "training.router_bias_rate=0.1", code=2,
                    says=["the model has no experts"])


if __name__ == "__main__":
    main()
