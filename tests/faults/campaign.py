#!/usr/bin/env python3
"""Disturbs the built tool in every way that a disk, a user or a stranger's file may, and says what did not hold.

Allowed are the result of an undisturbed run, or exit code 2, 3 or 4 with `[origin] expected …, got …. Next step.`; after any fault a run
goes on, by --resume or by the same command once more, to the same bits. `make faults` runs everything (hours), `make faults SHORT=1` a
sample of every class that --seed chooses.
"""
import argparse
import concurrent.futures
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import classes
from runs import EXPERIMENTS, Baseline
from tool import Tool, quoted

HERE = Path(__file__).resolve().parent


class Trial:
    """What a case has to work with: a folder of its own, the tool, and a record of the commands."""

    def __init__(self, tool, folder):
        self._tool, self.folder, self.commands = tool, folder, []

    def run(self, arguments, note="", **how):
        environment = " ".join(f"{name}={value}" for name, value in how.get("environment", {}).items())
        self.commands.append(" ".join(filter(None, [environment, quoted([*how.get("prefix", ()), self._tool.path, *arguments]), note])))
        return self._tool.run(arguments, **how)


class Campaign:
    def __init__(self, arguments):
        self.seed, self.short = arguments.seed, arguments.short
        self.work = Path(tempfile.mkdtemp(prefix="invattn-faults-", dir=arguments.work)).resolve()
        self.keep, self.match, self.jobs = arguments.keep, arguments.match, arguments.jobs
        self.tool = Tool(Path(arguments.tool).resolve())
        self.shim = self.work / "shim.so"
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", self.shim,
                        HERE / "shim.c", "-ldl"], check=True)
        self._baselines = {}

    def baseline(self, name):
        if name not in self._baselines:
            self._baselines[name] = Baseline(EXPERIMENTS[name], self.tool, self.shim, self.work)
        return self._baselines[name]

    def other_density(self):
        """A density run without attention, for the commands that compare."""
        folder = self.work / "other-density"
        if not folder.exists():
            result = self.tool.run([*EXPERIMENTS["density"].starting(folder), "--set", "flow.attention=none"])
            if result.code != 0:
                raise SystemExit(f"faults: an undisturbed run without attention failed: {result.error}")
        return folder

    def chance(self, *about):
        """A generator of its own for each use, so that one class does not change another."""
        return random.Random(" ".join(map(str, (self.seed, *about))))

    def choose(self, name, cases, count):
        """`count` of the cases, of each group about as many; all of them where it is None."""
        cases = [case for case in cases if self.match in f"{name}: {case.name}"]
        if count is None or count >= len(cases):
            return cases
        chance = self.chance("choose", name)
        groups = {}
        for case in cases:
            groups.setdefault(case.group, []).append(case)
        queues = list(groups.values())
        chance.shuffle(queues)
        for queue in queues:
            chance.shuffle(queue)
        chosen = []
        while len(chosen) < count:
            for queue in queues:
                if queue and len(chosen) < count:
                    chosen.append(queue.pop())
        return chosen

    def attempt(self, case):
        folder = Path(tempfile.mkdtemp(prefix="case-", dir=self.work))
        trial = Trial(self.tool, folder)
        try:
            problem = case.work(trial)
        except Exception as error:  # the campaign itself went wrong, which is no reason to pass
            problem = f"the campaign failed: {type(error).__name__}: {error}"
        if problem and self.keep:
            trial.commands.append(f"# folder kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
        return problem, trial.commands

    def run(self, name, make, count):
        """(cases tried, [(case, problem, commands)])"""
        cases = self.choose(name, make(self), count)
        started = time.monotonic()
        broken = []
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            for case, (problem, commands) in zip(cases, pool.map(self.attempt, cases)):
                if problem:
                    broken.append((case, problem, commands))
                    report(name, case, problem, commands, self.seed)
        print(f"{name}: {len(cases)} tried, {len(broken)} broken, {time.monotonic() - started:.0f} s", flush=True)
        return len(cases), broken


def report(name, case, problem, commands, seed):
    print(f"BROKEN {name}: {case.name}\n  {problem}", flush=True)
    for command in commands:
        print(f"  $ {command}")
    print(f"  again: tests/faults/campaign.py --seed {seed} --keep --only {name} --match {quoted([f'{name}: {case.name}'])}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", default="build/invattn", help="the built tool (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is chosen at random (%(default)s)")
    parser.add_argument("--short", action="store_true", help="a sample of every class: about two minutes on two cores")
    parser.add_argument("--cases", type=int, help="of each class, at most (default: all; --short: by class)")
    parser.add_argument("--only", action="append", choices=list(classes.ALL), help="this class alone; may be repeated")
    parser.add_argument("--match", default="", help="only cases whose `class: name` holds this text")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="cases at a time (%(default)s)")
    parser.add_argument("--work", help="folder for the runs (default: a new one below the system's temporary folder)")
    parser.add_argument("--keep", action="store_true", help="leave the folders of broken cases")
    arguments = parser.parse_args()
    campaign = Campaign(arguments)
    tried, broken = {}, {}
    try:
        for name in arguments.only or classes.ALL:
            make, sample = classes.ALL[name]
            count = sample if arguments.short else None
            if arguments.match:
                count = None
            tried[name], broken[name] = campaign.run(name, make, arguments.cases or count)
    finally:
        if not arguments.keep:
            shutil.rmtree(campaign.work, ignore_errors=True)
    print(f"\n| {'class':<12} | tried | held | broken |\n|{'-' * 14}|------:|-----:|-------:|")
    for name in tried:
        failures = len(broken[name])
        print(f"| {name:<12} | {tried[name]:>5} | {tried[name] - failures:>4} | {failures:>6} |")
    failures = sum(map(len, broken.values()))
    print(f"{sum(tried.values()) - failures} passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
