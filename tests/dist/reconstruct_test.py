#!/usr/bin/env python3
"""`invattn reconstruct` in several processes: cells shared out, processes killed, stopped, hanging, without room: every cell comes to what it does
in one process, to the bit.

usage: reconstruct_test.py TOOL [--kills N] [--seed S]

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

from torchrun_test import check, count_failures

SETTINGS = {"height": 12, "width": 16, "train_images": 64, "test_images": 4, "batch": 8, "epochs": 12, "pictures": 2, "measured_images": 16, "seeds": "[0,1]"}
CELLS = 8


class Processes:
    """Those that work on one run, started without torchrun, one rank after another."""

    def __init__(self, command, count, folders=None, limits=None):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.all = []
        for rank in range(count):
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank)}
            environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            own = {"cwd": folders[rank] if folders else None, "preexec_fn": (limits or {}).get(rank)}
            self.all.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, **own))

    def end(self, seconds=240):
        """The exit codes, and what they printed."""
        end = time.monotonic() + seconds
        printed = []
        try:
            for process in self.all:
                printed.append(process.communicate(timeout=max(0.1, end - time.monotonic()))[0])
        finally:
            for process in self.all:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
        return [process.returncode for process in self.all], printed


class Campaign:
    def __init__(self, tool, folder, seed):
        self.tool, self.folder, self.random = tool, folder, random.Random(seed)

    def command(self, out, *more, settings=None, data=("synthetic",)):
        settings = [f"--set={key}={value}" for key, value in {**SETTINGS, **(settings or {})}.items()]
        data = [f"--data={name}" for name in data]
        if "--resume" in more:
            settings, data = [], []
        return [self.tool, "reconstruct", "--threads=1", f"--out={self.folder / out}", *data, *settings, *more]

    def resume(self, out, processes):
        codes, printed = Processes(self.command(out, "--resume"), processes).end()
        check(codes == [0] * processes, "\n".join(printed))
        return printed

    def torchrun(self, processes, restarts, command):
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", f"--max-restarts={restarts}"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHELASTIC_ERROR_FILE": ""}
        launcher += ["--monitor-interval=0.1", "--no-python", *command]
        return subprocess.Popen(launcher, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)

    def rank_of(self, out):
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.readlink(entry / "exe") == self.tool and str(self.folder / out) in (entry / "cmdline").read_text():
                    environment = dict(part.split("=", 1) for part in (entry / "environ").read_text().split("\0") if "=" in part)
                    found[int(environment["RANK"])] = int(entry.name)
            except (OSError, KeyError):
                continue
        return found

    def wait_until(self, holds, what):
        for _ in range(2400):
            if holds():
                return
            time.sleep(0.02)
        raise AssertionError(f"waited in vain for {what}")

    def wait_for_cells(self, out, count):
        """Until so many are done and another one is under way."""
        done = lambda: len(list((self.folder / out).glob("cells/*/cell.json"))) >= count
        under_way = lambda: list((self.folder / out).glob("cells/*/checkpoint.safetensors"))
        self.wait_until(lambda: done() and under_way(), f"{count} cells")

    def result(self, out):
        """All that is the same in every way to come to it."""
        run = self.folder / out

        def timeless(row):
            row = {key: value for key, value in row.items() if key != "seconds"}
            return {**row, "inverses": [{key: value for key, value in inverse.items() if key != "seconds"} for inverse in row["inverses"]]}

        results = json.loads((run / "results.json").read_text())
        check(results["finished"] and len(results["rows"]) == CELLS, f"{out}: {len(results['rows'])} rows")
        found = {"metrics.jsonl": (run / "metrics.jsonl").read_bytes(), "rows": [timeless(row) for row in results["rows"]]}
        for path in sorted(run.glob("cells/*/*")):
            name = str(path.relative_to(run))
            found[name] = timeless(json.loads(path.read_text())) if path.suffix == ".json" else path.read_bytes()
        check((run / "report.html").exists() and not list(run.glob("**/.invattn*")), f"{out}: no report, or something is left over")
        return found

    def check_same(self, out):
        whole, other = self.result("whole"), self.result(out)
        check(whole.keys() == other.keys(), f"{out}: {sorted(whole.keys() ^ other.keys())}")
        for name, value in whole.items():
            check(value == other[name], f"{out}: {name} is another than in one process")


def shared_out(campaign):
    done = subprocess.run(campaign.command("whole"), capture_output=True, text=True, timeout=240, env={**os.environ, "OMP_NUM_THREADS": "1"})
    check(done.returncode == 0, done.stdout + done.stderr)
    for processes in (2, 3):
        out = f"shared-{processes}"
        codes, printed = Processes(campaign.command(out), processes).end()
        check(codes == [0] * processes, "\n".join(printed))
        others = [line for text in printed[1:] for line in text.splitlines() if "[c10d]" not in line]
        check("Report: " in printed[0] and not others, "process 0 alone says what comes to be:\n" + "\n".join(printed))
        check(all(f"seed {seed}: loss" in printed[0] for seed in (0, 1)), printed[0])
        check(json.loads((campaign.folder / out / "results.json").read_text())["made_with"]["processes"] == processes, "processes")
        campaign.check_same(out)


def more_processes_than_cells(campaign):
    codes, printed = Processes(campaign.command("few", "--kind=concatenation", settings={"seeds": "[0]"}), 3).end()
    check(codes == [0, 0, 0], "\n".join(printed))
    check(len(json.loads((campaign.folder / "few/results.json").read_text())["rows"]) == 1, "rows")


def killed(campaign):
    """A process ends without a word at any moment; torchrun starts all again."""
    out = f"killed-{time.monotonic_ns()}"
    process = campaign.torchrun(2, 3, campaign.command(out))
    rank = campaign.random.randrange(2)
    campaign.wait_until(lambda: rank in campaign.rank_of(out), f"process {rank}")
    moment = campaign.random.uniform(0, 4)
    time.sleep(moment)
    try:
        os.kill(campaign.rank_of(out).get(rank, 0) or 2**22, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it was done
    printed = process.communicate(timeout=240)[0]
    check(process.returncode == 0, f"rank {rank} killed after {moment:.2f} s:\n{printed}")
    campaign.check_same(out)


def killed_alone(campaign):
    """The same without a launcher: the others end by themselves, with all that they have saved."""
    for rank in range(2):
        out = f"alone-{rank}"
        processes = Processes(campaign.command(out, "--process-timeout=3"), 2)
        campaign.wait_for_cells(out, 1)
        processes.all[rank].kill()
        codes, printed = processes.end()
        check(codes[rank] == -signal.SIGKILL and codes[1 - rank] == 5, f"{codes}\n" + "\n".join(printed))
        check(printed[1 - rank].count("error: ") == 1 and "Another process has ended or hangs" in printed[1 - rank], printed[1 - rank])
        campaign.resume(out, 3 - rank)
        campaign.check_same(out)


def hanging(campaign):
    processes = Processes(campaign.command("hanging", "--process-timeout=3"), 2)
    campaign.wait_for_cells("hanging", 1)
    processes.all[1].send_signal(signal.SIGSTOP)
    processes.all[0].wait(timeout=120)
    processes.all[1].kill()
    codes, printed = processes.end()
    check(codes[0] == 5 and "no sign of them for 3 s" in printed[0], f"{codes}\n{printed[0]}")
    campaign.resume("hanging", 2)
    campaign.check_same("hanging")


def asked_to_stop(campaign):
    """SIGTERM to torchrun, as of a scheduler; Ctrl-C in one process: all save and end, and any number of processes goes on."""
    process = campaign.torchrun(2, 0, campaign.command("stopped"))
    campaign.wait_for_cells("stopped", 1)
    process.send_signal(signal.SIGTERM)
    printed = process.communicate(timeout=240)[0]
    check(process.returncode != 0 and printed.count("everything is saved") == 1, printed)
    campaign.resume("stopped", 3)
    campaign.check_same("stopped")
    for rank in range(2):
        out = f"interrupted-{rank}"
        processes = Processes(campaign.command(out), 2)
        campaign.wait_for_cells(out, 1)
        processes.all[rank].send_signal(signal.SIGINT)
        codes, printed = processes.end()
        check(codes == [130, 130] and "everything is saved" in printed[0] and "error" not in "".join(printed), f"{codes}\n" + "\n".join(printed))
        check((campaign.folder / out / "report.html").exists(), "no report of what there is")
        campaign.resume(out, 2 - rank)
        campaign.check_same(out)


def full_disk(campaign):
    """One process, or each, cannot write: one message, one exit code, and the run goes on when there is room."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (9000, resource.RLIM_INFINITY))
    later = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))  # enough for all but the report
    for name, limits in [("all", {0: limit, 1: limit}), ("first", {0: limit}), ("second", {1: limit}), ("report", {0: later})]:
        out = f"full-{name}"
        codes, printed = Processes(campaign.command(out), 2, limits=limits).end()
        text = "\n".join(printed)
        check(codes == [4, 4] and text.count("error: ") == 1 and "File too large" in text, f"{name}: {codes}\n{text}")
        if (campaign.folder / out / "config.toml").exists():
            campaign.resume(out, 2)
        else:  # nothing of it was begun
            codes, printed = Processes(campaign.command(out), 2).end()
            check(codes == [0, 0], "\n".join(printed))
        campaign.check_same(out)


