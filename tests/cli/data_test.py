# SPDX-License-Identifier: Apache-2.0
"""quatrain data: text into token files, facts about them, a tokenizer trained on text."""
import json
import struct

from support import CommandTest, EOD, ids_of, main, snapshot, write_megatron


class Tokenize(CommandTest):
    def tokenize(self, *inputs, out="out", more=()):
        return self.run_json("data", "tokenize", *inputs, "--tokenizer", "bytes", "--out", out,
                             *more)

    def ids(self, out="out"):
        data = (self.folder / f"{out}.bin").read_bytes()
        return list(struct.unpack(f"<{len(data) // 2}H", data))

    def facts(self, out="out", *more):
        return self.run_json("data", "inspect", out + ".idx", "--eod", EOD, *more)

    def test_text_and_facts(self):
        (self.folder / "a.txt").write_text("héllo\n")
        report = self.tokenize("a.txt")
        self.assertEqual(report, {"documents": 1, "tokens": 8, "skipped": 0, "out": "out"})
        self.assertEqual(self.ids(), ids_of("héllo\n"))
        self.assertEqual(self.facts(), {"format": "megatron", "tokens": 8, "documents": 1,
                                        "max_id": EOD, "eod_count": 1, "dtype": "u16"})

    def test_equals_a_file_made_by_hand(self):
        (self.folder / "b.jsonl").write_text('{"text": "one"}\n{"text": "two two"}\n')
        self.tokenize("b.jsonl", out="made")
        write_megatron(self.folder / "hand", [ids_of("one"), ids_of("two two")])
        self.assertEqual(self.ids("made"), self.ids("hand"))
        self.assertEqual(self.facts("made"), self.facts("hand"))

    def test_folders_and_threads(self):
        for name in ("z", "a", "sub/m"):
            path = self.folder / "many" / f"{name}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"text of {name}\n" * 3)
        files = []
        for threads in (1, 2, 4):
            self.tokenize("many", out=f"t{threads}", more=("--threads", str(threads)))
            files.append([(self.folder / f"t{threads}{end}").read_bytes()
                          for end in (".idx", ".bin")])
        self.assertEqual(files[0], files[1])
        self.assertEqual(files[0], files[2])
        self.assertEqual(self.facts("t1")["documents"], 3)

    def test_case_110_nothing_in_a_document(self):
        good, bad = '{"text": "good"}', ['{"text": ""}', '{"text": " \\n\\t "}', "{}",
                                         '{"text": null}']
        for name, lines in {"start": bad + [good], "middle": [good, *bad, good],
                            "end": [good, *bad]}.items():
            with self.subTest(name):
                (self.folder / "c.jsonl").write_text("\n".join(lines) + "\n")
                report = self.tokenize("c.jsonl")
                self.assertEqual(report["skipped"], 4)
                self.assertEqual(report["documents"], lines.count(good))
                self.assertEqual(self.ids(), ids_of("good") * lines.count(good))
                self.assertEqual(self.facts()["documents"], lines.count(good))
        (self.folder / "c.jsonl").write_text("\n".join(bad) + "\n")
        done = self.start("data", "tokenize", "c.jsonl", "--tokenizer", "bytes", "--out", "none")
        self.assertIn(done.returncode, (0, 2, 65), done.stderr)
        self.assertIn("2 empty", done.stdout + done.stderr)

    def test_case_115_byte_order_mark_and_crlf(self):
        plain = '{"text": "good"}\n{"text": "more"}\n'
        (self.folder / "plain.jsonl").write_text(plain)
        (self.folder / "bom.jsonl").write_bytes(b"\xef\xbb\xbf" + plain.encode())
        (self.folder / "crlf.jsonl").write_bytes(plain.replace("\n", "\r\n").encode())
        for name in ("plain", "bom", "crlf"):
            self.tokenize(f"{name}.jsonl", out=name)
        self.assertEqual(self.ids("plain"), self.ids("bom"))
        self.assertEqual(self.ids("plain"), self.ids("crlf"))

    def test_case_112_no_end_of_document(self):
        (self.folder / "d.txt").write_text("abc")
        self.tokenize("d.txt", out="open", more=("--no-eod",))
        self.assertEqual(self.ids("open"), [97, 98, 99])
        done = self.run_command("data", "inspect", "open.idx", "--eod", EOD)
        self.assertIn("warning", done.stdout + done.stderr)
        self.assertEqual(self.facts("open")["eod_count"], 0)
        vocab = {chr(c): i for i, c in enumerate(range(33, 127))}
        (self.folder / "noeod.json").write_text("")
        (self.folder / "noeod").mkdir()
        (self.folder / "noeod/tokenizer.json").write_text(json.dumps(
            {"added_tokens": [], "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
             "decoder": {"type": "ByteLevel"},
             "model": {"type": "BPE", "vocab": vocab, "merges": []}}))
        self.refuse("data", "tokenize", "d.txt", "--tokenizer", "noeod", "--out", "refused",
                    code=2, says=["end-of-document", "--no-eod"])

    def test_case_113_width_is_stored(self):
        idx = (self.folder / "train.idx").read_bytes()
        self.assertEqual(idx[17], 8)  # 16 bit
        self.assertEqual(self.facts("train")["dtype"], "u16")

    def test_text_trains(self):
        (self.folder / "book.txt").write_text("A book of some words, and then more words. " * 30)
        text = '[{ path = "book.txt" }]'
        self.run_command("train", "tiny.toml", f"data.train={text}", "training.steps=1")
        self.assertTrue((self.folder / "runs/tiny/metrics.jsonl").exists())

    def test_missing_input(self):
        self.refuse("data", "tokenize", "absent.txt", "--tokenizer", "bytes", "--out", "x",
                    code=2, says=["absent.txt"])
        self.refuse("data", "inspect", "absent.idx", code=2, says=["absent.idx"])
        (self.folder / "void").mkdir(exist_ok=True)
        self.refuse("data", "tokenize", "void", "--tokenizer", "bytes", "--out", "x", code=2,
                    says=["void"])


