# SPDX-License-Identifier: Apache-2.0
"""Our safetensors reader beside the Python package's, on files made at random.

    safetensors_differential.py VERDICTS [--count N] [--seed S]

Ours takes a file where the package does and the file has nothing of what a stricter reader refuses
(`stricter_rules`): any other difference fails. Of what both take, tensors are the same.
"""
import argparse
import collections
import json
import struct
import subprocess
import sys
import time

import safetensors

from safetensors_cases import BITS, make_file

BATCH = 10_000
# What ours refuses and the package takes; each must be seen.
STRICTER = ["name twice", "empty name", "control character in a name", "entry as an array",
            "unknown field", "dtype as an object", "shape that overflows in some order",
            "null metadata", "metadata key twice"]
FIELDS = {"dtype", "shape", "data_offsets"}


def repeated(pairs):
    keys = [key for key, _ in pairs]
    return len(set(keys)) < len(keys)


def has_control(name):
    return any(ord(c) < 0x20 or ord(c) == 0x7F for c in name)


def overflows(entry):
    """Whether some order of the dims' product leaves 63 bits, or one dim does."""
    bits = BITS.get(entry["dtype"], 8)
    for dim in entry["shape"]:
        bits *= max(dim, 1)
    return bits >= 2**63 or any(dim >= 2**63 for dim in entry["shape"])


def rules_of_entry(value):
    if isinstance(value, list) and (not value or not isinstance(value[0], tuple)):
        return {"entry as an array"}
    entry = dict(value)
    rules = set()
    if not set(entry) <= FIELDS:
        rules.add("unknown field")
    if not isinstance(entry.get("dtype"), str):
        return rules | {"dtype as an object"}
    if overflows(entry):
        rules.add("shape that overflows in some order")
    return rules


def stricter_rules(file):
    """The listed rules that a file breaks which the package takes: why ours must refuse it."""
    length = struct.unpack("<Q", file[:8])[0]
    # Objects as lists of pairs: repeated keys stay.
    members = json.loads(file[8:8 + length], object_pairs_hook=list)
    rules = set()
    if repeated(members):
        rules.add("name twice")
    for name, value in members:
        if name != "__metadata__":
            if name == "":
                rules.add("empty name")
            if has_control(name):
                rules.add("control character in a name")
            rules |= rules_of_entry(value)
        elif value is None:
            rules.add("null metadata")
        elif repeated(value):
            rules.add("metadata key twice")
    return rules


def reference(file):
    """What the package reads, by name; None where it refuses the file."""
    try:
        return {name: (entry["dtype"], entry["shape"], bytes(entry["data"]))
                for name, entry in safetensors.deserialize(file)}
    except safetensors.SafetensorError:
        return None


def tensors_in(verdict, file):
    """The same of a line that says "taken"."""
    tensors = {}
    for text in verdict.split(" ")[1:]:
        name, dtype, shape, begin, end = text.split("|")
        dims = [int(dim) for dim in shape.split(",") if dim]
        tensors[bytes.fromhex(name).decode()] = (dtype, dims, file[int(begin):int(end)])
    return tensors


def judge(file, verdict):
    """The kind of agreement; AssertionError where there is none."""
    expected = reference(file)
    taken = verdict.startswith("taken")
    if expected is None:
        assert not taken, "the package refuses it"
        return "both refuse"
    rules = stricter_rules(file)
    if rules:
        assert not taken, f"should be refused: {sorted(rules)}"
        return "stricter: " + min(rules)
    assert taken, "the package takes it"
    assert tensors_in(verdict, file) == expected, f"the package reads {expected}"
    return "both take"


def verdicts(program, files):
    packed = b"".join(struct.pack("<I", len(file)) + file for file in files)
    done = subprocess.run([program], input=packed, stdout=subprocess.PIPE, check=True)
    lines = done.stdout.decode(errors="replace").splitlines()
    assert len(lines) == len(files), f"{len(lines)} verdicts of {len(files)} files"
    return lines


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("verdicts")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    kinds = collections.Counter()
    wrong = 0
    began = time.time()
    for first in range(0, options.count, BATCH):
        seeds = [f"{options.seed}/{i}" for i in range(first, min(first + BATCH, options.count))]
        files = [make_file(seed) for seed in seeds]
        for seed, file, verdict in zip(seeds, files, verdicts(options.verdicts, files)):
            try:
                kinds[judge(file, verdict)] += 1
            except AssertionError as error:
                wrong += 1
                print(f"file {seed}: {error}\n  {file!r}\n  ours: {verdict}")
    for kind, count in sorted(kinds.items()):
        print(f"{count:7}  {kind}")
    print(f"{options.count} files in {time.time() - began:.1f} s, {wrong} wrong")
    unseen = [rule for rule in STRICTER if not kinds["stricter: " + rule]]
    few = [kind for kind in ("both take", "both refuse") if kinds[kind] < options.count // 20]
    if unseen or few:
        print(f"too few files: {unseen + few}")
    return 1 if wrong or unseen or few else 0


if __name__ == "__main__":
    sys.exit(main())