def failing_cell(campaign):
    """What one process cannot do ends all, with its message and its exit code; what the others have done stays."""
    shutil.copytree(campaign.folder / "whole", campaign.folder / "failing")
    ids = [row["id"] for row in json.loads((campaign.folder / "failing/results.json").read_text())["rows"]]
    for name in ids[-4:]:
        shutil.rmtree(campaign.folder / "failing/cells" / name)
    (campaign.folder / "failing/cells" / ids[-1]).write_text("where the folder of a cell should be\n")
    codes, printed = Processes(campaign.command("failing", "--resume"), 2).end()
    text = "\n".join(printed)
    check(codes == [4, 4] and text.count("error: ") == 1 and ids[-1] in text, f"{codes}\n{text}")
    rows = json.loads((campaign.folder / "failing/results.json").read_text())
    left = list((campaign.folder / "failing").glob("cells/*/cell.json"))
    check(not rows["finished"] and len(left) >= CELLS - 2, f"finished cells are gone: {left}")
    codes, printed = Processes(campaign.command("taken-back", data=("celeba:/nowhere",)), 2).end()
    text = "\n".join(printed)
    check(codes == [4, 4] and text.count("error: ") == 1, f"{codes}\n{text}")
    codes, printed = Processes(campaign.command("taken-back"), 2).end()
    check(codes == [0, 0], "a start that fails leaves no run:\n" + "\n".join(printed))
    campaign.check_same("taken-back")


