#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of the checkpoint benchmark: torch.distributed.checkpoint over gloo.

The state of bench/checkpoint.cc as DTensors, cut by rows. Rank 0 prints one JSON line: seconds of
every turn by what was done.
"""
import argparse
import json
import os
import shutil
import socket
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

ROWS = COLUMNS = 2048


def state(mib, ranks, mesh, dim):
    """Every third tensor of the same parameter is its weight, the others its moments."""
    shape = [ROWS, COLUMNS]
    shape[dim] //= ranks
    kinds = ("weight", "exp_avg", "exp_avg_sq")
    return {f"{kinds[i % 3]}.w{i // 3:03}": DTensor.from_local(torch.full(shape, float(i)), mesh,
                                                               [Shard(dim)])
            for i in range(mib // (ROWS * COLUMNS * 4 >> 20))}


def forget(folder):
    """So that reads come from the disk."""
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(rank, args, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=args.ranks)
    mesh = init_device_mesh("cpu", (args.ranks,))
    rows, columns = (state(args.mib, args.ranks, mesh, dim) for dim in (0, 1))
    seconds = {}

    def timed(what, action):
        dist.barrier()
        begin = time.perf_counter()
        action()
        dist.barrier()
        seconds.setdefault(what, []).append(time.perf_counter() - begin)

    def writer():
        return dcp.FileSystemWriter(args.folder, sync_files=True)

    def save_async():
        begin = time.perf_counter()
        future = dcp.async_save(rows, storage_writer=writer())
        seconds.setdefault("stall of the asynchronous", []).append(time.perf_counter() - begin)
        future.result()

    def cold(what, into):
        if rank == 0:
            forget(args.folder)
        timed(what, lambda: dcp.load(into, storage_reader=dcp.FileSystemReader(args.folder)))

    for _ in range(args.turns):
        timed("save", lambda: dcp.save(rows, storage_writer=writer()))
        timed("save, asynchronous", save_async)
        cold("load", rows)
        cold("load, other geometry", columns)
    if rank == 0:
        print(json.dumps({"seconds": seconds}))
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default="/tmp/quatrain-bench-checkpoint-torch")
    parser.add_argument("--mib", type=int, default=768)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(measure, (args, port), nprocs=args.ranks)
    shutil.rmtree(args.folder)


if __name__ == "__main__":
    main()
