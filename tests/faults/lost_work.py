"""Commands that would lose what somebody made."""
import re
import shutil
import threading
import time

from case import Case, goes_on
from journal import read_state
from pictures import write_grey_png
from runs import COMPUTE, EXPERIMENTS, difference
from tool import complaint


def unchanged(trial, arguments, keep, codes=(2, 4), **how):
    """The command is refused, and every file below `keep` is as it was."""
    before = read_state(keep)
    problem = complaint(trial.run(arguments, **how), codes)
    after = read_state(keep)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return problem or (f"changed {', '.join(changed[:5])}" if changed else "")


def lost(campaign):
    """Commands that would write over what they read, over files of others, or over a run."""
    density, detect = campaign.baseline("density"), campaign.baseline("detect")

    def case(name, work):
        return Case(name, work, name.split()[0].strip(","))

    def photographs(folder):
        folder.mkdir()
        for letter in "ab":
            write_grey_png(folder / f"{letter}.png", 40, 30)
        return folder

    def pairs(folder):
        folder.mkdir()
        for kind in ("image", "mask"):
            photographs(folder / kind)
        return folder

    predict = ["detect", "predict", str(detect.folder)]
    yield case("predict into the photograph's folder", lambda trial: unchanged(
        trial, [*predict, str(photographs(trial.folder / "photos") / "a.png"), *COMPUTE, "--out", str(trial.folder / "photos")],
        trial.folder / "photos"))
    yield case("predict a folder into itself", lambda trial: unchanged(
        trial, [*predict, str(photographs(trial.folder / "photos")), *COMPUTE, "--out", str(trial.folder / "photos")],
        trial.folder / "photos"))

    def by_link(trial):
        photographs(trial.folder / "photos")
        (trial.folder / "link").symlink_to("photos")
        command = [*predict, str(trial.folder / "photos"), *COMPUTE, "--out", str(trial.folder / "link")]
        return unchanged(trial, command, trial.folder / "photos")
    yield case("predict into the photograph's folder by a link", by_link)

    def one_name(trial):
        folder = photographs(trial.folder / "photos")
        shutil.copy(folder / "a.png", folder / "a.PNG")
        result = trial.run([*predict, str(folder), *COMPUTE, "--out", str(trial.folder / "maps")])
        if result.code == 0 and len(list((trial.folder / "maps").glob("*"))) < 6:
            return "two photographs, one map"
        return complaint(result)
    yield case("predict two photographs of one name", one_name)
    for into in ("mask", "image"):
        yield case(f"detect eval --maps into {into}", lambda trial, into=into: unchanged(
            trial, ["detect", "eval", str(detect.folder), "--data", str(pairs(trial.folder / "set")), *COMPUTE, "--maps",
                    str(trial.folder / "set" / into)], trial.folder / "set"))
    for option in ("--curves", "--per-image"):
        for target in ("mask/a.png", "image/b.png"):
            yield case(f"metrics {option} over {target}", lambda trial, option=option, target=target: unchanged(
                trial, ["metrics", "--truth", str(pairs(trial.folder / "set") / "mask"), "--predictions", str(trial.folder / "set/image"),
                        option, str(trial.folder / "set" / target)], trial.folder / "set"))
    yield case("metrics both tables into one file", lambda trial: complaint(trial.run(
        ["metrics", "--truth", str(pairs(trial.folder / "set") / "mask"), "--predictions", str(trial.folder / "set/image"), "--curves",
         "x.csv", "--per-image", "./x.csv"], folder=trial.folder), (2, 4)))

    for file in ("model.safetensors", "config.toml", "results.json", "metrics.jsonl", "checkpoint.safetensors"):
        for name, words in {
                "sample --out": ["density", "sample", "run", *COMPUTE, "--count", "2", "--out"],
                "sample --save-images": ["density", "sample", "run", *COMPUTE, "--count", "2", "--save-images"],
                "invert --out": ["density", "invert", "run", *COMPUTE, "--count", "2", "--out"],
                "interpolate --out": ["density", "interpolate", "run", *COMPUTE, "--count", "1", "--out"],
                "report --out": ["report", "run", "run", "--out"],
                "report of one --out": ["report", "run", "--out"]}.items():
            yield case(f"{name} over the run's {file}", lambda trial, words=words, file=file: unchanged(
                trial, [*words, f"run/{file}"], density.copy(trial.folder / "run"), folder=trial.folder))
    yield case("grow into the same folder", lambda trial: unchanged(
        trial, ["density", "grow", "run", "--blocks", "2,1", "--set", "steps=6", "--out", "run"],
        density.copy(trial.folder / "run"), folder=trial.folder))
    yield case("sample both into one file", lambda trial: complaint(trial.run(
        ["density", "sample", str(density.folder), *COMPUTE, "--count", "2", "--out", "x.png", "--save-images", "./x.png"],
        folder=trial.folder), (2, 4)))

    for name, experiment in EXPERIMENTS.items():
        baseline = campaign.baseline(name)

        def twice(trial, baseline=baseline, experiment=experiment):
            folder = baseline.copy(trial.folder / "run")
            return unchanged(trial, experiment.starting(folder), folder)
        yield case(f"{name}, a second start in a run's folder", twice)

        for file in ("model.safetensors", "results.json", "metrics.jsonl", "checkpoint.safetensors", "report.html", "samples/0000003.png",
                     "tables/results.md", "cells/x/cell.json"):
            def foreign(trial, experiment=experiment, file=file):
                folder = trial.folder / "run"
                (folder / file).parent.mkdir(parents=True)
                (folder / file).write_text("somebody else's\n")
                trial.run(experiment.starting(folder))
                same = (folder / file).read_text(errors="replace") == "somebody else's\n"
                return "" if same else f"overwrites {file}, which is not its own"
            yield case(f"{name}, a start in a folder with another's {file}", foreign)

        def failed_start(trial, baseline=baseline, experiment=experiment):
            folder = trial.folder / "run"
            problem = complaint(trial.run([*experiment.starting(folder), "--data", "cifar10:/nowhere" if experiment.command[0] != "detect"
                                           else "camo:/nowhere"]), (2, 4))
            return problem or complaint(trial.run(experiment.starting(folder)), (0,)) or difference(folder, baseline.outcome)
        yield case(f"{name}, a start without its data and once more with", failed_start)

        refused = {"density": ["steps=-1", "flow.hidden=7", "flow.blocks=[2,1]", "seed=5", "batch=-3", "data=cifar10:/nowhere",
                               "nothing=1"],
                   "detect": ["epochs=-1", "network.channels=5", "seed=5", "batch=0", "data=camo:/nowhere", "nothing=1"],
                   "reconstruct": ["epochs=-1", "height=14", "batch=0", "nothing=1", "learning_rate=7"]}
        for assignment in refused.get(name, []):
            for state in ("finished", "stopped"):
                def resumed(trial, baseline=baseline, experiment=experiment, assignment=assignment, state=state):
                    folder = trial.folder / "run"
                    baseline.copy(folder) if state == "finished" else baseline.stopped(folder)
                    before = (folder / "config.toml").read_bytes()
                    result = trial.run([*experiment.resuming(folder), "--set", assignment])
                    problem = complaint(result)
                    if problem or result.code == 0:
                        return problem
                    if (folder / "config.toml").read_bytes() != before:
                        return "refused, but config.toml is overwritten"
                    return goes_on(trial, baseline, folder)
                yield case(f"{name} {state}, --resume --set {assignment}", resumed)

        def other_config(trial, baseline=baseline, experiment=experiment):
            folder = baseline.copy(trial.folder / "run")
            other = trial.folder / "other.toml"
            other.write_text((folder / "config.toml").read_text().replace("seed = 0", "seed = 1").replace("[0]", "[1]"))
            return unchanged(trial, [*experiment.resuming(folder), "--config", str(other)], folder)
        yield case(f"{name}, --resume with another --config", other_config)

        def other_weights(trial, baseline=baseline, experiment=experiment):
            folder = baseline.copy(trial.folder / "run")
            weights = baseline.folder / "checkpoint.safetensors"
            return unchanged(trial, [*experiment.resuming(folder), "--weights", str(weights)], folder)
        if name != "reconstruct":
            yield case(f"{name}, --resume with --weights", other_weights)
            for limit in ("nan", "inf", "-1", "0", "1e-300x"):
                yield case(f"{name}, --time-limit {limit}", lambda trial, experiment=experiment, limit=limit: complaint(trial.run(
                    [*experiment.starting("run"), "--time-limit", limit], folder=trial.folder), (2,) if limit != "inf" else (0, 2)))
            yield case(f"{name}, --trace into a folder that is not there", lambda trial, experiment=experiment: complaint(trial.run(
                [*experiment.starting("run"), "--trace", "nowhere/trace.json"], folder=trial.folder), (2, 4)))
            for file in sorted(path.name for path in baseline.folder.iterdir() if path.is_file() and path.name != "report.html"):
                yield case(f"{name}, --resume with --trace over its own {re.sub('[0-9a-f]{16}', '*', file)}",
                           lambda trial, baseline=baseline, experiment=experiment, file=file: unchanged(
                               trial, [*experiment.resuming("run"), "--trace", f"run/{file}"], baseline.copy(trial.folder / "run"),
                               folder=trial.folder))

        def two_at_once(trial, baseline=baseline, experiment=experiment):
            folder = baseline.stopped(trial.folder / "run")
            results = [None, None]

            def resume(place):
                time.sleep(0.1 * place)
                results[place] = trial.run(experiment.resuming(folder), note="&")
            threads = [threading.Thread(target=resume, args=(place,)) for place in (0, 1)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            codes = sorted(result.code for result in results)
            problem = complaint(results[0]) or complaint(results[1])
            if problem or (codes[0] != 0):
                return problem or f"exit codes {codes}: none goes on"
            if codes[1] == 0 and abs(results[0].seconds - results[1].seconds) < 0.5 * baseline.seconds:
                return "both go on"
            return difference(folder, baseline.outcome)
        yield case(f"{name}, two that resume at once", two_at_once)