def refused(campaign):
    """What cannot work is said before the first step, once."""
    folders = [campaign.folder / name for name in ("here", "there")]
    for folder in folders:
        folder.mkdir()
    command = [part if not part.startswith("--out") else "--out=run" for part in campaign.command("any")]
    codes, printed = Processes(command, 2, folders=folders).end()
    text = "\n".join(printed)
    check(codes == [2, 2] and text.count("error: ") == 1 and "where process 1 does not find what process 0 writes" in text, f"{codes}\n{text}")
    check(not (folders[0] / "run/config.toml").exists(), "a run was begun")
    for more, message in [([], "expected a folder without a run"), (["--resume", "--set=epochs=3"], "expected the configuration of the run")]:
        codes, printed = Processes(campaign.command("whole", *more), 2).end()
        text = "\n".join(printed)
        check(codes == [2, 2] and text.count("error: ") == 1 and message in text, f"{codes}\n{text}")
    nameless = [part for part in campaign.command("any") if not part.startswith("--out")]
    codes, printed = Processes(nameless, 2).end()
    check(codes == [2, 2] and "Name it by --out" in printed[0], f"{codes}\n" + "\n".join(printed))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--kills", type=int, default=1)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        print("no torch in this Python")
        return 77
    folder = pathlib.Path(tempfile.mkdtemp(prefix="invattn-test-"))
    campaign = Campaign(str(arguments.tool), folder, arguments.seed)
    cases = [shared_out, more_processes_than_cells, refused, failing_cell, full_disk, asked_to_stop, hanging, killed_alone]
    try:
        failures = count_failures([*cases, *([killed] * arguments.kills)], campaign)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{failures} failures (seed {arguments.seed})")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
