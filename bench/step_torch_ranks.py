#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of the step benchmark on many ranks: one process a rank, gloo, eager, AdamW.

Modes: `ddp` (DistributedDataParallel), `zero1` (the same with ZeroRedundancyOptimizer), `fsdp`
(FSDP2, each block resharded after its forward), `fsdp-keep` (values kept until the backward), `tp`
and `tp-sp` (step_torch_tensor.py), `cp` and `cp-torch` (step_torch_context.py). Every rank trains
on its own random tokens, under tensor and context parallelism all on the same. Rank 0 prints one
JSON line, as step_torch.py, with the peak resident bytes of the fullest rank and the mean loss of
the first and the last step. `--check` then trains in one process and fails unless the losses of
every step agree.
"""
import argparse
import datetime
import json
import os
import resource
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from step_models import MODELS
from step_torch import Model, config_of
from step_torch_context import CONTEXT_MODES, ContextModel, TorchContextModel
from step_torch_tensor import loss_context, parameter_groups, shard_model

ADAMW = dict(lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
TENSOR_MODES = ("tp", "tp-sp")  # all ranks share each matrix


def parallel(c, args):
    """The model and optimizer as a user of the mode makes them."""
    mode = args.mode
    if mode in TENSOR_MODES:
        model = shard_model(c, args.ranks, sequence_parallel=mode == "tp-sp")
        return model, torch.optim.AdamW(parameter_groups(model), **ADAMW)
    if mode in CONTEXT_MODES:
        model = ContextModel(c) if mode == "cp" else TorchContextModel(c)
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        return model, torch.optim.AdamW(model.parameters(), **ADAMW)
    model = Model(c)
    if mode in ("ddp", "zero1"):
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        if mode == "zero1":
            return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **ADAMW)
    else:
        for block in model.blocks:
            fully_shard(block, reshard_after_forward=mode == "fsdp")
        # Tied weights are one unit with the root, which keeps its values: FSDP2's default.
        fully_shard(model, reshard_after_forward=False)
    return model, torch.optim.AdamW(model.parameters(), **ADAMW)


def mean_over_ranks(value):
    x = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(x)
    return x.item() / dist.get_world_size()


def peak_over_ranks():
    x = torch.tensor([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024])
    dist.all_reduce(x, dist.ReduceOp.MAX)
    return int(x.item())


def train_steps(model, optimizer, ids, args):
    seconds, losses = [], []
    for _ in range(args.warmup + args.steps):
        begin = time.perf_counter()
        with loss_context(args.mode):
            loss = model(ids[:, :-1], ids[:, 1:])
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    return seconds[args.warmup:], losses


def train(rank, args):
    c = config_of(args)
    batch = args.batch or c["batch"]
    shares = args.mode in TENSOR_MODES + CONTEXT_MODES
    ids = torch.randint(0, c["vocab"], (batch, c["seq"] + 1),
                        generator=torch.Generator().manual_seed(0 if shares else rank))
    torch.manual_seed(0)
    model, optimizer = parallel(c, args)
    seconds, losses = train_steps(model, optimizer, ids, args)
    if args.check:
        check_losses(c, ids, args, losses)
    return {"seconds": seconds, "tokens": batch * c["seq"] * (1 if shares else args.ranks),
            "losses": [mean_over_ranks(losses[0]), mean_over_ranks(losses[-1])],
            "peak_bytes": peak_over_ranks()}


def check_losses(c, ids, args, losses):
    """Where ranks share a batch: one process trains to the same losses."""
    torch.manual_seed(0)
    model = Model(c)
    _, expected = train_steps(model, torch.optim.AdamW(model.parameters(), **ADAMW), ids, args)
    for step, (own, other) in enumerate(zip(map(mean_over_ranks, losses), expected)):
        if abs(own - other) > 1e-4 * other:
            raise SystemExit(f"step {step}: loss {own}, in one process {other}")


def rank_main(rank, port, args):
    torch.set_num_threads(args.threads)
    store = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=args.ranks,
                            timeout=datetime.timedelta(seconds=120))
    result = train(rank, args)
    if rank == 0:
        print(json.dumps(result), flush=True)
    dist.barrier()  # a rank that ends while a peer still receives fails that peer
    dist.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--mode", required=True,
                        choices=["ddp", "zero1", "fsdp", "fsdp-keep", *TENSOR_MODES,
                                 *CONTEXT_MODES])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=0, help="sequences a rank; 0: the model's")
    parser.add_argument("--seq", type=int, default=0, help="tokens of one; 0: the model's")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each rank")
    parser.add_argument("--check", action="store_true", help="losses, where ranks share a batch")
    args = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.multiprocessing.spawn(rank_main, (free_port(), args), args.ranks)


if __name__ == "__main__":
    main()
