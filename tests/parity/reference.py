# SPDX-License-Identifier: Apache-2.0
"""Makes the reference numbers of the parity tests with Hugging Face transformers.

usage: reference.py FOLDER

FOLDER/routers.safetensors: rows and weights of bf16 values, and the experts that each family's
router chooses with them in float32 (case 152), in ascending order.

For every case below: a tiny model with random weights, saved as a user would (FOLDER/<case>/
config.json and model.safetensors), and FOLDER/<case>/reference.safetensors with tokens [B, T],
labels [B, T] (the next token, -100 = not trained) and, under "float32." and "float64.", the logits
[B, T, V], the loss, and the gradient of every parameter under its name.

float32 is transformers as it is. float64 is the same code with its inner float32 casts (norms,
rotary tables, softmax, loss) widened: a function mode turns every request for float32 into one for
float64.
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from safetensors.torch import save_file
from torch.overrides import TorchFunctionMode
from transformers import (DeepseekV3Config, GPT2Config, LlamaConfig, MixtralConfig, Qwen2Config,
                          Qwen3Config, Qwen3MoeConfig, logging)
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (DeepseekV3ForCausalLM,
                                                                  DeepseekV3TopkRouter)
from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel
from transformers.models.llama.modeling_llama import LlamaForCausalLM
from transformers.models.mixtral.modeling_mixtral import MixtralForCausalLM, MixtralTopKRouter
from transformers.models.qwen2.modeling_qwen2 import Qwen2ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import (Qwen3MoeForCausalLM,
                                                              Qwen3MoeTopKRouter)

BATCH, LENGTH, VOCAB = 2, 21, 61


def gpt2(**keys):
    shape = dict(n_embd=24, n_layer=2, n_head=3, n_positions=40, resid_pdrop=0.0, embd_pdrop=0.0,
                 attn_pdrop=0.0, bos_token_id=1, eos_token_id=2)
    return GPT2LMHeadModel, GPT2Config(vocab_size=VOCAB, **(shape | keys))


def rotary(model, config, **keys):
    shape = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 intermediate_size=40, max_position_embeddings=64, tie_word_embeddings=False)
    return model, config(vocab_size=VOCAB, **(shape | keys))


def llama(**keys):
    return rotary(LlamaForCausalLM, LlamaConfig, **keys)


def qwen2(**keys):
    return rotary(Qwen2ForCausalLM, Qwen2Config, **keys)


def qwen3(**keys):
    return rotary(Qwen3ForCausalLM, Qwen3Config, **(dict(head_dim=10) | keys))


# The load-balance loss is another one in transformers: none here.
def mixtral(**keys):
    shape = dict(num_local_experts=6, num_experts_per_tok=2, router_aux_loss_coef=0.0)
    return rotary(MixtralForCausalLM, MixtralConfig, **(shape | keys))


def qwen3_moe(**keys):
    shape = dict(head_dim=10, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=14,
                 num_hidden_layers=3, router_aux_loss_coef=0.0)
    return rotary(Qwen3MoeForCausalLM, Qwen3MoeConfig, **(shape | keys))


def deepseek(**keys):
    shape = dict(num_key_value_heads=4, n_routed_experts=8, num_experts_per_tok=3, n_group=4,
                 topk_group=2, n_shared_experts=2, moe_intermediate_size=10,
                 first_k_dense_replace=1, q_lora_rank=14, kv_lora_rank=18, qk_nope_head_dim=10,
                 qk_rope_head_dim=6, v_head_dim=7)
    return rotary(DeepseekV3ForCausalLM, DeepseekV3Config, **(shape | keys))


def scaled(rope_type, **keys):
    return dict(rope_theta=10000.0, rope_type=rope_type, **keys)


LLAMA3 = scaled("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=16)
YARN = scaled("yarn", factor=4.0, original_max_position_embeddings=16)
WINDOW = dict(use_sliding_window=True, sliding_window=5)

CASES = {
    "gpt2": gpt2(),
    "gpt2_untied_erf": gpt2(tie_word_embeddings=False, activation_function="gelu", n_inner=32),
    "llama_gqa": llama(),
    "llama_mha_tied": llama(num_key_value_heads=4, tie_word_embeddings=True),
    "llama_mqa_bias": llama(num_key_value_heads=1, attention_bias=True, mlp_bias=True),
    "llama_31_gqa": llama(rope_parameters=LLAMA3, head_dim=8),
    "llama_31_gqa_tied": llama(rope_parameters=LLAMA3, tie_word_embeddings=True),
    "llama_linear": llama(rope_parameters=scaled("linear", factor=3.0)),
    "llama_yarn": llama(rope_parameters=YARN),
    "qwen2_gqa_tied": qwen2(tie_word_embeddings=True),
    "qwen2_mha": qwen2(num_key_value_heads=4),
    "qwen2_window": qwen2(max_window_layers=0, **WINDOW),
    "qwen2_window_upper": qwen2(max_window_layers=1, **WINDOW),
    "qwen2_yarn": qwen2(rope_parameters=YARN | dict(beta_fast=16.0, beta_slow=2.0)),
    "qwen3_gqa": qwen3(),
    "qwen3_mha_tied": qwen3(num_key_value_heads=4, tie_word_embeddings=True),
    "qwen3_window_yarn": qwen3(rope_parameters=YARN, max_window_layers=1, **WINDOW),
    "mixtral": mixtral(),
    "mixtral_tied": mixtral(tie_word_embeddings=True, num_experts_per_tok=3),
    "qwen3_moe": qwen3_moe(),
    "qwen3_moe_normed_sparse": qwen3_moe(norm_topk_prob=True, decoder_sparse_step=2,
                                         mlp_only_layers=[0]),
    "deepseek": deepseek(),
    "deepseek_yarn_queries": deepseek(q_lora_rank=None, norm_topk_prob=False, rope_parameters=YARN |
                                      dict(mscale=0.7, mscale_all_dim=1.0)),
}


class Widened(TorchFunctionMode):
    """Answers every request for float32 in float64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        def wide(value):
            return torch.float64 if value is torch.float32 else value

        if func is torch.Tensor.float:
            func = torch.Tensor.double
        return func(*map(wide, args), **{k: wide(v) for k, v in (kwargs or {}).items()})


