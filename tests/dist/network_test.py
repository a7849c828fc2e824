#!/usr/bin/env python3
"""Two processes on two machines whose network fails: two network namespaces of this one, joined by a cable that is pulled.

usage: network_test.py TOOL

Exit code 77: network namespaces cannot be made here (that needs root and `ip`, of iproute2), or this Python has no torch, whose torchrun is needed.
"""

import argparse
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import reconstruct_test
from torchrun_test import Campaign, check, count_failures

TIMEOUT = 4  # seconds, --process-timeout
MARGIN = 25  # and what ending takes at most, on a busy machine


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Machines:
    """Two of them, with one cable."""

    def __init__(self):
        self.names = [f"invattn-{os.getpid()}-{rank}" for rank in range(2)]
        self.addresses = ["10.251.0.1", "10.251.0.2"]

    def __enter__(self):
        try:
            for name in self.names:
                ip("netns", "add", name)
            ip("link", "add", "cable", "netns", self.names[0], "type", "veth", "peer", "name", "cable", "netns", self.names[1])
            for name, address in zip(self.names, self.addresses):
                ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
                for device in ("lo", "cable"):
                    ip("-n", name, "link", "set", device, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def pull(self):
        """From now on nothing arrives, and nobody is told."""
        ip("-n", self.names[1], "link", "set", "cable", "down")

    def plug_in(self):
        ip("-n", self.names[1], "link", "set", "cable", "up")

    def start(self, machine, command, **variables):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "cable", "TORCHELASTIC_ERROR_FILE": "", **variables}
        command = ["ip", "netns", "exec", self.names[machine], *command]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)

    def processes(self, command):
        """One on each, without torchrun."""
        return [
            self.start(rank, command, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0", MASTER_ADDR=self.addresses[0], MASTER_PORT="29511")
            for rank in range(2)
        ]


def ends(processes, seconds):
    """What each printed; all have to end in time."""
    end = time.monotonic() + seconds
    printed = []
    try:
        for process in processes:
            printed.append(process.communicate(timeout=max(0.1, end - time.monotonic()))[0])
    except subprocess.TimeoutExpired as late:
        raise AssertionError(f"a process went on for {seconds} s: {late.stdout}") from late
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return printed


class Case:
    def __init__(self, tool, folder, machines):
        self.campaign, self.machines, self.folder, self.tool = Campaign(tool, folder, 0), machines, folder, tool

    def density(self, out, *more):
        command = self.campaign.command(out, more=[f"--process-timeout={TIMEOUT}", *more])
        return command[command.index(self.tool) :]

    def wait_for(self, pattern):
        for _ in range(1200):
            if list(self.folder.glob(pattern)):
                return
            time.sleep(0.05)
        raise AssertionError(f"nothing appeared at {pattern}")

    def finish(self, command):
        processes = self.machines.processes(command)
        printed = ends(processes, 120)
        check([process.returncode for process in processes] == [0, 0], "\n".join(printed))
        return printed

    def lost(self, command, begun):
        """The cable is pulled once there is what `begun` names: both processes say so and end."""
        processes = self.machines.processes(command)
        self.wait_for(begun)
        self.machines.pull()
        try:
            printed = ends(processes, TIMEOUT + MARGIN)
        finally:
            self.machines.plug_in()
        for process, text in zip(processes, printed):
            check(process.returncode == 5, f"exit code {process.returncode}, expected 5:\n{text}")
            check(text.count("error: ") == 1 and "Another process has ended or hangs" in text, text)


def resumed(case):
    """A training that has lost its network goes on by --resume to the bits of one that has not."""
    case.finish(case.density("undisturbed"))
    case.lost(case.density("lost"), "lost/checkpoint.safetensors")
    case.finish(case.density("lost", "--resume"))
    check(case.campaign.model("undisturbed") == case.campaign.model("lost"), "other bits after the network was lost")


def restarted(case):
    """The same by torchrun alone, once the network is back."""
    machines = case.machines
    command = case.density("again")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--max-restarts=3", "--monitor-interval=0.1"]
    launcher += ["--rdzv-backend=c10d", f"--rdzv-endpoint={machines.addresses[0]}:29512", "--rdzv-id=network", "--no-python"]
    start = launcher.index("--no-python")
    processes = []
    for rank in range(2):  # both have one name, by which torchrun would see who is to host its store
        own = [f"--local-addr={machines.addresses[rank]}", f"--rdzv-conf=is_host={1 - rank}"]
        processes.append(machines.start(rank, [*launcher[:start], *own, *launcher[start:], *command]))
    try:
        case.wait_for("again/checkpoint.safetensors")
        machines.pull()
        time.sleep(TIMEOUT + 4)
    finally:
        machines.plug_in()
        printed = ends(processes, 150)
    check([process.returncode for process in processes] == [0, 0], "\n".join(printed))
    check("Another process has ended or hangs" in "".join(printed), "\n".join(printed))
    check(case.campaign.model("undisturbed") == case.campaign.model("again"), "other bits after the network was lost and found")


def cells(case):
    """Cells that are shared out: each process saves what it is at, and the rest is done by --resume."""
    campaign = reconstruct_test.Campaign(case.tool, case.folder, 0)
    alone = campaign.command("whole")
    subprocess.run(alone, check=True, capture_output=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})
    case.lost(campaign.command("cells", f"--process-timeout={TIMEOUT}"), "cells/cells/*/cell.json")
    case.finish(campaign.command("cells", "--resume"))
    campaign.check_same("cells")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", type=lambda path: pathlib.Path(path).resolve())
    arguments = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        print("no torch in this Python")
        return 77
    machines = Machines()
    try:
        machines.__enter__()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no network namespaces: {getattr(error, 'stderr', '') or error}".strip(), "(they need root, and ip of iproute2)")
        return 77
    folder = pathlib.Path(tempfile.mkdtemp(prefix="invattn-test-"))
    case = Case(str(arguments.tool), folder, machines)
    try:
        failures = count_failures([resumed, restarted, cells], case)
    finally:
        machines.__exit__()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
