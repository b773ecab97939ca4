#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of the pipeline benchmark: torch.distributed.pipelining, one process a rank, gloo,
eager, AdamW. The model of step_torch.py is cut into stages, the first of which embeds and the last
of which makes logits; `--layers-per-stage` deals the blocks. Prints one JSON line as
step_torch_ranks.py does. `--check` then trains in one process and fails unless the losses of every
step agree to 1e-4: on the same seed, they are also step_torch.py's of the whole batch.

Losses are means of a micro-batch divided by their number, so PyTorch need not divide gradients
after a step. Tied embeddings stay tied: where the ends are on two ranks, each keeps a copy and
their gradients are summed before the update; where they are on one rank, they are one parameter.

What runs on CPU and gloo with two ranks and m micro-batches (torch 2.13), all to the right losses:
    gpipe             any m
    1f1b              m >= 2; refused below
    interleaved-1f1b  m = 1, 3 or even; refused for 5, 7, ...: m // 2 rounds have to divide m
    interleaved-zb1p  the same m
    zb-v              any m; two stages a rank
Stages are eager: schedules with split backward refuse torch.compile. Their first stage computes its
whole backward as W, as tokens have no gradient.
"""
import argparse
import datetime
import json
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (Schedule1F1B, ScheduleGPipe,
                                                    ScheduleInterleaved1F1B,
                                                    ScheduleInterleavedZeroBubble,
                                                    ScheduleZBVZeroBubble)

from step_models import MODELS
from step_torch import Model
from step_torch_ranks import ADAMW, check_losses, free_port, peak_over_ranks

# By Quatrain's names.
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B,
             "interleaved-1f1b": ScheduleInterleaved1F1B,
             "interleaved-zb1p": ScheduleInterleavedZeroBubble, "zb-v": ScheduleZBVZeroBubble}
SINGLE = ("gpipe", "1f1b")  # one stage a rank


class Stage(nn.Module):
    def __init__(self, model, blocks, is_first, is_last):
        super().__init__()
        self.embed = model.embed if is_first else None
        self.positions = model.positions if is_first else None
        self.blocks = nn.ModuleList(blocks)
        self.norm = model.norm if is_last else None
        self.head = model.head if is_last else None
        self.rope = model.rope

    def forward(self, x):
        """Tokens [batch, length] or the residual stream, to that or to logits."""
        if self.embed is not None:
            x = self.embed(x)
        if self.positions is not None:
            x = x + self.positions.weight[:x.shape[1]]
        for block in self.blocks:
            x = block(x, self.rope)
        return x if self.head is None else self.head(self.norm(x))


class Pipeline:
    """This rank's stages of `model`, and the schedule that they run under."""

    def __init__(self, model, args):
        self.stages = len(args.layers_per_stage)
        modules = {s: stage for s, stage in enumerate(cut(model, args.layers_per_stage))
                   if self.rank_of(s, args) == dist.get_rank()}
        self.parameters = list(nn.ModuleList(modules.values()).parameters())
        self.embeds, self.has_loss = 0 in modules, self.stages - 1 in modules
        ends = [self.rank_of(s, args) for s in (0, self.stages - 1)]
        self.loss_rank = ends[1]
        self.ends, self.tied = None, None
        if model.c["tied"] and ends[0] != ends[1]:
            self.ends = dist.new_group(ends)
            self.tied = model.embed.weight if dist.get_rank() in ends else None
        own = [PipelineStage(module, s, self.stages, torch.device("cpu"))
               for s, module in modules.items()]
        loss = lambda logits, labels: F.cross_entropy(
            logits.flatten(0, 1), labels.flatten()) / args.microbatches
        self.schedule = SCHEDULES[args.schedule](own[0] if args.schedule in SINGLE else own,
                                                 args.microbatches, loss_fn=loss,
                                                 scale_grads=False)

    def rank_of(self, stage, args):
        if args.schedule == "zb-v":
            return min(stage, self.stages - 1 - stage)
        return stage % args.ranks

    def step(self, ids):
        """Adds to gradients; the loss where the last stage is, 0 elsewhere."""
        inputs = [ids[:, :-1]] if self.embeds else []
        losses = []
        self.schedule.step(*inputs, target=ids[:, 1:] if self.has_loss else None,
                           losses=losses if self.has_loss else None, return_outputs=False)
        if self.tied is not None:
            dist.all_reduce(self.tied.grad, group=self.ends)
        return sum(loss.item() for loss in losses)


def cut(model, layers_per_stage):
    blocks = iter(model.blocks)
    last = len(layers_per_stage) - 1
    return [Stage(model, [next(blocks) for _ in range(count)], s == 0, s == last)
            for s, count in enumerate(layers_per_stage)]


def train_steps(pipeline, optimizer, ids, args):
    seconds, losses = [], []
    for _ in range(args.warmup + args.steps):
        begin = time.perf_counter()
        losses.append(pipeline.step(ids))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - begin)
    return seconds[args.warmup:], losses


def train(args):
    c = MODELS[args.model]
    batch = (args.batch or c["batch"]) * args.microbatches
    torch.manual_seed(0)
    pipeline = Pipeline(Model(c), args)
    ids = torch.randint(0, c["vocab"], (batch, c["seq"] + 1))
    optimizer = torch.optim.AdamW(pipeline.parameters, **ADAMW)
    seconds, losses = train_steps(pipeline, optimizer, ids, args)
    if args.check and pipeline.has_loss:
        check_losses(c, ids, args, losses)
    ends = torch.tensor([losses[0], losses[-1]], dtype=torch.float64)
    dist.broadcast(ends, pipeline.loss_rank)
    return {"seconds": seconds, "tokens": batch * c["seq"], "losses": ends.tolist(),
            "peak_bytes": peak_over_ranks()}


def rank_main(rank, port, args):
    torch.set_num_threads(args.threads)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
                            world_size=args.ranks, timeout=datetime.timedelta(seconds=120))
    result = train(args)
    if rank == 0:
        print(json.dumps(result), flush=True)
    dist.barrier()  # a rank that ends while a peer still receives fails that peer
    dist.destroy_process_group()


def counts(text):
    return [int(count) for count in text.split(",")]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--schedule", choices=SCHEDULES, required=True)
    parser.add_argument("--layers-per-stage", type=counts, required=True, help="as 2,2,1,1")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--batch", type=int, default=0,
                        help="sequences a micro-batch; 0: the model's")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each rank")
    parser.add_argument("--check", action="store_true", help="losses against one process")
    parser.set_defaults(mode="pp")
    args = parser.parse_args()
    layers, stages = MODELS[args.model]["layers"], len(args.layers_per_stage)
    if sum(args.layers_per_stage) != layers:
        parser.error(f"--layers-per-stage: {args.model} has {layers} blocks")
    if stages % args.ranks or (args.schedule in SINGLE and stages != args.ranks):
        parser.error(f"--layers-per-stage: {stages} stages on {args.ranks} ranks")
    return args


def main():
    args = parse_arguments()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.multiprocessing.spawn(rank_main, (free_port(), args), args.ranks)


if __name__ == "__main__":
    main()
