"""The examples in docstrings run, the stubs are current, and types are checked."""

import doctest
import importlib
import pathlib
import subprocess
import sys

import pytest

import invattn

ROOT = pathlib.Path(__file__).parents[2]
MODULES = ["invattn", *(f"invattn.{name}" for name in ("metrics", "distributions", "freia", "nflows", "normflows", "zuko"))]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    module = importlib.import_module(name)
    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert found.failed == 0
    assert found.attempted > 0


def test_everything_public_is_documented():
    for name in invattn.__all__:
        if not name.startswith("__"):
            assert getattr(invattn, name).__doc__, name
    for option, _, _, meaning in invattn.AttentionOptions.fields():
        assert f"{option} (" in invattn.InvertibleAttention.__doc__ and meaning in invattn.InvertibleAttention.__doc__


def test_stubs_are_current():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from python_stubs import FOLDER, stubs
    finally:
        sys.path.pop(0)
    for name, content in stubs().items():
        assert (FOLDER / name).read_text() == content, f"run scripts/python_stubs.py, which writes {name}"


TYPED = """
import torch
import invattn

block = invattn.InvertibleAttention(4, kind="gaussian", constant=0.8)
y, log_det = block.forward_log_det(torch.zeros(1, 4, 2, 2))
x, report = block.inverse(y, tolerance=1e-6)
usable: bool = report.usable
value: torch.Tensor = log_det.value
wrong = invattn.InvertibleAttention(4, kind="gausian")
unknown = invattn.InvertibleAttention(4, kinds="gaussian")
tolerance = invattn.AndersonOptions(tolerance="x")
"""


def test_types(tmp_path):
    (tmp_path / "typed.py").write_text(TYPED)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", tmp_path / "cache", "typed.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    lines = [line.split(":")[1] for line in done.stdout.splitlines() if ": error:" in line]
    assert lines == ["10", "11", "12"], done.stdout + done.stderr