def build(model, config, dtype):
    torch.set_default_dtype(dtype)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    made = model(config)
    torch.set_default_dtype(torch.float32)
    assert all(x.dtype == dtype for x in [*made.parameters(), *made.buffers()])
    return made.train()


def randomise(model, generator):
    """Weights that keep the variance of activations: no part of the model is near its linear
    regime, and no softmax saturates (where float32 loses more digits than the tolerance)."""
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            is_gain = bool((parameter == 1).all())
            parameter.data.copy_(0.2 * noise + (1.0 if is_gain else 0.0))
        else:
            parameter.data.copy_(noise / parameter.shape[-1] ** 0.5)
    for module in model.modules():
        if isinstance(module, DeepseekV3TopkRouter):
            module.e_score_correction_bias.copy_(
                0.1 * torch.randn(module.num_experts, generator=generator))


# In memory, all experts' matrices are one; files, and our parameters, name each by itself.
def by_expert(name, grad, family):
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        return {name.replace(".mlp.gate.", ".block_sparse_moe.gate.")
                if family == "mixtral" else name: grad}
    base = name.rsplit(".", 1)[0]
    words = ("gate_proj", "up_proj", "down_proj")
    if family == "mixtral":
        base, words = base.replace(".mlp.", ".block_sparse_moe."), ("w1", "w3", "w2")
    result = {}
    for expert, own in enumerate(grad):
        if name.endswith("gate_up_proj"):
            gate, up = own.chunk(2, 0)
            result[f"{base}.{expert}.{words[0]}.weight"] = gate.contiguous()
            result[f"{base}.{expert}.{words[1]}.weight"] = up.contiguous()
        else:
            result[f"{base}.{expert}.{words[2]}.weight"] = own.contiguous()
    return result


