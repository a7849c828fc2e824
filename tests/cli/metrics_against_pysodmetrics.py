"""`invattn metrics` gives the numbers of the Python package pysodmetrics to 1e-6, on maps made here.

usage: metrics_against_pysodmetrics.py TOOL          compare
       metrics_against_pysodmetrics.py TOOL --time   compare, then measure both on the same files, side by side
"""

import csv
import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

SKIPPED = 77
TOLERANCE = 1e-6

try:
    import cv2
    import numpy as np
    import py_sod_metrics as package
except ImportError as error:
    print(f"skipped: {error}. Install it: {sys.executable} -m pip install -r requirements-test.txt")
    sys.exit(SKIPPED)

SIZES = [(1, 9), (2, 1), (9, 2), (16, 16), (33, 48), (101, 77), (120, 203)]


def truths(rng, height, width):
    y, x = np.mgrid[:height, :width]
    blank = np.zeros((height, width), bool)
    pixel, corner = blank.copy(), blank.copy()
    pixel[(height - 1) // 3, (width - 1) // 2] = True
    corner[-1, -1] = True
    return {
        "ellipse": ((y - 0.4 * height) / height) ** 2 * 2 + ((x - 0.55 * width) / width) ** 2 < 0.08,
        "blobs": cv2.GaussianBlur(rng.random((height, width)), (0, 0), 4) > 0.51,
        "noise": rng.random((height, width)) < 0.1,
        "chequers": (y // 3 + x // 3) % 2 == 0,
        "frame": (y < 1) | (x < 1) | (y == height - 1) | (x == width - 1),
        "half": x < width // 2,
        "pixel": pixel,
        "corner": corner,
        "empty": blank,
        "full": ~blank,
    }


def predictions(rng, truth):
    height, width = truth.shape
    noise = rng.integers(0, 256, truth.shape)
    soft = cv2.GaussianBlur(truth.astype(float), (0, 0), 2.5)
    return {
        "noise": noise,
        "soft": np.clip(200 * soft + noise / 6, 0, 255),
        "narrow": 90 + noise % 23,
        "perfect": truth * 255,
        "inverse": ~truth * 255,
        "quarters": np.array([0, 64, 129, 255])[noise // 64],
        "ramp": np.linspace(3, 250, height * width).reshape(truth.shape),
        "bands": np.repeat(np.arange(height) * 4 // height * 60 + 10, width).reshape(truth.shape),
        "black": truth * 0,
        "grey77": truth * 0 + 77,
        "grey128": truth * 0 + 128,
        "white": truth * 0 + 255,
    }


def cases(rng):
    """(name, prediction, truth), uint8, of one size or not."""
    for height, width in SIZES:
        for kind, truth in truths(rng, height, width).items():
            # What is above 128 is object, so that 128 and 129 lie on either side.
            mask = np.where(truth, rng.choice([129, 200, 255], truth.shape), rng.choice([0, 127, 128], truth.shape)).astype(np.uint8)
            for method, prediction in predictions(rng, truth).items():
                yield f"{height}x{width}-{kind}-{method}", prediction.astype(np.uint8), mask
    for (height, width), (h, w) in [((40, 60), (20, 30)), ((31, 57), (64, 50)), ((1, 1), (12, 9)), ((90, 20), (33, 77)), ((352, 352), (120, 203))]:
        truth = truths(rng, h, w)["ellipse"]
        prediction = predictions(rng, truths(rng, height, width)["ellipse"])["soft"]
        yield f"resized-{height}x{width}-{h}x{w}", prediction.astype(np.uint8), truth.astype(np.uint8) * 255


class WholeSmeasure(package.Smeasure):
    """Where the object's centroid lies in the last row or column, quadrants have no pixels and no weight; the package makes NaN of them."""

    def ssim(self, pred, gt):
        return super().ssim(pred, gt) if pred.size else 0.0


class Reference:
    """All measures of the package, fed with one pair of maps after another."""

    def __init__(self):
        self.mae, self.s, self.f = package.MAE(), WholeSmeasure(), package.Fmeasure()
        self.e, self.weighted = package.Emeasure(), package.WeightedFmeasure()

    def step(self, prediction, truth):
        if prediction.shape != truth.shape:
            prediction = cv2.resize(prediction, truth.shape[::-1], interpolation=cv2.INTER_LINEAR)
        for measure in (self.mae, self.s, self.f, self.e, self.weighted):
            measure.step(prediction, truth)

    def per_image(self, i):
        f, e = self.f.changeable_fms[i], self.e.changeable_ems[i]
        return {
            "mae": self.mae.maes[i], "s_measure": self.s.sms[i], "weighted_f": self.weighted.weighted_fms[i],
            "f_adaptive": self.f.adaptive_fms[i], "f_mean": f.mean(), "f_max": f.max(),
            "e_adaptive": self.e.adaptive_ems[i], "e_mean": e.mean(), "e_max": e.max(),
        }

    def overall(self):
        f, e, pr = self.f.get_results()["fm"], self.e.get_results()["em"], self.f.get_results()["pr"]
        # The package's curves go from threshold 255 down to 0.
        return {
            "mae": self.mae.get_results()["mae"], "s_measure": self.s.get_results()["sm"], "weighted_f": self.weighted.get_results()["wfm"],
            "f_measure": {"adaptive": f["adp"], "mean": f["curve"].mean(), "max": f["curve"].max()},
            "e_measure": {"adaptive": e["adp"], "mean": e["curve"].mean(), "max": e["curve"].max()},
            "curves": {"precision": pr["p"][::-1], "recall": pr["r"][::-1], "f_measure": f["curve"][::-1], "e_measure": e["curve"][::-1]},
        }


def run_tool(tool, folder, *more):
    command = [tool, "metrics", "--predictions", folder / "predictions", "--truth", folder / "truth", "--json", *more]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"FAILED: {command} exited with {result.returncode}: {result.stderr}")
    return json.loads(result.stdout)


def differences(ours, theirs, name=""):
    """(name, how far apart) of all numbers of two nested dictionaries."""
    if isinstance(theirs, dict):
        for key, value in theirs.items():
            yield from differences(ours[key], value, f"{name} {key}")
    else:
        yield name, float(np.max(np.abs(np.asarray(ours, dtype=float) - theirs)))


def write_maps(folder, maps):
    for part in ("predictions", "truth"):
        (folder / part).mkdir()
    for name, prediction, truth in maps:
        cv2.imwrite(str(folder / "predictions" / f"{name}.png"), prediction)
        cv2.imwrite(str(folder / "truth" / f"{name}.png"), truth)


def compare(tool, folder):
    maps = sorted(cases(np.random.default_rng(1)))
    write_maps(folder, maps)
    reference = Reference()
    for _, prediction, truth in maps:
        reference.step(prediction, truth)
    overall = run_tool(tool, folder, "--per-image", folder / "scores.csv", "--threads", "2")
    found = list(differences(overall, reference.overall(), "all maps"))
    with open(folder / "scores.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if [row["name"] for row in rows] != [name for name, _, _ in maps]:
        sys.exit("FAILED: scores.csv has other maps, or in another order")
    for i, row in enumerate(rows):
        found += differences(row, reference.per_image(i), row["name"])
    bad = [f"  {name}: {difference:.3g} apart" for name, difference in found if not difference <= TOLERANCE]
    if bad:
        sys.exit("\n".join([f"FAILED: {len(bad)} of {len(found)} numbers are more than {TOLERANCE} apart:", *bad[:50]]))
    largest = max(difference for _, difference in found)
    print(f"{len(maps)} pairs of maps, {len(found)} numbers: at most {largest:.2g} apart from pysodmetrics")


def soft_maps(count, height, width):
    """Maps as a network makes them: soft, right for the most part, on a dark background."""
    rng = np.random.default_rng(2)
    y, x = np.mgrid[:height, :width]
    for i in range(count):
        middle, radius, angle = rng.uniform(0.35, 0.65, 2), rng.uniform(0.1, 0.3, 2), rng.uniform(0, 3)
        u, v = x / width - middle[0], y / height - middle[1]
        a, b = u * np.cos(angle) + v * np.sin(angle), v * np.cos(angle) - u * np.sin(angle)
        truth = ((a / radius[0]) ** 2 + (b / radius[1]) ** 2 < 1).astype(np.uint8) * 255
        soft = cv2.GaussianBlur(truth.astype(np.float32) + cv2.GaussianBlur(rng.normal(0, 3000, truth.shape), (0, 0), 12), (0, 0), 4)
        yield f"map{i:04}", np.clip(soft, 0, 255).astype(np.uint8), truth


def measure_time(tool, folder):
    print("\nmilliseconds per map, pysodmetrics in one process (files read by OpenCV) and invattn; the best of three, in turn")
    print(f"{'size':9} {'':16} {'pysodmetrics':>12} {'1 thread':>16} {'2 threads':>16}")
    cv2.setNumThreads(1)
    for height, width, count in ((352, 352, 250), (480, 640, 100)):
        place = folder / f"{height}x{width}"
        place.mkdir()
        maps = list(soft_maps(count, height, width))
        write_maps(place, maps)
        alone, whole = {0: [], 1: [], 2: []}, {0: [], 1: [], 2: []}  # by threads, 0 is the package
        for _ in range(3):
            for threads in (1, 2):
                result = run_tool(tool, place, "--threads", str(threads))
                alone[threads].append(result["seconds_measuring"] / threads)
                whole[threads].append(result["seconds"])
            reading = measuring = 0
            reference = Reference()
            for name, _, _ in maps:
                start = time.perf_counter()
                pair = [cv2.imread(str(place / part / f"{name}.png"), cv2.IMREAD_GRAYSCALE) for part in ("predictions", "truth")]
                middle = time.perf_counter()
                reference.step(*pair)
                reading += middle - start
                measuring += time.perf_counter() - middle
            alone[0].append(measuring)
            whole[0].append(reading + measuring)
        for what, seconds in (("measuring alone", alone), ("files read, too", whole)):
            best = {threads: min(values) for threads, values in seconds.items()}
            texts = [f"{1000 * best[threads] / count:.2f} ({best[0] / best[threads]:.0f}x)" for threads in (1, 2)]
            print(f"{height}x{width}   {what:16} {1000 * best[0] / count:12.2f} {texts[0]:>16} {texts[1]:>16}")


def main():
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as folder:
        compare(sys.argv[1], Path(folder))
        if sys.argv[2:] == ["--time"]:
            measure_time(sys.argv[1], Path(folder))


if __name__ == "__main__":
    main()
