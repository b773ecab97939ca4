# SPDX-License-Identifier: Apache-2.0
"""The step benchmark's model with its sequences shared by ranks of PyTorch.

`cp`: keys and values of a layer gathered on every rank (Llama 3, arXiv:2407.21783, section 3.3.2),
by hand, as torch's own does not run on the CPU. Rank r of n holds chunks r and 2n - 1 - r of 2n;
each chunk's queries are attended with the keys up to the chunk's end, so that no rank computes
more than its share. Gradients of keys and values are summed and scattered by the backward of the
gather; DistributedDataParallel takes the mean of parameters' gradients, of equal shares of tokens.

`cp-torch`: torch.distributed.tensor.experimental.context_parallel around the plain model.
"""
import types

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel

from step_torch import Model

CONTEXT_MODES = ("cp", "cp-torch")  # all ranks share each sequence


class Gather(torch.autograd.Function):
    """[...] of a rank -> [ranks, ...] of all; backward: sums of the ranks' gradients, scattered."""

    @staticmethod
    def forward(ctx, own):
        whole = own.new_empty((dist.get_world_size() * own.shape[0], *own.shape[1:]))
        dist.all_gather_into_tensor(whole, own.contiguous())
        return whole.view(-1, *own.shape)

    @staticmethod
    def backward(ctx, grad):
        own = torch.empty_like(grad[0])
        dist.reduce_scatter_tensor(own, grad.flatten(0, 1).contiguous())
        return own


class Share:
    """Which tokens of sequences of `seq` a rank holds, and how its queries see all keys."""

    def __init__(self, seq):
        ranks, rank = dist.get_world_size(), dist.get_rank()
        chunks = torch.arange(seq).chunk(2 * ranks)
        own = [[chunks[r], chunks[2 * ranks - 1 - r]] for r in range(ranks)]
        self.chunks = own[rank]
        self.positions = torch.cat(own[rank])
        self.order = torch.argsort(torch.cat([part for parts in own for part in parts]))
        self.masks = [part[:, None] >= torch.arange(int(part[-1]) + 1) for part in self.chunks]

    def attend(self, block, q, k, v):
        kv = Gather.apply(torch.stack((k, v)))  # [ranks, 2, batch, heads, tokens, width]
        k, v = kv.permute(1, 2, 3, 0, 4, 5).flatten(3, 4)[..., self.order, :]
        parts = []
        for part, mask in zip(q.split([len(c) for c in self.chunks], dim=2), self.masks):
            seen = mask.shape[1]
            parts.append(F.scaled_dot_product_attention(part, k[:, :, :seen], v[:, :, :seen], mask,
                                                        enable_gqa=block.kv != block.heads))
        return torch.cat(parts, dim=2)


class ContextModel(Model):
    def __init__(self, c):
        super().__init__(c)
        self.share = Share(c["seq"])
        if self.rope is not None:
            self.rope = tuple(table[self.share.positions] for table in self.rope)
        for block in self.blocks:
            block.attend = types.MethodType(
                lambda block, q, k, v: self.share.attend(block, q, k, v), block)

    def position_rows(self, length):
        return self.positions.weight[self.share.positions]

    def forward(self, ids, labels):
        return super().forward(ids[:, self.share.positions], labels[:, self.share.positions])


class TorchContextModel(Model):
    def forward(self, ids, labels):
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        ids, labels = ids.clone(), labels.clone()
        with context_parallel(mesh, buffers=[ids, labels], buffer_seq_dims=[1, 1]):
            return super().forward(ids, labels)
