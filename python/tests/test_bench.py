"""The benchmarks run, on small sizes. The comparison with other code checks by itself that all sides compute the same."""

import pathlib
import subprocess
import sys

import pytest

BENCH = pathlib.Path(__file__).resolve().parents[1] / "bench"
COMPARE = BENCH / "compare.py"


def test_compare():
    pytest.importorskip("normflows")
    pytest.importorskip("FrEIA")
    command = [sys.executable, str(COMPARE), "--shape", "2x4x3x3", "--rounds", "1", "--threads", "1", "--no-compile"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "fails" not in done.stdout
    assert done.stdout.count("| invattn, Python | 1.00x |") == 12
    assert done.stdout.count("| FrEIA IResNetLayer |") == 12


def test_padding():
    command = [sys.executable, str(BENCH / "padding.py"), "--shape", "4x8x3", "--rounds", "1", "--threads", "1", "--kind", "distance"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| distance |") == 3
