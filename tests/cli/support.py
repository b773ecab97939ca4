# SPDX-License-Identifier: Apache-2.0
"""What the tests of the command share: running it, tiny configurations and data, damaged files.

Standard library only. The command's path is in the environment variable QUATRAIN.
"""
import json
import os
import shutil
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path

COMMAND = os.environ.get("QUATRAIN", "build/quatrain")
# Runs "-n <ranks> <command>" on this host; empty in a build without MPI.
MPIRUN = os.environ.get("QUATRAIN_MPIRUN", "").split()
TEXT = "Sing, O goddess, the anger of Achilles son of Peleus. " * 60
EOD = 256  # of the byte tokenizer

CONFIG = """\
[run]
name = "tiny"
seed = 7
threads = 1

[model]
model_type = "llama"
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
intermediate_size = 64
vocab_size = 257
max_position_embeddings = 64
tie_word_embeddings = true

[data]
train = [{ path = "train.idx", weight = 1.0 }]
validation = [{ path = "held.idx", weight = 1.0 }]
tokenizer = "bytes"

[training]
steps = 6
seq_len = 32
micro_batch = 2
global_batch = 4

[optimizer]
lr = 1e-2

[lr_schedule]
type = "cosine"
warmup_steps = 1

[metrics]
log_every = 2
sample_prompt = "Sing"
sample_tokens = 8
"""


def write_megatron(prefix, documents):
    """Megatron's .idx and .bin (16 bit) of lists of ids, made here by hand."""
    lengths = [len(ids) for ids in documents]
    begins = [2 * sum(lengths[:i]) for i in range(len(lengths))]
    with open(f"{prefix}.bin", "wb") as out:
        for ids in documents:
            out.write(struct.pack(f"<{len(ids)}H", *ids))
    with open(f"{prefix}.idx", "wb") as out:
        out.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1))
        out.write(struct.pack(f"<{len(lengths)}i", *lengths))
        out.write(struct.pack(f"<{len(begins)}q", *begins))
        out.write(struct.pack(f"<{len(lengths) + 1}q", *range(len(lengths) + 1)))


def ids_of(text):
    return list(text.encode()) + [EOD]


def read_metrics(folder):
    lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def column(folder, key):
    return [line[key] for line in read_metrics(folder)]


def snapshot(folder):
    """Every file below a folder with its bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


class CommandTest(unittest.TestCase):
    """A temporary folder with tiny data and a configuration, one for all tests of a class."""

    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="quatrain-cli-"))
        write_megatron(cls.folder / "train", [ids_of(TEXT)])
        # 7 sequences of 32, the last one short.
        write_megatron(cls.folder / "held", [ids_of(TEXT[:90]), ids_of(TEXT[7:120])])
        (cls.folder / "tiny.toml").write_text(CONFIG)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    @classmethod
    def start(cls, *arguments, launcher=(), **options):
        done = subprocess.run([*map(str, launcher), COMMAND, *map(str, arguments)], cwd=cls.folder,
                              capture_output=True, timeout=120, **options)
        # Not text=True, which would hide carriage returns; what is no UTF-8 fails here.
        done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
        return done

    def run_command(self, *arguments, code=0, **options):
        """Runs it and checks the exit code, and that no failure looks like a crash."""
        done = self.start(*arguments, **options)
        said = f"\nquatrain {' '.join(map(str, arguments))}\n{done.stdout}\n{done.stderr}"
        self.assertEqual(done.returncode, code, said)
        for crash in ("terminate called", "internal error", "core dumped", "what():"):
            self.assertNotIn(crash, done.stderr, said)
        return done

    def run_json(self, *arguments):
        """The one document on stdout."""
        return json.loads(self.run_command(*arguments, "--json").stdout)

    def refuse(self, *arguments, code, says, writes_nothing=True, **options):
        """Runs it, expects a failure that says each of `says`, and an unchanged folder."""
        before = snapshot(self.folder)
        done = self.run_command(*arguments, code=code, **options)
        for text in says:
            self.assertIn(text, done.stderr)
        if writes_nothing:
            self.assertEqual(before.keys(), snapshot(self.folder).keys())
            self.assertEqual(before, snapshot(self.folder))
        return done


def main():
    unittest.main(verbosity=1)
