# SPDX-License-Identifier: Apache-2.0
"""Safetensors files at random: valid ones, and ones with one to three faults, a rule each.

A file begins as a list of entries; faults change the entries, the text of one of them, the text of
the whole header, or the bytes of the file.
"""
import json
import random
import struct

BITS = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8,
        "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16,
        "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64,
        "U64": 64}
NAMES = ["a", "b", "w", "model.norm.weight", "x y", "\u00e9", "\U0001F600", "../../etc/passwd",
         "a\"b", "a\\b", "dtype", "shape", "__metadata", "A" * 40]
NUMBERS = ["-1", "-0", "2.0", "2e0", "02", '"2"', "true", "null", "+2", "NaN", "0x2", ".5", "[2]",
           "9223372036854775807", "9223372036854775808", "18446744073709551615",
           "18446744073709551616", "1e400", "4294967296", "1152921504606846976"]


def numbers(values):
    return "[" + ",".join(map(str, values)) + "]"


class Entry:
    """One tensor; `fields` are pairs of JSON texts."""

    def __init__(self, name, dtype, shape, begin, end):
        self.key = json.dumps(name, ensure_ascii=False)
        self.dtype, self.shape, self.begin, self.end = dtype, shape, begin, end
        self.extra = []
        self.raw = None

    def placed(self):
        return isinstance(self.begin, int) and isinstance(self.end, int)

    def fields(self):
        return [('"dtype"', self.dtype), ('"shape"', numbers(self.shape)),
                ('"data_offsets"', numbers([self.begin, self.end]))] + self.extra

    def text(self, rng):
        if self.raw is not None:
            return f"{self.key}:{self.raw}"
        fields = self.fields()
        if rng.random() < 0.3:
            rng.shuffle(fields)
        return self.key + ":{" + ",".join(f"{k}:{v}" for k, v in fields) + "}"


def valid_entries(rng):
    entries, at = [], 0
    for name in rng.sample(NAMES, rng.randint(0, 4)):
        dtype = rng.choice(list(BITS))
        shape = [rng.choice([0, 1, 2, 3, 4]) for _ in range(rng.randint(0, 3))]
        elements = 1
        for dim in shape:
            elements *= dim
        if elements * BITS[dtype] % 8:
            shape.append(4)
            elements *= 4
        size = elements * BITS[dtype] // 8
        entries.append(Entry(name, f'"{dtype}"', shape, at, at + size))
        at += size
    return entries, at


# Faults of one entry.
def bad_offset(rng, entry):
    which = rng.choice(["begin", "end"])
    if entry.placed():
        setattr(entry, which, getattr(entry, which) + rng.choice([-2, -1, 1, 2, 8]))


def odd_offset(rng, entry):
    setattr(entry, rng.choice(["begin", "end"]), rng.choice(NUMBERS))


def swapped_offsets(_, entry):
    entry.begin, entry.end = entry.end, entry.begin


def bad_shape(rng, entry):
    if entry.shape and rng.random() < 0.6:
        entry.shape[rng.randrange(len(entry.shape))] = rng.choice(NUMBERS + [0, 1, 2, 5])
    else:
        entry.shape.insert(rng.randint(0, len(entry.shape)), rng.choice(NUMBERS + [0, 1, 2]))


def hidden_overflow(rng, entry):
    entry.shape = [0, *rng.choice([["4294967296", "4294967296"], ["18446744073709551615"],
                                   ["4294967296", "2147483648"], ["4294967296", "1073741824"],
                                   ["4294967296", "4294967295"], ["9223372036854775807"],
                                   ["1152921504606846975"], ["1152921504606846976"]])]
    rng.shuffle(entry.shape)
    entry.end = entry.begin


def bad_dtype(rng, entry):
    entry.dtype = rng.choice([
        '"f32"', '"F128"', '""', "1", "null", f"{{{entry.dtype}:null}}", '["F32"]',
        '"F\\u0033\\u0032"', '"F32 "', '"BOOL\\u0000"', *(f'"{d}"' for d in BITS)])


def extra_field(rng, entry):
    key = rng.choice(['"extra"', '"Dtype"', '""', '"dtype"', '"shape"', '"\\u0064type"',
                      '"data_offsets"'])
    value = rng.choice(["1", "null", '"F32"', "[]", "{}", "-2.5e3", "[1,[2]]", "tru", "01", "[1,]",
                        entry.dtype, numbers(entry.shape), numbers([entry.begin, entry.end])])
    entry.extra.append((key, value))


def other_entry(rng, entry):
    shape, offsets = numbers(entry.shape), numbers([entry.begin, entry.end])
    entry.raw = rng.choice([
        f"[{entry.dtype},{shape},{offsets}]", "null", "1", "[]", "{}", '"x"',
        f'{{"dtype":{entry.dtype},"shape":{shape}}}',
        f'{{"shape":{shape},"data_offsets":{offsets}}}',
        f'{{"dtype":{entry.dtype},"data_offsets":{offsets}}}',
        f'{{"dtype":{entry.dtype},"shape":{shape},"data_offsets":[{entry.end}]}}',
        f'{{"dtype":{entry.dtype},"shape":{shape},"data_offsets":[{entry.begin},{entry.end},0]}}',
        f'{{"dtype":{entry.dtype},"shape":null,"data_offsets":{offsets}}}',
        f'{{"dtype":{entry.dtype},"shape":{shape},"data_offsets":'
        f'{{"0":{entry.begin},"1":{entry.end}}}}}'])


