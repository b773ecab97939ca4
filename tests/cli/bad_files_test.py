# SPDX-License-Identifier: Apache-2.0
"""Damaged or truncated files: exit 65, the file named, nothing written."""
import json
import shutil
import struct

from support import CONFIG, EOD, TEXT, CommandTest, ids_of, main, read_metrics, write_megatron


def damaged_safetensors(good):
    """name -> bytes, each broken in its own way."""
    length = struct.unpack("<Q", good[:8])[0]
    header, data = json.loads(good[8:8 + length]), good[8 + length:]

    def built(change):
        changed = json.loads(json.dumps(header))
        change(changed)
        text = json.dumps(changed).encode()
        return struct.pack("<Q", len(text)) + text + data

    name = sorted(key for key in header if key != "__metadata__")[0]

    def shape(h):
        h[name]["shape"] = h[name]["shape"][::-1] + [1]

    def dtype(h):
        h[name]["dtype"] = "F33"

    def hole(h):
        h[name]["data_offsets"][1] += 4

    def missing_tensor_name(h):
        h["no.such.weight"] = h.pop(name)

    return {
        "empty": b"",
        "seven_bytes": good[:7],
        "half_header": good[:8 + length // 2],
        "half_data": good[:len(good) - len(data) // 2],
        "one_byte_short": good[:-1],
        "one_byte_more": good + b"\0",
        "huge_header": struct.pack("<Q", 1 << 60) + good[8:],
        "no_json": good[:8] + b"}" + good[9:],
        "shape": built(shape),
        "dtype": built(dtype),
        "offsets": built(hole),
        "name": built(missing_tensor_name),
    }


class DamagedWeights(CommandTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        done = cls.start("train", "tiny.toml", "training.steps=1")
        assert done.returncode == 0, done.stderr
        shutil.copytree(cls.folder / "runs/tiny/weights", cls.folder / "hf")
        cls.good = (cls.folder / "hf/model.safetensors").read_bytes()

    def test_safetensors(self):
        for i, (name, content) in enumerate(damaged_safetensors(self.good).items()):
            (self.folder / "hf/model.safetensors").write_bytes(content)
            commands = [["generate", "--from", "hf", "--prompt", "a"],
                        ["eval", "tiny.toml", "model.weights=hf"],
                        ["train", "tiny.toml", "model.weights=hf", "run.folder=runs/new"]]
            with self.subTest(name):
                self.refuse(*commands[i % 3], code=65, says=["hf"])
        (self.folder / "hf/model.safetensors").write_bytes(self.good)
        self.run_command("generate", "--from", "hf", "--prompt", "a", "--tokens", "1")

    def test_config_json(self):
        path = self.folder / "hf/config.json"
        good = path.read_text()
        path.write_text(good[:len(good) // 2])
        self.addCleanup(path.write_text, good)  # a configuration: exit 2, as a TOML file's
        self.refuse("generate", "--from", "hf", "--prompt", "a", code=2, says=["hf/config.json"])

    def test_tokenizer_json(self):
        path = self.folder / "hf/tokenizer.json"
        good = path.read_text()
        broken = json.loads(good)
        del broken["model"]["vocab"]
        self.addCleanup(path.write_text, good)
        for name, content in [("empty", ""), ("half", good[:len(good) // 2]),
                              ("no_vocab", json.dumps(broken)), ("list", "[]")]:
            with self.subTest(name):
                path.write_text(content)
                self.refuse("generate", "--from", "hf", "--prompt", "a", code=65,
                            says=["hf/tokenizer.json"])
                self.refuse("train", "tiny.toml", "data.tokenizer=hf", "run.folder=runs/new",
                            code=65, says=["hf/tokenizer.json"])


class DamagedTokens(CommandTest):
    def variants(self):
        idx = (self.folder / "train.idx").read_bytes()
        binary = (self.folder / "train.bin").read_bytes()
        wide = bytearray(idx)
        wide[17] = 4  # case 113: 32 bit, while the file holds 16
        return {
            "idx_empty": (b"", binary),
            "idx_truncated": (idx[:-5], binary),
            "idx_magic": (b"XXIDIDX" + idx[7:], binary),
            "idx_version": (idx[:9] + struct.pack("<Q", 9) + idx[17:], binary),
            "idx_dtype": (idx[:17] + b"\x63" + idx[18:], binary),
            "idx_count": (idx[:18] + struct.pack("<Q", 1 << 50) + idx[26:], binary),
            "idx_garbage_after": (idx + b"garbage!", binary),
            "bin_truncated": (idx, binary[:-4]),
            "bin_empty": (idx, b""),
            "case_113_width": (bytes(wide), binary),
        }

    def test_megatron(self):
        for i, (name, (idx, binary)) in enumerate(self.variants().items()):
            (self.folder / "bad.idx").write_bytes(idx)
            (self.folder / "bad.bin").write_bytes(binary)
            commands = [["train", "tiny.toml", 'data.train=[{ path = "bad.idx" }]'],
                        ["data", "inspect", "bad.idx"],
                        ["train", "tiny.toml", 'data.validation=[{ path = "bad.idx" }]']]
            with self.subTest(name):
                self.refuse(*commands[i % 3], code=65, says=["bad."])

    def test_bin_missing(self):
        write_megatron(self.folder / "lone", [ids_of("abc")])
        (self.folder / "lone.bin").unlink()
        done = self.start("data", "inspect", "lone.idx")
        self.assertIn(done.returncode, (2, 65))
        self.assertIn("lone.bin", done.stderr)

    def test_case_122_id_beyond_the_vocabulary(self):
        for wrong in (257, 319, 65535):  # V, the last of a padded vocabulary, the largest
            with self.subTest(wrong):
                ids = ids_of(TEXT)
                ids[1234] = wrong
                write_megatron(self.folder / "beyond", [ids])
                for key in ("train", "validation"):
                    self.refuse("train", "tiny.toml", f'data.{key}=[{{ path = "beyond.idx" }}]',
                                code=65, says=["beyond", "1234", str(wrong), "257"])

    def test_llmc_and_nanogpt(self):
        ids = struct.pack("<2000H", *(ids_of(TEXT)[:2000]))
        header = struct.pack("<256i", 20240520, 1, 2000, *[0] * 253)
        for name, content in {
            "magic": struct.pack("<256i", 1, 1, 2000, *[0] * 253) + ids,
            "version": struct.pack("<256i", 20240520, 9, 2000, *[0] * 253) + ids,
            "truncated": header + ids[:-6],
            "header_only": header[:100],
        }.items():
            (self.folder / "c.bin").write_bytes(content)
            with self.subTest(name):
                self.refuse("train", "tiny.toml", 'data.train=[{ path = "c.bin" }]',
                            "data.format=llmc", code=65, says=["c.bin"])
        (self.folder / "odd.bin").write_bytes(ids[:-1])
        self.refuse("train", "tiny.toml", 'data.train=[{ path = "odd.bin" }]',
                    "data.format=nanogpt", code=65, says=["odd.bin"])

    def test_fewer_tokens_than_one_sequence(self):
        write_megatron(self.folder / "short", [[1, 2, 3, EOD]])
        self.run_command("train", "tiny.toml", 'data.train=[{ path = "short.idx" }]',
                         "run.folder=runs/short")
        for line in read_metrics(self.folder / "runs/short"):
            self.assertEqual(line["trained_tokens"], 4 * 3)  # the rest is masked


class DamagedText(CommandTest):
    def test_jsonl(self):
        (self.folder / "bad.jsonl").write_text('{"text": "good"}\n{"text": "cut\n')
        self.refuse("data", "tokenize", "bad.jsonl", "--tokenizer", "bytes", "--out", "x",
                    code=65, says=["bad.jsonl:2"])
        (self.folder / "bad.jsonl").write_text('{"text": "good"}\n{"text": 7}\n')
        self.refuse("data", "tokenize", "bad.jsonl", "--tokenizer", "bytes", "--out", "x",
                    code=65, says=["bad.jsonl:2", "7"])

    def test_sentencepiece(self):
        (self.folder / "a.txt").write_text("text")
        (self.folder / "bad.model").write_bytes(b"\x0a\x0fnot a model at all")
        self.refuse("data", "tokenize", "a.txt", "--tokenizer", "bad.model", "--out", "x",
                    code=65, says=["bad.model"])

    def test_configuration_is_not_bad_data(self):
        self.assertIn("train.idx", CONFIG)  # the tests above replace what is there
        self.run_command("train", "tiny.toml", "--dry-run")


if __name__ == "__main__":
    main()