def measure(model, tokens, labels, prefix, out):
    result = model(input_ids=tokens, labels=labels, use_cache=False)
    result.loss.backward()
    out[prefix + "logits"] = result.logits.detach().contiguous()
    out[prefix + "loss"] = result.loss.detach()
    for name, parameter in model.named_parameters():
        for own, grad in by_expert(name, parameter.grad, model.config.model_type).items():
            out[prefix + own] = grad


def run(name, model, config, folder):
    generator = torch.Generator().manual_seed(len(name) + sum(map(ord, name)))
    tokens = torch.randint(VOCAB, (BATCH, LENGTH), generator=generator)
    labels = tokens.clone()
    labels[0, 5:8] = -100
    labels[1, 14:] = -100
    narrow = build(model, config, torch.float32)
    randomise(narrow, generator)
    narrow.save_pretrained(folder)

    ours = torch.full_like(labels, -100)
    ours[:, :-1] = labels[:, 1:]
    out = {"tokens": tokens, "labels": ours}
    measure(narrow, tokens, labels, "float32.", out)
    with Widened():
        wide = build(model, config, torch.float64)
        wide.load_state_dict(narrow.state_dict())
        measure(wide, tokens, labels, "float64.", out)
    assert out["float64.logits"].dtype == out["float64.loss"].dtype == torch.float64
    save_file(out, os.path.join(folder, "reference.safetensors"))


ROUTERS = {"mixtral": (MixtralTopKRouter, mixtral), "qwen3_moe": (Qwen3MoeTopKRouter, qwen3_moe),
           "deepseek": (DeepseekV3TopkRouter, deepseek)}


def decided(module, x, chosen):
    """Rows whose last chosen expert beats the first of the others: among scores that are equal to
    the last bit, torch.topk's choice is arbitrary."""
    logits = x @ module.weight.T
    keys = logits.sigmoid() + module.e_score_correction_bias
    groups = keys.view(len(x), module.num_group, -1)
    kept = groups.topk(2, -1)[0].sum(-1).topk(module.topk_group, -1)[1]
    mask = torch.zeros(groups.shape[:2]).scatter_(1, kept, 1).unsqueeze(-1).expand_as(groups)
    keys = keys.masked_fill(mask.reshape(keys.shape) == 0, -1.0)
    others = keys.scatter(1, chosen, -1.0).max(-1)[0]
    return keys.gather(1, chosen).min(-1)[0] > others


def choose(name, router, config, out):
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    module = router(config)
    x = torch.randn((1100, config.hidden_size), generator=generator).bfloat16().float()
    weight = torch.randn(module.weight.shape, generator=generator)
    # Twins but for the last bf16 bit of one entry: near ties in half of the experts.
    weight = weight.bfloat16().float()
    weight[1::2] = weight[0::2]
    weight[1::2, 0] *= 1 + 2 ** -7
    module.weight.data.copy_(weight)
    if name == "deepseek":
        bias = 0.1 * torch.randn(module.num_experts, generator=generator)
        bias[1::2] = bias[0::2]
        module.e_score_correction_bias.copy_(bias)
        out[name + ".bias"] = bias
    chosen = module(x)[2]
    rows = slice(1000)
    if name == "deepseek":
        rows = decided(module, x, chosen).nonzero().flatten()[:1000]
    out[name + ".x"], out[name + ".weight"] = x[rows].contiguous(), weight
    out[name + ".experts"] = chosen[rows].sort(-1)[0].contiguous()
    assert len(out[name + ".x"]) == 1000


def main():
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    root = sys.argv[1]
    for name, (model, config) in CASES.items():
        run(name, model, config, os.path.join(root, name))
    out = {}
    for name, (router, case) in ROUTERS.items():
        choose(name, router, case()[1], out)
    save_file(out, os.path.join(root, "routers.safetensors"))
    with open(os.path.join(root, "cases.json"), "w") as file:
        json.dump(sorted(CASES), file)


if __name__ == "__main__":
    main()
