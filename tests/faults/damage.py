"""Ways in which a file can be damaged: each a name and a function that does it to a path."""
import json
import os
import random
import shutil
import struct
from pathlib import Path

from runs import join_safetensors, split_safetensors

DEEP = "@deep@"
RAW = {"@1e999@": "1e999", "@NaN@": "NaN", "@-0@": "-0", "@huge@": "9" * 400, DEEP: "[" * 50000 + "]" * 50000}  # no value of Python's json
VALUES = {"null": None, "[]": [], "{}": {}, "text": "x", "true": True, "-1": -1, "-1e300": -1e300, "1e300": 1e300, "2^63": 1 << 63,
          "-2^63": -(1 << 63), "0.5": 0.5, "[null]": [None], "nested": {"a": [{}]}, "escapes": "\x1b[31m\x9b2J", **{name.strip("@"): name for name in RAW}}


def as_text(value):
    text = json.dumps(value)
    for name, raw in RAW.items():
        text = text.replace(json.dumps(name), raw)
    return text


def places(value, place=()):
    """Every path into the value."""
    yield place
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        yield from places(entry, (*place, key))


def with_value(value, place, new):
    """A copy with `new` there; `new` is KeyError: without the entry."""
    if not place:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    if len(place) == 1 and new is KeyError:
        del copy[place[0]]
    else:
        copy[place[0]] = with_value(copy[place[0]], place[1:], new)
    return copy


def json_damage(value):
    """(name, damaged text)"""
    for place in places(value):
        where = "/".join(map(str, place)) or "the whole"
        if place:
            yield f"{where} left out", lambda place=place: as_text(with_value(value, place, KeyError))
        for name, new in VALUES.items():
            yield f"{where} = {name}", lambda place=place, new=new: as_text(with_value(value, place, new))


def rewrite(path, data):
    path = Path(path)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())


def replace(path, make):
    path = Path(path)
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    make(path)


def any_file(path, chance, flips):
    """Of any file, whatever is in it."""
    raw = Path(path).read_bytes()
    size = len(raw)
    for _ in range(flips if size else 0):
        bit = chance.randrange(8 * size) if chance.random() < 0.5 else chance.randrange(min(8 * size, 8 * 2000))

        def flip(target, bit=bit):
            data = bytearray(raw)
            data[bit // 8] ^= 1 << bit % 8
            rewrite(target, bytes(data))
        yield f"bit {bit} flipped", flip
    for length in sorted({0, 1, size // 2, max(0, size - 1), chance.randrange(size + 1)}):
        yield ("emptied" if length == 0 else f"cut to {length} bytes"), lambda target, length=length: rewrite(target, raw[:length])
    yield "zeros", lambda target: rewrite(target, bytes(size))
    yield "noise", lambda target, seed=chance.random(): rewrite(target, random.Random(seed).randbytes(size))
    yield "twice", lambda target: rewrite(target, raw + raw)
    yield "removed", lambda target: Path(target).unlink()
    yield "a FIFO", lambda target: replace(target, os.mkfifo)
    yield "a folder", lambda target: replace(target, os.mkdir)
    yield "a link to itself", lambda target: replace(target, lambda path: os.symlink(path.name, path))
    yield "a link to nothing", lambda target: replace(target, lambda path: os.symlink("nothing", path))
    yield "a link to /dev/zero", lambda target: replace(target, lambda path: os.symlink("/dev/zero", path))
    yield "a link to /dev/null", lambda target: replace(target, lambda path: os.symlink("/dev/null", path))


def json_file(path):
    for name, text in json_damage(json.loads(Path(path).read_text())):
        yield name, lambda target, text=text: rewrite(target, text())


def json_lines(path):
    lines = Path(path).read_text().splitlines()
    for number in sorted({0, len(lines) - 1}) if lines else ():
        for name, text in json_damage(json.loads(lines[number])):
            def spoil(target, number=number, text=text):
                rewrite(target, "\n".join(lines[:number] + [text()] + lines[number + 1:]) + "\n")
            yield f"line {number + 1}, {name}", spoil


def safetensors_file(path, chance, tensors):
    """The header, JSON inside its metadata, and numbers that are none."""
    header, payload = split_safetensors(Path(path).read_bytes())
    metadata = header.get("__metadata__", {})
    names = sorted(header.keys() - {"__metadata__"})
    shown = chance.sample(names, min(3, len(names)))

    def with_text(text):
        raw = text.encode()
        raw += b" " * (-len(raw) % 8)
        return struct.pack("<Q", len(raw)) + raw + payload

    for place in places({name: header[name] for name in header if name == "__metadata__" or name in shown}):
        if not place:
            continue
        where = "/".join(map(str, place))
        yield f"header {where} left out", lambda target, place=place: rewrite(
            target, with_text(as_text(with_value(header, place, KeyError))))
        for name, new in VALUES.items():
            yield f"header {where} = {name}", lambda target, place=place, new=new: rewrite(
                target, with_text(as_text(with_value(header, place, new))))
    for key, text in metadata.items():
        try:
            inner = json.loads(text)
        except ValueError:
            continue
        if not isinstance(inner, (dict, list)):
            continue
        for name, damaged in json_damage(inner):
            yield f"{key}: {name}", lambda target, key=key, damaged=damaged: rewrite(
                target, join_safetensors({**header, "__metadata__": {**metadata, key: damaged()}}, payload))
    floats = [name for name, entry in header.items()
              if name != "__metadata__" and entry["dtype"] in ("F32", "F64") and entry["shape"] != [0]]
    for name in chance.sample(sorted(floats), min(tensors, len(floats))):
        for label, number in (("nan", float("nan")), ("inf", float("inf")), ("-1e30", -1e30)):
            def put(target, name=name, number=number):
                start = header[name]["data_offsets"][0]
                raw = struct.pack("<f" if header[name]["dtype"] == "F32" else "<d", number)
                rewrite(target, join_safetensors(header, payload[:start] + raw + payload[start + len(raw):]))
            yield f"{label} in {name}", put


def damages(path, chance, flips, tensors):
    yield from any_file(path, chance, flips)
    path = Path(path)
    if path.suffix == ".json":
        yield from json_file(path)
    elif path.suffix == ".jsonl":
        yield from json_lines(path)
    elif path.suffix == ".safetensors":
        if path.read_bytes()[:1] == b"{":  # the index of shards
            yield from json_file(path)
        else:
            yield from safetensors_file(path, chance, tensors)
