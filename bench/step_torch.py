#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One PyTorch process of the step benchmark: what a user would otherwise run.

Trains one of the benchmark models on random tokens with fused AdamW and prints one JSON line:
seconds of each measured step, tokens a step and peak resident memory. `--compile` uses
torch.compile. Models are written the plain way, with scaled_dot_product_attention.
"""
import argparse
import json
import resource
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from step_models import MODELS


class RmsNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-6)


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


class Experts(nn.Module):
    """Softmax top-k, a loop over experts."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.router = nn.Linear(c["d"], c["experts"], bias=False)
        self.up = nn.ModuleList(nn.Linear(c["d"], 2 * c["ffn"], bias=False)
                                for _ in range(c["experts"]))
        self.down = nn.ModuleList(nn.Linear(c["ffn"], c["d"], bias=False)
                                  for _ in range(c["experts"]))

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        weights, chosen = self.router(rows).softmax(-1).topk(self.c["top_k"], dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        y = torch.zeros_like(rows)
        for e in range(self.c["experts"]):
            row, place = torch.where(chosen == e)
            gate, up = self.up[e](rows[row]).chunk(2, dim=-1)
            out = self.down[e](F.silu(gate) * up) * weights[row, place, None]
            y = y.index_add(0, row, out)
        return y.view_as(x)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        gpt2 = c["kind"] == "gpt2"
        d, self.hd = c["d"], c["d"] // c["heads"]
        self.heads, self.kv = c["heads"], c["kv"]  # of this process
        norm = (lambda: nn.LayerNorm(d)) if gpt2 else (lambda: RmsNorm(d))
        self.norm1, self.norm2 = norm(), norm()
        self.qkv = nn.Linear(d, (c["heads"] + 2 * c["kv"]) * self.hd, bias=gpt2)
        self.out = nn.Linear(d, d, bias=gpt2)
        self.experts = Experts(c) if c["kind"] == "mixtral" else None
        if self.experts is None:
            self.up = nn.Linear(d, c["ffn"] * (1 if gpt2 else 2), bias=gpt2)
            self.down = nn.Linear(c["ffn"], d, bias=gpt2)

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                              enable_gqa=self.kv != self.heads)

    def forward(self, x, rope):
        qkv = self.qkv(self.norm1(x))
        b, t, _ = qkv.shape
        q, k, v = qkv.split([self.heads * self.hd, self.kv * self.hd, self.kv * self.hd], dim=-1)
        q = q.view(b, t, self.heads, self.hd).transpose(1, 2)
        k = k.view(b, t, self.kv, self.hd).transpose(1, 2)
        v = v.view(b, t, self.kv, self.hd).transpose(1, 2)
        if rope is not None:
            q, k = rotate(q, *rope), rotate(k, *rope)
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).reshape(b, t, -1))
        if self.experts is not None:
            return x + self.experts(self.norm2(x))
        h = self.up(self.norm2(x))
        if self.c["kind"] == "gpt2":
            h = F.gelu(h, approximate="tanh")
        else:
            gate, up = h.chunk(2, dim=-1)
            h = F.silu(gate) * up
        return x + self.down(h)


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed = nn.Embedding(c["vocab"], c["d"])
        self.positions = nn.Embedding(c["seq"], c["d"]) if c["kind"] == "gpt2" else None
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["layers"]))
        self.norm = nn.LayerNorm(c["d"]) if c["kind"] == "gpt2" else RmsNorm(c["d"])
        self.head = nn.Linear(c["d"], c["vocab"], bias=False)
        if c["tied"]:
            self.head.weight = self.embed.weight
        hd = c["d"] // c["heads"]
        angles = torch.outer(torch.arange(c["seq"]).float(),
                             10000.0 ** (-torch.arange(0, hd, 2).float() / hd))
        angles = torch.cat((angles, angles), dim=-1)
        self.rope = None if c["kind"] == "gpt2" else (angles.cos(), angles.sin())
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def position_rows(self, length):
        return self.positions.weight[:length]

    def forward(self, ids, labels):
        x = self.embed(ids)
        if self.positions is not None:
            x = x + self.position_rows(ids.shape[1])
        for block in self.blocks:
            x = block(x, self.rope)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.reshape(-1))


class LibraryModel(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, labels):
        logits = self.model(input_ids=ids, use_cache=False).logits
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.reshape(-1))


def config_of(args):
    c = MODELS[args.model]
    return {**c, "seq": args.seq or c["seq"]}


def library_model(c):
    from transformers import MixtralConfig, MixtralForCausalLM
    config = MixtralConfig(vocab_size=c["vocab"], hidden_size=c["d"], intermediate_size=c["ffn"],
                           num_hidden_layers=c["layers"], num_attention_heads=c["heads"],
                           num_key_value_heads=c["kv"], num_local_experts=c["experts"],
                           num_experts_per_tok=c["top_k"], max_position_embeddings=c["seq"],
                           attn_implementation="sdpa")
    return LibraryModel(MixtralForCausalLM(config)).train()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=0, help="sequences; 0: the model's")
    parser.add_argument("--seq", type=int, default=0, help="tokens of one; 0: the model's")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--library", action="store_true", help="transformers' model; mixtral")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    c = config_of(args)
    model = library_model(c) if args.library else Model(c)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95),
                                  weight_decay=0.1, fused=True)
    step_model = torch.compile(model) if args.compile else model
    batch = args.batch or c["batch"]
    ids = torch.randint(0, c["vocab"], (batch, c["seq"] + 1))
    seconds, losses = [], []
    for step in range(args.warmup + args.steps):
        begin = time.perf_counter()
        loss = step_model(ids[:, :-1], ids[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if step >= args.warmup:
            seconds.append(time.perf_counter() - begin)
    print(json.dumps({"seconds": seconds, "tokens": batch * c["seq"],
                      "losses": [losses[0], losses[-1]],
                      "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


if __name__ == "__main__":
    main()
