# SPDX-License-Identifier: Apache-2.0
"""Folders of seven families as transformers writes them, and what it makes of exported ones.

usage: hub_folders.py make FOLDER    FOLDER/<case>/ for every case, and cases.json
       hub_folders.py check FOLDER   reads FOLDER/<case>.out/ beside FOLDER/<case>/, prints JSON

check: {case: {"missing": [...], "unexpected": [...], "difference": largest of logits over their
largest}}.
"""
import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoModelForCausalLM, logging
from transformers.models.deepseek_v3 import DeepseekV3Config
from transformers.models.gpt2 import GPT2Config
from transformers.models.llama import LlamaConfig
from transformers.models.mixtral import MixtralConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config
from transformers.models.qwen3_moe import Qwen3MoeConfig

VOCAB = 61


def rotary(config, **keys):
    shape = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=8,
                 num_key_value_heads=2, intermediate_size=40, max_position_embeddings=64,
                 bos_token_id=1, eos_token_id=2, pad_token_id=0)
    return config(**(shape | keys))


FAMILIES = {
    "gpt2": lambda **keys: GPT2Config(vocab_size=VOCAB, n_embd=24, n_layer=2, n_head=3,
                                      n_positions=40, bos_token_id=1, eos_token_id=2, **keys),
    "llama": lambda **keys: rotary(LlamaConfig, attention_bias=True, mlp_bias=True, **keys),
    "qwen2": lambda **keys: rotary(Qwen2Config, num_key_value_heads=8, **keys),
    "qwen3": lambda **keys: rotary(Qwen3Config, head_dim=10, **keys),
    "mixtral": lambda **keys: rotary(MixtralConfig, num_local_experts=4, **keys),
    "qwen3_moe": lambda **keys: rotary(Qwen3MoeConfig, num_experts=4, num_experts_per_tok=2,
                                       moe_intermediate_size=24, head_dim=10, mlp_only_layers=[0],
                                       norm_topk_prob=True, **keys),
    "deepseek_v3": lambda **keys: rotary(
        DeepseekV3Config, num_key_value_heads=8, n_routed_experts=4, n_shared_experts=1,
        num_experts_per_tok=2, moe_intermediate_size=24, first_k_dense_replace=1, n_group=2,
        topk_group=1, q_lora_rank=12, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4,
        v_head_dim=8, **keys),
}


def make_case(folder, config, dtype, limit):
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape)
            if parameter.dim() == 1:
                gain = 1.0 if bool((parameter == 1).all()) else 0.0
                parameter.copy_(0.2 * noise + gain)
            else:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5)
    model.save_pretrained(folder, max_shard_size=limit)


def make(root):
    cases = []
    for family, config in FAMILIES.items():
        for tied in (False, True):
            for limit, label in (("5GB", "single"), ("20KB", "sharded")):
                dtype = torch.bfloat16 if tied and label == "sharded" else torch.float32
                name = f"{family}-{'tied' if tied else 'untied'}-{label}"
                torch.manual_seed(len(cases))
                make_case(os.path.join(root, name), config(tie_word_embeddings=tied), dtype, limit)
                cases.append(name)
    with open(os.path.join(root, "cases.json"), "w") as file:
        json.dump(cases, file)


def load(folder):
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32, attn_implementation="eager")
    return model.eval(), info


def check(root):
    tokens = torch.arange(24).reshape(2, 12) * 7 % VOCAB
    result = {}
    with open(os.path.join(root, "cases.json")) as file:
        cases = json.load(file)
    for name in cases:
        folder = os.path.join(root, name)
        if not os.path.exists(folder + ".out/config.json"):
            continue
        theirs, _ = load(folder)
        ours, info = load(folder + ".out")
        with torch.no_grad():
            want = theirs(tokens).logits
            have = ours(tokens).logits
        result[name] = {
            "missing": sorted(map(str, info["missing_keys"])),
            "unexpected": sorted(map(str, info["unexpected_keys"])),
            "difference": float((want - have).abs().max() / want.abs().max()),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    {"make": make, "check": check}[sys.argv[1]](sys.argv[2])
