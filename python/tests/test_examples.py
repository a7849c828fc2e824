"""The examples run, as scripts and as the notebooks made of them, in their short form."""

import os
import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"
NEEDS = {
    "two_moons": ["matplotlib"],
    "attention_in_your_network": ["matplotlib"],
    "zuko_flow": ["zuko"],
    "normflows_model": ["normflows", "matplotlib"],
}
ENVIRONMENT = {**os.environ, "MPLBACKEND": "Agg"}


def test_every_example_is_here():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*NEEDS, "to_notebook"}


@pytest.mark.parametrize("name", NEEDS)
def test_script(name, tmp_path):
    for module in NEEDS[name]:
        pytest.importorskip(module)
    out = ["--out", str(tmp_path)] if "matplotlib" in NEEDS[name] else []
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--steps", "5", *out]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    if out:
        assert (tmp_path / f"{name}.png").stat().st_size > 1000


@pytest.mark.parametrize("name", NEEDS)
def test_notebook(name, tmp_path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    for module in NEEDS[name]:
        pytest.importorskip(module)
    script = EXAMPLES / f"{name}.py"
    command = [sys.executable, str(EXAMPLES / "to_notebook.py"), str(script), "--out", str(tmp_path), "--arguments", "--steps 3"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    notebook = nbformat.read(tmp_path / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    for line in script.read_text().splitlines():
        assert line in code or line.startswith("#") or not line, "a line of the script is in no cell"
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert any(cell.get("outputs") for cell in notebook.cells)
