"""Output, disks, limits and names that are against the tool."""
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

from case import Case, goes_on
from runs import COMPUTE, EXPERIMENTS, difference
from tool import complaint

NAMES = {"a blank": "with blank", "a semicolon": ";id", "a command": "$(id)", "quotes": "it's \"so\"", "a new line": "new\nline",
         "an escape sequence": "\x1b[31mred\x1b[0m", "not UTF-8": b"bytes\xff\xfe", "a dash": "-run", "a star": "*",
         "a control of C1": "a\u009bb",
         "a backslash": "a\\nb", "a percent": "%s%n", "255 letters": "a" * 255, "a right-to-left mark": "a\u202eb",
         "markup": "<script>alert(1)<script>"}


def environment(campaign):
    """Output that cannot be written, folders that cannot be written, limits, and names that mean something to a shell or a terminal."""
    yield from no_output(campaign)
    yield from no_room(campaign)
    yield from strange_names(campaign)


def commands_that_print(campaign):
    density, detect, reconstruct = (campaign.baseline(name).folder for name in ("density", "detect", "reconstruct"))
    model = str(density / "model.safetensors")
    yield from ((name, words) for name, words in {
        "--help": ["--help"], "--version": ["--version"], "train --help": ["density", "train", "--help"], "doctor": ["doctor"],
        "doctor --json": ["doctor", "--json"], "--keys": ["density", "train", "--keys"],
        "--print-config": ["reconstruct", "--print-config"],
        "detect --print-config": ["detect", "train", "--print-config"], "info": ["info", model], "info --json": ["info", model, "--json"],
        "eval": ["density", "eval", str(density), *COMPUTE, "--images", "4", "--inverse-images", "2"],
        "eval --json": ["density", "eval", str(density), *COMPUTE, "--images", "4", "--inverse-images", "2", "--json"],
        "sample": ["density", "sample", str(density), *COMPUTE, "--count", "2"],
        "sample --json": ["density", "sample", str(density), *COMPUTE, "--count", "2", "--json"],
        "invert": ["density", "invert", str(density), *COMPUTE, "--count", "2"],
        "interpolate": ["density", "interpolate", str(density), *COMPUTE, "--count", "1"],
        "grow": ["density", "grow", str(density), "--blocks", "2,1", "--set", "steps=6", "--out", "grown"],
        "detect eval": ["detect", "eval", str(detect), "--images", "2", *COMPUTE],
        "detect eval --json": ["detect", "eval", str(detect), "--images", "2", "--json", *COMPUTE],
        "density compare": ["density", "compare", str(density), str(campaign.other_density()), *COMPUTE, "--images", "4", "--out", "study"],
        "detect compare": ["detect", "compare", str(detect), "--out", "page"],
        "report of several": ["report", str(reconstruct), str(reconstruct), "--out", "page.html"],
        "bench": ["bench", "--shape", "1x4x4x4", "--repeats", "1", "--device", "cpu", "--threads", "1"],
    }.items())
    yield from ((f"{name} {way}", [*experiment.starting("run"), *words]) for name, experiment in EXPERIMENTS.items()
                for way, words in (("train", []), ("train --json", ["--json"])))


def no_output(campaign):
    for name, words in commands_that_print(campaign):
        def full(trial, words=words):
            with open("/dev/full", "wb") as sink:
                return complaint(trial.run(words, folder=trial.folder, stdout=sink, note="> /dev/full"), (4,))

        def closed(trial, words=words):
            result = trial.run(words, folder=trial.folder, stdout=subprocess.DEVNULL, prepare=lambda: os.close(1), note=">&-")
            return complaint(result, (4,))

        def pipe(trial, words=words):
            reading, writing = os.pipe()
            os.close(reading)
            with open(writing, "wb") as sink:
                return complaint(trial.run(words, folder=trial.folder, stdout=sink, note="| true"), (4, -signal.SIGPIPE))

        for label, work in (("/dev/full", full), ("a closed standard output", closed), ("a closed pipe", pipe)):
            yield Case(f"{name} into {label}", work, f"no output {label}")


def in_small_disk(kibibytes, readonly):
    """A prefix of commands: in a mount name space of their own, with a small disk over ./disk."""
    options = f"size={kibibytes}k" + (",ro" if readonly else "")
    return ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o {options} none disk && exec "$@"', "sh"]


