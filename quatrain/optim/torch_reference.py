# SPDX-License-Identifier: Apache-2.0
"""Runs torch.optim on the numbers of optimizer_test.cc: 20 steps, clipping, decay groups, schedule.

usage: torch_reference.py FOLDER. Reads FOLDER/case.txt (one case a line: name and key=value pairs,
then sizes) and FOLDER/input.f64 (initial values, then the gradients of each step); writes
FOLDER/<name>.f64: the pre-clip norm of each step, then the final values.
"""
import sys
from pathlib import Path

import numpy
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

STEPS, WARMUP, TOTAL, MIN_FACTOR = 20, 5, 20, 0.1


def schedule(optimizer, lr):
    warmup = LinearLR(optimizer, start_factor=1 / WARMUP, total_iters=WARMUP - 1)
    cosine = CosineAnnealingLR(optimizer, T_max=TOTAL - WARMUP, eta_min=MIN_FACTOR * lr)
    return SequentialLR(optimizer, [warmup, cosine], milestones=[WARMUP - 1])


def make_optimizer(options, groups):
    lr = float(options["lr"])
    if options["kind"] == "adamw":
        betas = (float(options["beta1"]), float(options["beta2"]))
        return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=float(options["eps"]))
    return torch.optim.SGD(groups, lr=lr, momentum=float(options["momentum"]),
                           nesterov=options["nesterov"] == "1")


def run(options, sizes, decays, numbers):
    total = sum(sizes)
    split = lambda step: torch.split(numbers[step * total:(step + 1) * total], sizes)
    params = [torch.nn.Parameter(p.clone()) for p in split(0)]
    weight_decay = float(options["weight_decay"])
    groups = [{"params": [p], "weight_decay": weight_decay if d else 0.0}
              for p, d in zip(params, decays)]
    optimizer = make_optimizer(options, groups)
    rate = schedule(optimizer, float(options["lr"]))
    norms = []
    for step in range(1, STEPS + 1):
        for param, grad in zip(params, split(step)):
            param.grad = grad.clone()
        norm = torch.nn.utils.clip_grad_norm_(params, float(options["max_norm"]))
        norms.append(norm.item())
        optimizer.step()
        rate.step()
    return torch.cat([torch.tensor(norms, dtype=torch.float64)] + [p.detach() for p in params])


def main():
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    lines = (folder / "case.txt").read_text().splitlines()
    sizes = [int(x) for x in lines[0].split()]
    decays = [x == "1" for x in lines[1].split()]
    numbers = torch.from_numpy(numpy.fromfile(folder / "input.f64"))
    for line in lines[2:]:
        name, *pairs = line.split()
        options = dict(pair.split("=") for pair in pairs)
        run(options, sizes, decays, numbers).numpy().tofile(folder / (name + ".f64"))


main()