class TrainTokenizer(CommandTest):
    def test_trained_tokenizer_is_used(self):
        words = "the quick brown fox jumps over a lazy dog and runs away from many cats".split()
        text = "\n".join(" ".join(words[i % 15:] + words[:i % 7]) for i in range(200)) + "\n"
        (self.folder / "words.txt").write_text(text)
        done = self.run_command("data", "train-tokenizer", "words.txt", "--vocab", "320", "--out",
                                "words.model")
        self.assertIn("320 pieces -> words.model", done.stdout)
        before = (self.folder / "words.model").read_bytes()
        self.run_command("data", "train-tokenizer", "words.txt", "--vocab", "320", "--out",
                         "words.model")
        self.assertEqual(before, (self.folder / "words.model").read_bytes())

        report = self.run_json("data", "tokenize", "words.txt", "--tokenizer", "words.model",
                               "--out", "words")
        self.assertLess(report["tokens"], len(text) // 2)
        self.run_command("train", "tiny.toml", "data.tokenizer=words.model",
                         'data.train=["words.idx"]', 'data.validation=["words.idx"]',
                         "model.vocab_size=320", "training.steps=2")
        self.assertIn("runs/tiny/weights/tokenizer.model", snapshot(self.folder))
        self.run_command("generate", "--from", "runs/tiny", "--prompt", "the quick", "--tokens",
                         "3")

    def test_refusals(self):
        (self.folder / "few.txt").write_text("ab\n")
        self.refuse("data", "train-tokenizer", "few.txt", "--vocab", "5000", "--out", "few.model",
                    code=2, says=["5000"])
        self.refuse("data", "train-tokenizer", "absent.txt", "--out", "few.model", code=2,
                    says=["absent.txt"])


if __name__ == "__main__":
    main()
