#!/usr/bin/env python3
"""Several processes under torchrun, on one machine, over gloo: trainings that are disturbed end with the bits of one that was not.

usage: torchrun_test.py TOOL [--kills N] [--seed S]

Exit code 77: this Python has no torch, whose torchrun is needed.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

SETTINGS = {
    "steps": 60,
    "cool_down": 10,
    "warm_up": 5,
    "batch": 16,
    "train_images": 64,
    "validation_images": 16,
    "measured_images": 32,
    "evaluate_every": 0,
    "evaluation.inverse_images": 4,
    "flow.hidden": 8,
    "flow.blocks": "[1,1]",
    "flow.attention_blocks": "[0,1]",
    "report_every": 10,
    "save_minutes": 1e-4,  # after every few steps
}


class Campaign:
    def __init__(self, tool, folder, seed):
        self.tool, self.folder, self.random = tool, folder, random.Random(seed)

    def command(self, out, processes=2, restarts=0, more=(), settings=None):
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", f"--max-restarts={restarts}"]
        settings = [f"--set={key}={value}" for key, value in {**SETTINGS, **(settings or {})}.items()]
        return [*launcher, "--monitor-interval=0.1", "--no-python", self.tool, "density", "train", f"--out={self.folder / out}", *settings, *more]

    def start(self, command, **options):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHELASTIC_ERROR_FILE": ""}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, **options)

    def run(self, *arguments, expect=0, **options):
        process = self.start(self.command(*arguments, **options))
        printed = process.communicate(timeout=300)[0]
        check((process.returncode == 0) == (expect == 0), f"exit code {process.returncode}, expected {expect}:\n{printed}")
        if expect:
            check(f"(exitcode: {expect})" in printed, printed)
        return printed

    def model(self, out):
        return (self.folder / out / "model.safetensors").read_bytes()

    def workers(self, out):
        """The processes that train in this folder, by rank."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.readlink(entry / "exe") == str(self.tool) and str(self.folder / out) in (entry / "cmdline").read_text():
                    environment = dict(part.split("=", 1) for part in (entry / "environ").read_text().split("\0") if "=" in part)
                    found[int(environment["RANK"])] = int(entry.name)
            except (OSError, KeyError):
                continue
        return found

    def worker(self, out, rank):
        for _ in range(600):
            pid = self.workers(out).get(rank)
            if pid is not None:
                return pid
            time.sleep(0.05)
        raise AssertionError(f"process {rank} did not start")

    def wait_for_steps(self, out):
        """Until the first checkpoint is there: what happens now happens in the middle of the training."""
        for _ in range(1200):
            if (self.folder / out / "checkpoint.safetensors").exists():
                return
            time.sleep(0.05)
        raise AssertionError("no checkpoint was written")


def check(holds, message):
    if not holds:
        raise AssertionError(message)


def count_failures(cases, campaign):
    """Tries each case, and says of each how it went."""
    failures = 0
    for case in cases:
        start = time.monotonic()
        try:
            case(campaign)
            outcome = "ok"
        except (AssertionError, subprocess.SubprocessError, OSError) as error:
            failures += 1
            outcome = f"FAILED: {error}"
        print(f"{case.__name__}: {time.monotonic() - start:.0f} s, {outcome}", flush=True)
    return failures


def undisturbed(campaign):
    printed = campaign.run("whole")
    check("bits per dimension" in printed and printed.count("bits per dimension") == 1, printed)
    results = json.loads((campaign.folder / "whole/results.json").read_text())
    check(results["finished"] and results["made_with"]["processes"] == 2, str(results["made_with"]))
    campaign.run("again")
    check(campaign.model("whole") == campaign.model("again"), "the same command gave other bits")
    campaign.run("four", processes=4)
    check(campaign.model("four") != b"", "four processes")


def one_process_under_torchrun(campaign):
    """One process is as without torchrun, to the bit."""
    campaign.run("launched", processes=1)
    settings = [f"--set={key}={value}" for key, value in SETTINGS.items()]
    command = [campaign.tool, "density", "train", f"--out={campaign.folder / 'plain'}", *settings]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    check(campaign.model("launched") == campaign.model("plain"), "torchrun changed the bits of one process")


