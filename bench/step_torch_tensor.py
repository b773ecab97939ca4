# SPDX-License-Identifier: Apache-2.0
"""The step benchmark's model under PyTorch's tensor parallelism: `tp`, and `tp-sp` with sequence
parallelism, by parallelize_module and loss_parallel.

One column-parallel product makes q, k and v and one makes gate and up, as in one process; their
rows are dealt so that each rank's are whole heads. So a block has two all_gathers and two
reduce_scatters a direction, or two all_reduces. Embedding, head and loss are cut by words.

Tried to make it faster: a residual stream of rows [batch x length, width], cut along its first
dimension so that gathering copies nothing twice (the same, and not how models are written);
glibc's malloc told to keep large blocks, as jemalloc would (a seventh faster: step.py inherits the
variables, see docs/performance.md).
"""
import contextlib

import torch
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel, SequenceParallel,
                                               loss_parallel, parallelize_module)

from step_torch import Model


class ShardedPositions(Model):
    """The residual stream holds a piece of each sequence, so the learned positions do as well."""

    def position_rows(self, length):
        return self.positions.weight.redistribute(placements=[Shard(0)]).to_local()


def deal_rows(linear, sections, ranks):
    """Orders the rows of fused matrices by rank: each rank's part of every section, side by side.
    The rows stay the same, so the model computes the same."""
    for p in linear.parameters():
        parts = [section.chunk(ranks) for section in p.data.split(sections)]
        p.data = torch.cat([part[r] for r in range(ranks) for part in parts])


def shard_block(block, mesh, stream, norm):
    """`stream`: how the residual stream lies."""
    c, ranks = block.c, mesh.size()
    deal_rows(block.qkv, [c["heads"] * block.hd, c["kv"] * block.hd, c["kv"] * block.hd], ranks)
    if c["kind"] != "gpt2":
        deal_rows(block.up, [c["ffn"], c["ffn"]], ranks)
    block.heads, block.kv = c["heads"] // ranks, c["kv"] // ranks
    plan = {name: ColwiseParallel(input_layouts=stream) for name in ("qkv", "up")}
    plan |= {name: RowwiseParallel(output_layouts=stream) for name in ("out", "down")}
    parallelize_module(block, mesh, plan | norm("norm1") | norm("norm2"))


def shard_model(c, ranks, sequence_parallel):
    model = (ShardedPositions if sequence_parallel else Model)(c)
    mesh = init_device_mesh("cpu", (ranks,))
    stream = Shard(1) if sequence_parallel else Replicate()
    norm = lambda name: {name: SequenceParallel()} if sequence_parallel else {}
    for block in model.blocks:
        shard_block(block, mesh, stream, norm)
    parallelize_module(model, mesh, {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
        "head": ColwiseParallel(input_layouts=stream, output_layouts=Shard(-1),
                                use_local_output=False)} | norm("norm"))
    if c["tied"]:
        model.head.weight = model.embed.weight
    if sequence_parallel and model.positions is not None:
        whole = distribute_tensor(model.positions.weight.data, mesh, [Replicate()])
        model.positions.weight = nn.Parameter(whole)
    return model


def parameter_groups(model):
    """A fused update takes tensors of one kind."""
    parameters = list(model.parameters())
    groups = [[p for p in parameters if isinstance(p, DTensor) == sharded]
              for sharded in (True, False)]
    return [{"params": group} for group in groups if group]


def loss_context(mode):
    return loss_parallel() if mode.startswith("tp") else contextlib.nullcontext()
