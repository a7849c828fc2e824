"""A run that is killed, whose power is cut, or whose disk fails."""
import errno
import re
import signal

import journal
from case import Case, goes_on
from runs import EXPERIMENTS, difference
from tool import complaint


def crash(campaign):
    """At every moment of a run: killed, or the power cut with everything lost that was not synced."""
    for name in EXPERIMENTS:
        baseline = campaign.baseline(name)
        for number, kind in journal.crashes(baseline.calls, campaign.seed):
            def work(trial, baseline=baseline, number=number, kind=kind):
                folder = trial.folder / "run"
                journal.write_state(journal.crash_state(baseline.calls, number, kind, campaign.seed), folder)
                return goes_on(trial, baseline, folder)
            last = f"after {baseline.calls[number - 1]}" if number else "at the start"
            last = re.sub(r"\d{6,}|[0-9a-f]{16}", "*", last)
            yield Case(f"{name}, {kind} at call {number} of {len(baseline.calls)}, {last}", work, f"{name} {kind}")


def failing(campaign):
    """Every call fails once with EIO; from every call on the disk is full."""
    for name in EXPERIMENTS:
        baseline = campaign.baseline(name)
        for call in (call for place, call in enumerate(baseline.calls) if not journal.alike(baseline.calls, place)):
            for error in (errno.ENOSPC, errno.EIO):
                def work(trial, baseline=baseline, number=call.number, error=error):
                    folder = trial.folder / "run"
                    faults = {"FAULTS_FOLDER": str(folder), "FAULTS_AT": str(number), "FAULTS_ERROR": str(error)}
                    result = trial.run(baseline.experiment.starting(folder), environment={"LD_PRELOAD": str(campaign.shim), **faults})
                    problem = complaint(result, (0, 4))
                    if not problem and result.code == 0:
                        return difference(folder, baseline.outcome)
                    if not problem and error == errno.ENOSPC:
                        left = sorted(folder.rglob(".invattn-*"))
                        problem = f"leaves {left[0].name} on a full disk" if left else ""
                    return problem or goes_on(trial, baseline, folder)
                path = re.sub(r"\d{6,}|[0-9a-f]{16}", "*", str(call))
                yield Case(f"{name}, {errno.errorcode[error]} at call {call.number}, {path}", work, f"{name} {error}")


def kills(campaign):
    """Killed or told to stop at any moment, up to three times."""
    for name in EXPERIMENTS:
        baseline = campaign.baseline(name)
        for number in range(40):
            chance = campaign.chance("kills", name, number)
            signals = [chance.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]) for _ in range(chance.randint(1, 3))]
            moments = [chance.random() for _ in signals]

            def work(trial, baseline=baseline, signals=signals, moments=moments):
                folder = trial.folder / "run"
                for kind, moment in zip(signals, moments):
                    result = trial.run(baseline.experiment.recovering(folder), stop_after=moment * baseline.seconds, stop_by=kind,
                                       note=f"# {kind.name} after {moment * baseline.seconds:.2f} s")
                    problem = complaint(result, (0, 130, -kind))  # ended by it, where it came before the tool could listen
                    if problem:
                        return problem
                return goes_on(trial, baseline, folder)
            yield Case(f"{name} {number}: {', '.join(kind.name for kind in signals)}", work, name)
