# SPDX-License-Identifier: Apache-2.0
"""Trains small byte-level BPE vocabularies with the `tokenizers` package and writes what it makes
of tricky text: make_bpe_cases.py FOLDER. One folder a variant, with tokenizer.json and cases.json:
[{"text": ..., "ids": [...]}, ...]."""
import json
import pathlib
import random
import subprocess
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre
from tokenizers import trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

SCRIPTS = [(0x61, 0x7A), (0x41, 0x5A), (0xC0, 0x24F), (0x391, 0x3C9), (0x410, 0x44F),
           (0x5D0, 0x5EA), (0x621, 0x64A), (0x905, 0x939), (0xE01, 0xE2E), (0x3041, 0x3096),
           (0x30A1, 0x30FA), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x1F300, 0x1F5FF),
           (0x1F600, 0x1F64F), (0x660, 0x669), (0x966, 0x96F), (0x2150, 0x2188)]
MARKS = [0x300, 0x301, 0x308, 0x327, 0x323, 0x93C, 0x94D, 0x200D, 0xFE0F, 0x1161, 0x11A8]
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\u00a0", "\u3000", "\u2028",
          "\x0b", "\x0c", "\x85", "\u180e", "\u200b", " \t ", "\r", "\x1c"]
PIECES = ["'s", "'T", "'re", "'VE", "'ll", "don't", "I'M", "'\u017f", "2024", "3.14159", "1234567",
          "x\u00b2", "...", "?!", "--", "<|endoftext|>", "<tool>", "<tool><tool>", "http://a.b/c",
          "\U0001F468\u200d\U0001F469\u200d\U0001F467", "\U0001F1EB\U0001F1F7", "e\u0301", "\u00c5",
          "\u212b", "A\u030a", "\u1100\u1161\u11a8", "\u0344", "\u0958", "\ufb1d", "\u2126",
          "\x00", "\x01\x02", "\x7f", "\ufeff", "\ufffd", "\U000e0001", "\U0010ffff"]


def generated(rng, size):
    out, length = [], 0
    while length < size:
        kind = rng.random()
        if kind < 0.25:
            word = rng.choice(PIECES)
        else:
            first, last = rng.choice(SCRIPTS)
            word = "".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 7)))
            if kind > 0.8:
                word += chr(rng.choice(MARKS))
        word += rng.choice(SPACES) if rng.random() < 0.85 else ""
        out.append(word)
        length += len(word.encode())
    return "".join(out)


def english():
    try:
        text = subprocess.run(["bible", "-f", "Gen1:1-Lev10:1"], capture_output=True, text=True,
                              check=True, timeout=60).stdout
        return text[:500_000]
    except (OSError, subprocess.SubprocessError):
        words = "in the beginning was word and light were made by him all things that is".split()
        rng = random.Random(5)
        return " ".join(rng.choice(words) for _ in range(100_000)) + "\n"


def every_character():
    assigned = (chr(c) for c in range(0x110000)
                if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co"))
    return "".join(f"a{c}1{c} {c}{c}" for c in assigned if ord(c) < 0x3400 or ord(c) % 7 == 0)


def build(pre_tokenizer, normalizer, texts, vocab):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, show_progress=False,
                                  initial_alphabet=pre.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=True, special=False)])
    return tokenizer


def split(pattern):
    return pre.Sequence([pre.Split(Regex(pattern), "isolated", invert=False),
                         pre.ByteLevel(add_prefix_space=False, use_regex=False)])


def cases(rng, long_text, characters):
    texts = ["", " ", "\n", "a", "   a", "\x00", "'", "<|endoftext|>", long_text, characters,
             "a" * 5000, " " * 3000 + "x", "\n" * 2000, "ab" * 1500, "\U0001F600" * 300]
    return texts + PIECES + SPACES + [generated(rng, rng.randint(1, 60)) for _ in range(600)]


def write(folder, name, tokenizer, texts, edit=None):
    where = folder / name
    where.mkdir(parents=True, exist_ok=True)
    root = json.loads(tokenizer.to_str())
    if edit:
        edit(root)
    text = json.dumps(root)
    (where / "tokenizer.json").write_text(text)
    tokenizer = Tokenizer.from_str(text)
    ids = [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]
    (where / "cases.json").write_text(
        json.dumps([{"text": t, "ids": i} for t, i in zip(texts, ids)]))


def strings(root):
    root["model"]["merges"] = [" ".join(m) for m in root["model"]["merges"]]


def ignore_merges(root):
    """Tokens that no merge leads to: only ignore_merges finds them."""
    root["model"]["ignore_merges"] = True
    del root["model"]["merges"][1::3]


def main():
    folder = pathlib.Path(sys.argv[1])
    rng = random.Random(20240501)
    mixed = generated(rng, 500_000)
    prose = english()
    texts = cases(rng, prose + mixed, every_character())
    lines = (prose[:200_000] + mixed[:100_000]).split("\n")
    byte_level = pre.ByteLevel(add_prefix_space=False, use_regex=True)
    gpt2 = build(byte_level, None, lines, 2000)
    write(folder, "gpt2", gpt2, texts, strings)
    llama3 = build(split(LLAMA3), None, lines, 2000)
    write(folder, "llama3", llama3, texts, ignore_merges)
    write(folder, "qwen", build(split(QWEN), normalizers.NFC(), lines, 2000), texts)
    # vocab.json and merges.txt, as GPT-2 was published.
    files = folder / "gpt2-files"
    files.mkdir(exist_ok=True)
    gpt2.model.save(str(files))
    plain = Tokenizer(models.BPE.from_file(str(files / "vocab.json"), str(files / "merges.txt")))
    plain.pre_tokenizer = byte_level
    few = texts[-300:]
    (files / "cases.json").write_text(
        json.dumps([{"text": t, "ids": plain.encode(t).ids} for t in few]))


main()
