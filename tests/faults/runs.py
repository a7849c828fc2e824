"""The small runs that the campaign disturbs, and what has to come out of them all the same."""
import hashlib
import json
import os
import shutil
import struct
from pathlib import Path

from journal import RENAME, Disk, read_journal, read_state, write_state

COMPUTE = ["--device", "cpu", "--threads", "1"]
OWN_CLOCK = 1e-9  # save_minutes: a checkpoint at every step


def settings(**values):
    return [word for key, value in values.items() for word in ("--set", f"{key.replace('__', '.')}={value}")]


DENSITY = settings(train_images=24, validation_images=6, batch=4, report_every=2, evaluate_every=0, samples=4, warm_up=2, steps=3,
                   save_minutes=OWN_CLOCK, measured_images=8, flow__blocks="[1,1]", flow__hidden=6, evaluation__inverse_images=4)
DETECT = settings(train_images=8, test_images=4, batch=4, epochs=2, report_every=1, save_minutes=OWN_CLOCK, network__size=64,
                  network__channels=4, network__backbone__width=2, evaluation__inverse_images=2, measured_images=4, pictures=2)
RECONSTRUCT = ["--data", "synthetic", "--seed", "0", "--kind", "dot-product"] + settings(
    height=12, width=16, train_images=8, test_images=3, batch=4, epochs=2, pictures=2)

VOLATILE = ("seconds", "made_with", "memory", "date")  # names, or parts of names, of what differs from run to run


class Experiment:
    """`start`: the command of a run; `again`: options that a resumed run is given once more."""

    def __init__(self, name, command, start, again=()):
        self.name, self.command, self.start, self.again = name, command, start, list(again)

    def starting(self, folder):
        return [*self.command, *COMPUTE, *self.start, *self.again, "--out", str(folder)]

    def resuming(self, folder):
        return [*self.command, *COMPUTE, "--resume", *self.again, "--out", str(folder)]

    def recovering(self, folder):
        """What a user would type after a fault: --resume where there is a run, else the same once more."""
        return self.resuming(folder) if os.path.lexists(Path(folder) / "config.toml") else self.starting(folder)


EXPERIMENTS = {experiment.name: experiment for experiment in (
    Experiment("density", ["density", "train"], DENSITY, ["--weights-only"]),
    Experiment("shards", ["density", "train"], DENSITY, ["--shard-mb", "1"]),
    Experiment("detect", ["detect", "train"], DETECT),
    Experiment("reconstruct", ["reconstruct"], RECONSTRUCT),
)}


def split_safetensors(raw):
    """(header as a dictionary, bytes of the tensors)."""
    size, = struct.unpack_from("<Q", raw)
    return json.loads(raw[8:8 + size]), raw[8 + size:]


def join_safetensors(header, payload):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + payload


def tensors_of(path):
    header, payload = split_safetensors(Path(path).read_bytes())
    return {name: (entry["dtype"], tuple(entry["shape"]), payload[slice(*entry["data_offsets"])])
            for name, entry in header.items() if name != "__metadata__"}


def without_volatile(value):
    if isinstance(value, dict):
        return {key: without_volatile(entry) for key, entry in value.items() if not any(word in key for word in VOLATILE)}
    return [without_volatile(entry) for entry in value] if isinstance(value, list) else value


def outcome(folder):
    """What a run came to: the bits of its models, its figures, its curves."""
    folder = Path(folder)
    found = {}
    for path in sorted(folder.rglob("model.safetensors")):
        digest = hashlib.sha256(repr(sorted(tensors_of(path).items())).encode()).hexdigest()
        found["the tensors of " + str(path.relative_to(folder))] = digest
    found["results.json"] = without_volatile(json.loads((folder / "results.json").read_text()))
    found["metrics.jsonl"] = [without_volatile(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return found


def difference(folder, expected, without=()):
    """How the run in the folder differs from an undisturbed one, leaving out what is named, or nothing."""
    try:
        found = outcome(folder)
    except (OSError, ValueError, KeyError, struct.error) as problem:
        return f"the run cannot be read: {problem}"
    names = [name for name in sorted((expected.keys() | found.keys()) - set(without)) if found.get(name) != expected.get(name)]
    if names:
        return "other than undisturbed: " + ", ".join(names)
    left = sorted(str(path.relative_to(folder)) for path in Path(folder).rglob(".invattn-*"))
    return "temporary files stay: " + ", ".join(left[:3]) if left else ""


class Baseline:
    """An undisturbed run of an experiment: its folder, its journal, its outcome."""

    def __init__(self, experiment, tool, shim, work):
        self.experiment = experiment
        self.folder = work / ("baseline-" + experiment.name)
        journal = work / (experiment.name + ".journal")
        result = tool.run(experiment.starting(self.folder), environment={
            "LD_PRELOAD": str(shim), "FAULTS_FOLDER": str(self.folder), "FAULTS_JOURNAL": str(journal)})
        if result.code != 0:
            raise SystemExit(f"faults: the undisturbed run of {experiment.name} failed: {result.error}")
        self.seconds = result.seconds
        self.outcome = outcome(self.folder)
        self.calls = read_journal(journal, self.folder)
        disk = Disk()
        for call in self.calls:
            disk.apply(call)
        if disk.seen() != read_state(self.folder):
            raise SystemExit(f"faults: shim.c does not see every change that {experiment.name} makes: add the call that it misses")

    def copy(self, folder):
        shutil.copytree(self.folder, folder, symlinks=True)
        return folder

    def stopped(self, folder):
        """The run as a kill in the middle leaves it: with a checkpoint and without an end."""
        places = [number for number, call in enumerate(self.calls, 1)
                  if call.kind == RENAME and os.path.basename(call.second) == "checkpoint.safetensors"]
        disk = Disk()
        for call in self.calls[:places[len(places) // 2 - 1 if len(places) > 1 else 0] + 1]:
            disk.apply(call)
        write_state(disk.seen(), folder)
        return folder