def may_mount():
    try:
        mount = ["unshare", "--mount", "mount", "-t", "tmpfs", "-o", "size=4k", "none", "/mnt"]
        return subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def no_room(campaign):
    mounts = may_mount()
    if not mounts:
        print("environment: no small or read-only disks, which need the right to mount", flush=True)
    for name, experiment in EXPERIMENTS.items():
        baseline = campaign.baseline(name)
        size = sum(path.stat().st_size for path in baseline.folder.rglob("*") if path.is_file())
        for share in (0.02, 0.1, 0.3, 0.6, 0.9):
            def limited(trial, baseline=baseline, experiment=experiment, limit=int(size * share / 2)):
                folder = trial.folder / "run"
                result = trial.run(experiment.starting(folder), note=f"# ulimit -f {limit // 1024}",
                                   prepare=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
                return complaint(result, (0, 4)) or goes_on(trial, baseline, folder)
            yield Case(f"{name}, files of at most {share / 2:.0%} of the run", limited, "file size")

            def small(trial, experiment=experiment, room=int(size * share / 1024)):
                (trial.folder / "disk").mkdir()
                result = trial.run(experiment.starting("disk/run"), folder=trial.folder, prefix=in_small_disk(max(room, 4), False))
                return complaint(result, (4,))
            if mounts:
                yield Case(f"{name} on a disk of {share:.0%} of the run", small, "small disk")

        def readonly(trial, experiment=experiment):
            (trial.folder / "disk").mkdir()
            return complaint(trial.run(experiment.starting("disk/run"), folder=trial.folder, prefix=in_small_disk(64, True)), (4,))
        if mounts:
            yield Case(f"{name} on a read-only disk", readonly, "read-only")

        for limit in (6, 10, 16, 24):
            def few_files(trial, baseline=baseline, experiment=experiment, limit=limit):
                folder = trial.folder / "run"
                result = trial.run(experiment.starting(folder), note=f"# ulimit -n {limit}",
                                   prepare=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
                return complaint(result, (0, 4)) or goes_on(trial, baseline, folder)
            yield Case(f"{name} with {limit} open files", few_files, "open files")
        for variables in ({"HOME": "/nowhere"}, {"TMPDIR": "/nowhere"}, {"LANG": "xx_XX.nothing", "LC_ALL": "xx"}, {"TERM": "\x1b[31m"},
                          {"OMP_NUM_THREADS": "-1"}, {"COLUMNS": "-1"}, {"TZ": "nowhere/nothing"}):
            def surroundings(trial, baseline=baseline, experiment=experiment, variables=variables):
                folder = trial.folder / "run"
                result = trial.run(experiment.starting(folder), environment=variables)
                return complaint(result, (0,)) or difference(folder, baseline.outcome)
            yield Case(f"{name} with {' '.join(variables)}={shlex.quote(repr(list(variables.values())[0]))}", surroundings, "variables")
        for threads in ("0", "-1", "1024", "1025", "99999999999999999999", "nan") if name == "density" else ():
            def many_threads(trial, experiment=experiment, threads=threads):
                words = [word if before != "--threads" else threads for before, word in zip(["", *experiment.starting("run")],
                                                                                          experiment.starting("run"))]
                return complaint(trial.run(words, folder=trial.folder), (0, 2, 4))
            yield Case(f"{name} with --threads {threads}", many_threads, "threads")


def strange_names(campaign):
    for label, name in NAMES.items():
        shown = os.fsdecode(name)
        for kind, experiment in EXPERIMENTS.items():
            def run(trial, experiment=experiment, baseline=campaign.baseline(kind), name=name):
                parent = os.fsencode(trial.folder)
                path = os.path.join(parent, os.fsencode(name))
                command = experiment.starting("x")[:-1] + [path]
                problem = complaint(trial.run(command, folder=trial.folder), (0,))
                return problem or difference(Path(os.fsdecode(path)), baseline.outcome)
            yield Case(f"{kind} into a folder named with {label}", run, "names")

            def again(trial, experiment=experiment, baseline=campaign.baseline(kind), name=shown):
                """What is printed to go on with, typed into a shell, goes on."""
                command = experiment.starting("x")[:-2] + [f"--out=./{name}" if not name.startswith("-") else f"--out={name}"]
                stopped = trial.run(command, folder=trial.folder, stop_after=baseline.seconds * 0.75, stop_by=signal.SIGINT)
                problem = complaint(stopped, (0, 130, -signal.SIGINT))
                if problem or stopped.code != 130:
                    return problem
                found = re.search(r"Continue with: (.*)\Z", stopped.error, re.S)
                if not found:
                    return f"no command to go on with: {stopped.error}"
                words = subprocess.run(["bash", "-c", "printf '%s\\0' " + found.group(1).strip()], capture_output=True, cwd=trial.folder)
                arguments = words.stdout.split(b"\0")[1:-1]
                if words.returncode != 0 or arguments[:1] != [os.fsencode(experiment.command[0])]:
                    return f"not a command of a shell: {found.group(1)}"
                problem = complaint(trial.run([*arguments, *COMPUTE], folder=trial.folder), (0,))
                folder = trial.folder / name
                return problem or difference(folder, baseline.outcome)
            yield Case(f"{kind} stopped in a folder named with {label}", again, "names again")
        files = {"info": ["info"], "eval": ["density", "eval"], "report": ["report"], "grow": ["density", "grow"],
                 "--config": ["density", "train", "--print-config", "--config"],
                 "--weights": ["density", "train", "--out", "run", "--weights"], "predict": ["detect", "predict", "model"],
                 "subcommand": [], "metrics": ["metrics", "--truth", "x", "--predictions"], "--set": ["reconstruct", "--set"]}
        for reader, words in files.items():
            def absent(trial, words=words, name=name):
                return complaint(trial.run([*words, *([] if os.fsencode(name) != b"-run" else ["--"]), name], folder=trial.folder), (2, 4))
            yield Case(f"{reader} of a file that is not there, named with {label}", absent, "absent names")

        def weights(trial, name=name):
            """A file whose name goes into the results."""
            path = os.path.join(os.fsencode(trial.folder), os.fsencode(name)[:200])
            shutil.copy(campaign.baseline("density").folder / "weights.safetensors", path)
            result = trial.run([*EXPERIMENTS["density"].starting("run"), "--weights", path], folder=trial.folder)
            return complaint(result, (0,)) or ("" if (trial.folder / "run" / "results.json").exists() else "no results.json")
        yield Case(f"--weights from a file named with {label}", weights, "weights names")
