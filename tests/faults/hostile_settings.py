"""Settings that nobody should give."""
import re

from case import Case
from runs import COMPUTE, EXPERIMENTS, settings
from tool import complaint

NUMBERS = ["-1", "0", "-9223372036854775808", "9223372036854775807", "1e300", "-1e300", "nan", "inf", "-inf", "1e-300"]
OTHERS = ["", "[]", "[-1]", "[9223372036854775807]", "[nan]", "{}", "true", "x", "\x1b[31mred", "[[]]"]
MAY_BE_NEGATIVE = {"network.backbone.mean"}  # a mean


def keys(campaign, command):
    """(key, type) of every setting of a command, as --keys lists them."""
    result = campaign.tool.run([*command, "--keys"])
    for line in result.out.decode().splitlines():
        columns = [column.strip().strip("`") for column in line.strip("| ").split(" | ")] if "|" in line else line.split("  ")
        words = [word for word in columns if word]
        if len(words) >= 2 and re.fullmatch(r"[a-z_0-9.\[\]]+", words[0]) and words[0] != "key":
            yield words[0].replace("[]", "[0]"), words[1]


def must_refuse(key, kind, value):
    """Whether the value is out of the range of any setting like this, wherever it is used. Of others the tool knows more."""
    if value in ("nan", "inf", "-inf", "[nan]"):
        return True
    if not kind.startswith(("integer", "number")) or key in MAY_BE_NEGATIVE:
        return False
    if value in OTHERS or (kind.startswith("integer") and "e" in value):
        return True
    return value.startswith("-") and not key.endswith("seed")


def hostile_settings(campaign):
    """Every setting out of its range, of another type, or absurd: read alone, and started."""
    bases = {"density": ["density", "train"], "plane": ["density", "train", "--data", "two-moons"], "detect": ["detect", "train"],
             "reconstruct": ["reconstruct"]}
    for base, command in bases.items():
        small = EXPERIMENTS[base].start if base in EXPERIMENTS else settings(steps=2, train_images=40, validation_images=10, batch=8)
        for key, kind in keys(campaign, command[:2] if base != "reconstruct" else command):
            if "table" in kind:
                continue
            for value in NUMBERS + OTHERS:
                refused = must_refuse(key, kind, value)

                def read(trial, command=command, key=key, value=value, refused=refused):
                    result = trial.run([*command, "--print-config", "--set", f"{key}={value}"])
                    return complaint(result, (2,) if refused else (0, 2))

                def start(trial, command=command, small=small, key=key, value=value, refused=refused):
                    result = trial.run([*command, *COMPUTE, *small, "--out", "run", "--set", f"{key}={value}"], folder=trial.folder,
                                       stop_after=8)
                    problem = complaint(result, (2,) if refused else (0, 2, 3, 4, 130))
                    if problem or result.code not in (2, 4):
                        return problem
                    return "" if not (trial.folder / "run" / "config.toml").exists() else "refused, but leaves config.toml behind"
                shown = repr(value)[1:-1]
                yield Case(f"{base} {key}={shown}, --print-config", read, f"{base} read {refused}")
                yield Case(f"{base} {key}={shown}, a start", start, f"{base} start {refused}")
