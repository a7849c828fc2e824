"""A case of the campaign, and what most of them end with."""
import dataclasses
from typing import Callable

from runs import difference
from tool import complaint


@dataclasses.dataclass
class Case:
    name: str
    work: Callable  # of a Trial: what did not hold, or nothing
    group: str = ""  # a sample takes about as many of each


def goes_on(trial, baseline, folder):
    """After a fault: the run goes on to the same bits."""
    return complaint(trial.run(baseline.experiment.recovering(folder)), (0,)) or difference(folder, baseline.outcome)
