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
        self.up = nn.Linear(d, c["ffn"] * (1 if gpt2 else 2), bias=gpt2)
        self.down = nn.Linear(c["ffn"], d, bias=gpt2)

    def forward(self, x, rope):
        qkv = self.qkv(self.norm1(x))
        b, t, _ = qkv.shape
        q, k, v = qkv.split([self.heads * self.hd, self.kv * self.hd, self.kv * self.hd], dim=-1)
        q = q.view(b, t, self.heads, self.hd).transpose(1, 2)
        k = k.view(b, t, self.kv, self.hd).transpose(1, 2)
        v = v.view(b, t, self.kv, self.hd).transpose(1, 2)
        if rope is not None:
            q, k = rotate(q, *rope), rotate(k, *rope)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                           enable_gqa=self.kv != self.heads)
        x = x + self.out(o.transpose(1, 2).reshape(b, t, -1))
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=0, help="sequences; 0: the model's")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    c = MODELS[args.model]
    model = Model(c)
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