def evaluated(campaign):
    command = [str(campaign.tool), "density", "eval", str(campaign.folder / "whole"), "--images=40", "--batch=8", "--inverse-images=10", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # as under torchrun
    one = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=300, env=environment).stdout)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", "--no-python"]
    done = subprocess.run([*launcher, *command], capture_output=True, text=True, timeout=300)
    check(done.returncode == 0, done.stderr)
    several = json.loads(done.stdout)
    for key in ("bits", "standard_error", "images", "inverse_images", "inverse_failures", "inverse_error", "iterations", "exact"):
        check(one[key] == several[key], f"{key}: {one[key]} in one process, {several[key]} in three")


def sampled(campaign):
    """The same samples from one process and from three, the last round of which is not full."""
    command = [str(campaign.tool), "density", "sample", str(campaign.folder / "whole"), "--count=23", "--batch=3", "--seed=5"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", "--no-python"]
    for name, launch in (("one", []), ("several", launcher)):
        out = [f"--out={campaign.folder / name}.png", f"--save-images={campaign.folder / name}.safetensors"]
        done = subprocess.run([*launch, *command, *out], capture_output=True, text=True, timeout=300, env=environment)
        check(done.returncode == 0 and done.stdout.count("23/23 converged") == 1, done.stdout + done.stderr)
    for suffix in (".png", ".safetensors"):
        one, several = ((campaign.folder / (name + suffix)).read_bytes() for name in ("one", "several"))
        check(one == several, f"{suffix}: one process has other bytes than three")
    nowhere = [*launcher, *command, f"--out={campaign.folder / 'x.png'}", f"--save-images={campaign.folder / 'none' / 'x.safetensors'}"]
    failed = subprocess.run(nowhere, capture_output=True, text=True, timeout=300, env=environment)
    check(failed.returncode != 0 and "(exitcode: 4)" in failed.stdout + failed.stderr, failed.stdout + failed.stderr)


DETECTION = {
    "train_images": 24,
    "validation_images": 5,
    "measured_images": 8,
    "pictures": 0,
    "epochs": 2,
    "batch": 4,
    "evaluate_every": 1,
    "report_every": 3,
    "flip": "false",
    "network.variant": "invertible-gaussian",
    "network.size": 64,
    "network.backbone.width": 8,
    "evaluation.batch": 2,
    "evaluation.inverse_images": 2,
}


def detection(campaign):
    """A detector whose batches are shared: normalised over the whole, to the same figures but for rounding, which trainings magnify."""
    settings = [f"--set={key}={value}" for key, value in DETECTION.items()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [str(campaign.tool), "detect", "train", *settings]
    figures, first = {}, {}
    for name, processes in (("one", 1), ("two", 2), ("again", 2)):
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "--no-python"] if processes > 1 else []
        out = campaign.folder / f"detector-{name}"
        done = subprocess.run([*launcher, *command, f"--out={out}"], capture_output=True, text=True, timeout=300, env=environment)
        check(done.returncode == 0 and done.stdout.count("S-measure") == 1, done.stdout + done.stderr)
        results = json.loads((out / "results.json").read_text())
        check(results["finished"] and len(list((out / "maps").iterdir())) == results["test"]["images"], "maps")
        figures[name] = results["test"]["s_measure"]
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        first[name] = next(line["loss"] for line in lines if "loss" in line)
    check((campaign.folder / "detector-two/model.safetensors").read_bytes() == (campaign.folder / "detector-again/model.safetensors").read_bytes(),
          "the same number of processes gave other bits")
    check(abs(first["one"] - first["two"]) < 1e-3 * abs(first["one"]), f"loss {first}")
    check(abs(figures["one"] - figures["two"]) < 0.05, f"S {figures}")
    evaluate = [str(campaign.tool), "detect", "eval", str(campaign.folder / "detector-two"), "--images=7", "--batch=2", "--json"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", "--no-python"]
    scores = []
    for launch in ([], launcher):
        maps = campaign.folder / f"maps-{len(scores)}"
        done = subprocess.run([*launch, *evaluate, f"--maps={maps}"], capture_output=True, text=True, timeout=300, env=environment)
        check(done.returncode == 0, done.stderr)
        scores.append({key: value for key, value in json.loads(done.stdout).items() if key != "seconds"})
        scores[-1]["maps"] = {path.name: path.read_bytes() for path in maps.iterdir()}
    check(scores[0] == scores[1] and len(scores[0]["maps"]) == 7, "scores or maps of one process and of three differ")


SLOW_DISK = '''
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
int renameat(int from, const char *old, int to, const char *name) {
  const char *rank = getenv("RANK");
  if (rank && strcmp(rank, "0") == 0 && strcmp(name, "checkpoint.safetensors") == 0) sleep(SECONDS);
  return (int)syscall(SYS_renameat2, from, old, to, name, 0);
}
'''


def slow_disk(campaign):
    """While process 0 writes a checkpoint all go on; it is there whole, or not at all."""
    source, library = campaign.folder / "slow.c", campaign.folder / "slow.so"
    source.write_text(SLOW_DISK)
    seconds = 6
    subprocess.run(["cc", f"-DSECONDS={seconds}", "-shared", "-fPIC", "-o", str(library), str(source)], check=True, capture_output=True)
    launcher = campaign.command("slow")
    place = launcher.index("--no-python") + 1
    process = campaign.start([*launcher[:place], "env", f"LD_PRELOAD={library}", *launcher[place:]])
    printed = process.communicate(timeout=300)[0]
    check(process.returncode == 0, printed)
    lines = [json.loads(line) for line in (campaign.folder / "slow/metrics.jsonl").read_text().splitlines()]
    reported = [line["seconds"] for line in lines if "bits" in line]
    check(len(reported) == 6 and reported[-1] < seconds, f"the steps waited for the disk: {reported}")
    check(campaign.model("whole") == campaign.model("slow"), "other bits with a slow disk")


VARIANT = '''#!/usr/bin/env bash
[[ -z ${WORLD_SIZE:-}${RANK:-} ]] || exit 9
while [[ $# -gt 0 ]]; do [[ $1 == --out ]] && out=$2; [[ $1 == --variant ]] && variant=$2; shift; done
mkdir -p "$out" && echo "$variant on $CUDA_VISIBLE_DEVICES" >>"$out/results.json" && echo "S-measure 1"
'''


def variants_of_detectors(campaign):
    """Each variant is one process's, which has a GPU of its own and knows of no other."""
    tool, out = campaign.folder / "train", campaign.folder / "variants"
    tool.write_text(VARIANT)
    tool.chmod(0o755)
    script = pathlib.Path(__file__).resolve().parents[2] / "scripts/detection_variants"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", "--no-python"]
    environment = {**os.environ, "INVATTN": str(tool), "CUDA_VISIBLE_DEVICES": "7,5,3,1"}
    done = subprocess.run([*launcher, str(script), str(out), "--", "--device", "cuda"], capture_output=True, text=True, timeout=120, env=environment)
    check(done.returncode == 0 and done.stdout.count("S-measure 1") == 9, done.stdout + done.stderr)
    trained = {path.parent.name: path.read_text() for path in out.glob("*/results.json")}
    kinds = ["gaussian", "embedded-gaussian", "dot-product", "concatenation"]
    names = ["base", *kinds, *(f"invertible-{kind}" for kind in kinds)]
    check(trained == {name: f"{name} on {[7, 5, 3, 1][place % 4]}\n" for place, name in enumerate(names)}, str(trained))


def two_launchers(campaign):
    """Two torchruns, as of two machines. Each counts the restarts of its own processes alone."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = campaign.command("launchers", restarts=3, more=["--process-timeout=30"])
    place = command.index("--standalone")
    shared = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=test", "--local-addr=127.0.0.1"]
    processes = [campaign.start([*command[:place], *shared, *command[place + 2 :]]) for _ in range(2)]
    campaign.wait_for_steps("launchers")
    os.kill(campaign.worker("launchers", 1), signal.SIGKILL)
    printed = [process.communicate(timeout=300)[0] for process in processes]
    check([process.returncode for process in processes] == [0, 0], "\n".join(printed))
    check(campaign.model("whole") == campaign.model("launchers"), "other bits after a restart on one of two machines")


def killed(campaign):
    """A process ends without a word, at any moment; torchrun starts all again."""
    out = f"killed-{time.monotonic_ns()}"
    process = campaign.start(campaign.command(out, restarts=3))
    rank = campaign.random.randrange(2)
    pid = campaign.worker(out, rank)
    moment = campaign.random.uniform(0, 4)
    time.sleep(moment)
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it was done
    printed = process.communicate(timeout=300)[0]
    check(process.returncode == 0, f"rank {rank} killed after {moment:.2f} s:\n{printed}")
    check(campaign.model("whole") == campaign.model(out), f"rank {rank} killed after {moment:.2f} s: other bits")


def hanging(campaign):
    """A process stands still: the others give up after --process-timeout, and torchrun starts all again."""
    out = "hanging"
    process = campaign.start(campaign.command(out, restarts=1, more=["--process-timeout=3"]))
    pid = campaign.worker(out, 1)
    campaign.wait_for_steps(out)
    os.kill(pid, signal.SIGSTOP)
    printed = process.communicate(timeout=300)[0]
    check(process.returncode == 0 and "Another process has ended or hangs" in printed, printed)
    check(campaign.model("whole") == campaign.model(out), "other bits after a process hung")


def asked_to_stop(campaign):
    """SIGTERM to torchrun, as of a scheduler: everything is saved, and the run goes on."""
    out = "stopped"
    process = campaign.start(campaign.command(out))
    campaign.worker(out, 1)
    campaign.wait_for_steps(out)
    process.send_signal(signal.SIGTERM)
    printed = process.communicate(timeout=300)[0]
    check(process.returncode != 0 and "everything is saved" in printed, printed)
    campaign.run(out, more=["--resume"])
    check(campaign.model("whole") == campaign.model(out), "other bits after a stop")


def full_disk(campaign):
    """The process that writes cannot: all end with its error, and the run goes on when there is room."""
    out = "full"
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20000, resource.RLIM_INFINITY))
    process = campaign.start(campaign.command(out), preexec_fn=limit)
    printed = process.communicate(timeout=300)[0]
    check(process.returncode != 0 and printed.count("error: ") == 1 and "File too large" in printed, printed)
    campaign.run(out, more=["--resume"])
    check(campaign.model("whole") == campaign.model(out), "other bits after a full disk")


def refused(campaign):
    """What cannot work is said before the first step, once."""
    shell = ["bash", "-c", 'exec "$0" "$@" --set seed=$RANK']
    for name, more, options, code, message in [
        ("odd", [], {"processes": 3}, 2, "expected a batch that 3 processes can share, got 16"),
        ("resumed", ["--resume"], {}, 4, "expected a configuration file"),
        ("traced", [f"--trace={campaign.folder / 'trace.json'}"], {}, 2, "expected one process for a timeline"),
    ]:
        printed = campaign.run(name, more=more, expect=code, **options)
        check(message in printed and not (campaign.folder / name / "metrics.jsonl").exists(), printed)
    command = campaign.command("apart")
    place = command.index(campaign.tool)
    process = campaign.start(command[:place] + shell + command[place:])
    printed = process.communicate(timeout=300)[0]
    check("expected the configuration of process 0 in every process, got another in process 1" in printed, printed)
    check(process.returncode != 0 and not (campaign.folder / "apart/config.toml").exists(), printed)
    command = campaign.command("none")
    place = command.index(campaign.tool)
    process = campaign.start([*command[: place + 2], "interpolate", str(campaign.folder / "whole"), f"--out={campaign.folder / 'paths.png'}"])
    printed = process.communicate(timeout=300)[0]
    check("expected one process for this command" in printed, printed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        print("no torch in this Python")
        return 77
    folder = pathlib.Path(tempfile.mkdtemp(prefix="invattn-test-"))
    campaign = Campaign(str(arguments.tool), folder, arguments.seed)
    cases = [undisturbed, one_process_under_torchrun, evaluated, sampled, detection, variants_of_detectors, refused, full_disk, asked_to_stop, hanging]
    cases += [slow_disk, two_launchers]
    try:
        failures = count_failures([*cases, *([killed] * arguments.kills)], campaign)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{failures} failures (seed {arguments.seed})")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
