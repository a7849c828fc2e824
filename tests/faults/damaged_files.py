"""Files of a run that are damaged, and every command that reads them."""
import os
import re
import shutil

import damage
from case import Case
from pictures import write_grey_png
from runs import COMPUTE, EXPERIMENTS, difference
from tool import complaint


def readers(experiment, file, other):
    """(name, command of a run folder and a folder for new files) of the commands that read this file of a run. `other`: to compare with."""
    resume = ("resume", lambda run, new: experiment.resuming(run))
    report = ("report", lambda run, new: ["report", str(run)])
    info = ("info", lambda run, new: ["info", str(run / file)])
    base = os.path.basename(file)
    if experiment.command[0] == "density":
        on_model = {
            "eval": lambda run, new: ["density", "eval", str(run), *COMPUTE, "--images", "4", "--inverse-images", "2", "--save"],
            "sample": lambda run, new: ["density", "sample", str(run), *COMPUTE, "--count", "2", "--out", str(new / "a.png")],
            "invert": lambda run, new: ["density", "invert", str(run), *COMPUTE, "--count", "2", "--out", str(new / "b.png")],
            "interpolate": lambda run, new: ["density", "interpolate", str(run), *COMPUTE, "--count", "1", "--out", str(new / "c.png")],
        }
        grow = ("grow", lambda run, new: ["density", "grow", str(run), "--blocks", "2,1", "--set", "steps=6", "--out",
                                          str(new / "grown")])
        compare = ("compare", lambda run, new: ["density", "compare", str(run), str(other), *COMPUTE, "--images", "4",
                                                "--out", str(new / "study")])
        start = ("--weights", lambda run, new: [*experiment.starting(new / "other"), "--weights", str(run / file)])
        if base == "config.toml":
            return [resume, report, ("eval", on_model["eval"]), grow, compare,
                    ("--config", lambda run, new: ["density", "train", "--config", str(run / file), "--print-config"])]
        if base == "model.safetensors":
            return [info, *on_model.items(), compare]
        if base.startswith("checkpoint.safetensors"):
            return [resume, grow, start, info]
        if base == "weights.safetensors":
            return [start, info]
        return [resume, report, compare] if base != "metrics.jsonl" else [resume, report]
    if experiment.command[0] == "detect":
        if base == "model.safetensors":
            return [info, ("eval", lambda run, new: ["detect", "eval", str(run), "--images", "2", "--invert-check", *COMPUTE]),
                    ("predict", lambda run, new: ["detect", "predict", str(run), str(write_grey_png(new / "photo.png", 40, 30)), *COMPUTE,
                                                  "--out", str(new / "maps")])]
        compare = ("compare", lambda run, new: ["detect", "compare", str(run), "--out", str(new / "page")])
        if base == "config.toml":
            return [resume, report, compare,
                    ("--config", lambda run, new: ["detect", "train", "--config", str(run / file), "--print-config"])]
        return [resume] if base == "checkpoint.safetensors" else [resume, report, compare]
    if base == "config.toml":
        return [resume, report, ("--config", lambda run, new: ["reconstruct", "--config", str(run / file), "--print-config"])]
    return [info] if base == "model.safetensors" else [resume] if base == "checkpoint.safetensors" else [resume, report]


DAMAGED = ("config.toml", "metrics.jsonl", "results.json", "cell.json", "evaluation.json", "model.safetensors", "weights.safetensors",
           "pictures.safetensors")


def is_damaged(name):
    return name in DAMAGED or name.startswith("checkpoint.safetensors")


def not_the_same(file, damage_name):
    """What of a run's outcome damage to this file may change: it is there alone, or a user may have written it so. None: all of it."""
    base = os.path.basename(file)
    if base == "config.toml":
        return () if damage_name == "emptied" or damage_name.startswith("cut") else None
    if base == "cell.json":
        return ("results.json", "metrics.jsonl")
    if base == "metrics.jsonl":
        return ("metrics.jsonl",)
    return ("the tensors of " + file,) if base == "model.safetensors" else ()


def damaged(campaign):
    """Every file of a run, finished or stopped in the middle, damaged in every way, read by every command that reads it."""
    for name, experiment in EXPERIMENTS.items():
        baseline = campaign.baseline(name)
        states = {"stopped": baseline.stopped(campaign.work / f"stopped-{name}"), "finished": campaign.work / f"finished-{name}"}
        baseline.copy(states["finished"])
        if experiment.command[0] == "density":
            campaign.tool.run(["density", "eval", str(states["finished"]), *COMPUTE, "--images", "4", "--inverse-images", "2", "--save"])
        for state, folder in states.items():
            for path in sorted(path for path in folder.rglob("*") if path.is_file() and is_damaged(path.name)):
                file = str(path.relative_to(folder))
                label = re.sub(r"[0-9a-f]{16}", "*", file)
                chance = campaign.chance("damage", name, state, label)
                commands = readers(experiment, file, campaign.other_density())
                for wound, spoil in damage.damages(path, chance, flips=12, tensors=4):
                    for reader, command in commands:
                        if state == "stopped" and reader not in ("resume", "grow", "--weights", "report"):
                            continue

                        def work(trial, baseline=baseline, folder=folder, file=file, spoil=spoil, command=command, reader=reader,
                                 wound=wound):
                            run, new = trial.folder / "run", trial.folder / "new"
                            shutil.copytree(folder, run, symlinks=True)
                            new.mkdir()
                            spoil(run / file)
                            result = trial.run(command(run, new), limit=30)
                            problem = complaint(result)
                            without = not_the_same(file, wound)
                            if problem or result.code != 0 or reader != "resume" or without is None:
                                return problem
                            return difference(run, baseline.outcome, without)
                        yield Case(f"{name} {state}, {label}: {wound}, {reader}", work, f"{name} {state} {label} {reader}")

    study = campaign.work / "study"
    scoring = ["density", "compare", str(campaign.baseline("density").folder), str(campaign.other_density()), *COMPUTE, "--images", "4",
               "--out"]
    campaign.tool.run([*scoring, str(study)])
    readers_of_study = {"report": lambda folder: ["report", str(folder)], "compare": lambda folder: [*scoring, str(folder)]}
    for wound, spoil in damage.damages(study / "study.json", campaign.chance("damage", "study"), flips=12, tensors=0):
        for reader, command in readers_of_study.items():
            def read(trial, spoil=spoil, command=command):
                folder = trial.folder / "study"
                shutil.copytree(study, folder)
                spoil(folder / "study.json")
                return complaint(trial.run(command(folder), limit=30))
            yield Case(f"study, study.json: {wound}, {reader}", read, f"study study.json {reader}")