def odd_name(rng, entry):
    entry.key = rng.choice(['""', '"\\u0000"', '"a\\u0000"', '"a\x7f"', '"\\n"', '"\\ud800"',
                            '"\\udc00x"', '"\\ud83d\\ude00"', '"\\u0061"', '"\\x61"', '"\\u006"',
                            '"a\nb"', "'a'", "a", "1", "null", '"__metadata__"', '"\\/"',
                            '"\\u007f"', '"\\u0080"'])


ENTRY_FAULTS = [bad_offset, odd_offset, swapped_offsets, bad_shape, hidden_overflow, bad_dtype,
                extra_field, other_entry, odd_name]


# Faults of the list.
def repeat(rng, entries):
    entry = rng.choice(entries)
    again = Entry("", entry.dtype, list(entry.shape), entry.begin, entry.end)
    again.key = entry.key
    if rng.random() < 0.4:  # as long again, behind the last
        again.begin = max(e.end for e in entries if isinstance(e.end, int))
        again.end = again.begin + (entry.end - entry.begin)
    if rng.random() < 0.3:
        again.begin, again.end = 100, 100 + entry.end - entry.begin
    if rng.random() < 0.3 and len(again.key) > 2 and again.key[1].isascii():
        again.key = f'"\\u{ord(again.key[1]):04x}' + again.key[2:]
    entries.insert(rng.randint(0, len(entries)), again)


def drop(rng, entries):
    entries.remove(rng.choice(entries))


METADATA = ['{"format":"pt"}', "{}", "null", '"x"', "[]", '{"a":1}', '{"a":null}', '{"a":{}}',
            '{"a":"b","a":"c"}', '{"a":"b","\\u0061":"c"}', '{"":""}', '{"a":"\\ud800"}',
            '{"a\\u0000":"\\u0000"}', '{"a":["b"]}']


def metadata(rng):
    text = '"__metadata__":' + rng.choice(METADATA[:2] if rng.random() < 0.6 else METADATA)
    if rng.random() < 0.1:
        text += ',"\\u005f_metadata__":{}' if rng.random() < 0.5 else "," + text
    return text


# Faults of the header's text.
def around(rng, text):
    before = rng.choice(["", " ", "\n\t ", "\ufeff", "[", "\0", "/**/"])
    behind = rng.choice(["", " ", "   \n", "\0", "x", "]", "{}", text, ",", "//"])
    return before + text + behind


def one_character(rng, text):
    at = rng.randrange(len(text))
    new = rng.choice([*"\"',:{}[]09- \\\n\x01\ta", "", text[at] * 2, "\u00e9"])
    return text[:at] + new + text[at + 1:]


def inner_space(rng, text):
    for mark in rng.sample(",:{}[]", 3):
        text = text.replace(mark, rng.choice([" ", "\n", "\t", "\r", "\f", ""]) + mark)
    return text


def trailing_comma(rng, text):
    at = rng.choice([i for i, c in enumerate(text) if c in "}]"] or [0])
    return text[:at] + "," + text[at:]


TEXT_FAULTS = [around, one_character, inner_space, trailing_comma]


# Faults of the bytes.
def bad_utf8(rng, header):
    at = rng.randrange(len(header))
    return header[:at] + rng.choice([b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82",
                                     b"\xe9", b"\xff", b"\xc3\xa9"]) + header[at:]


def flipped(rng, header):
    at = rng.randrange(len(header))
    return header[:at] + bytes([header[at] ^ 1 << rng.randrange(8)]) + header[at + 1:]


def header_of(rng, faults):
    entries, size = valid_entries(rng)
    texts, bytes_ = 0, 0
    for _ in range(faults):
        kind = rng.random()
        if kind < 0.55 and entries:
            rng.choice(ENTRY_FAULTS)(rng, rng.choice(entries))
        elif kind < 0.7 and entries and all(entry.placed() for entry in entries):
            rng.choice([repeat, drop])(rng, entries)
        elif kind < 0.9:
            texts += 1
        else:
            bytes_ += 1
    if rng.random() < 0.2:
        rng.shuffle(entries)
    members = [entry.text(rng) for entry in entries]
    if rng.random() < 0.4:
        members.insert(rng.randint(0, len(members)), metadata(rng))
    text = "{" + ",".join(members) + "}"
    for _ in range(texts):
        text = rng.choice(TEXT_FAULTS)(rng, text)
    header = text.encode()
    for _ in range(bytes_):
        header = rng.choice([bad_utf8, flipped])(rng, header)
    ends = [e.end for e in entries if isinstance(e.end, int) and 0 <= e.end < 1000]
    return header, rng.choice([size, size, max([size, *ends])])


def make_file(seed):
    """The bytes of the file of that number."""
    rng = random.Random(seed)
    faults = rng.choice([0, 0, 1, 1, 1, 1, 2, 3])
    header, size = header_of(rng, faults)
    if rng.random() < 0.5:
        header += b" " * (-len(header) % 8)
    length = len(header)
    body = bytes(i % 251 for i in range(size))
    if faults and rng.random() < 0.1:
        length = rng.choice([length - 1, length + 1, 0, 7, 100_000_000, 100_000_001, 2**63,
                             2**64 - 1, 2**64 - 8, length + size, length + size + 1])
    file = struct.pack("<Q", max(length, 0)) + header + body
    if faults and rng.random() < 0.05:
        file = file[:rng.randrange(len(file))] if rng.random() < 0.7 else file + b"x"
    return file
