"""The adapters are imported only when asked for, and say what is missing."""

import pathlib
import subprocess
import sys

import pytest

import invattn

LIBRARIES = {"normflows": "normflows", "zuko": "zuko", "freia": "FrEIA", "nflows": "nflows"}


def run(code, path=()):
    start = f"import sys; sys.path[:0] = {[str(folder) for folder in path]}\n"
    return subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, timeout=300)


def test_nothing_is_imported_unasked():
    done = run(f"import invattn; print([name for name in {list(LIBRARIES.values())} if name in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("adapter", LIBRARIES)
def test_a_missing_library_is_named(adapter):
    code = f"""
sys.modules["{LIBRARIES[adapter]}"] = None  # as if it were not installed
import invattn
try:
    import invattn.{adapter}
except ImportError as error:
    assert isinstance(error, invattn.UsageError)
    print(error)
"""
    done = run(code)
    wanted = f"[invattn.{adapter}] expected the package {LIBRARIES[adapter]}, got none. Install it with pip install invattn[{adapter}]."
    assert done.stdout.strip() == wanted, done.stderr


@pytest.mark.parametrize("adapter", ["normflows", "zuko", "nflows"])
def test_a_module_of_ours_in_its_place_is_named(adapter):
    """As where the folder of the package itself is on sys.path."""
    pytest.importorskip(LIBRARIES[adapter])
    folder = pathlib.Path(invattn.__file__).parent
    code = f"""
import invattn
sys.path.insert(0, {str(folder)!r})
try:
    import invattn.{adapter}
except invattn.UsageError as error:
    print(error)
"""
    done = run(code)
    assert f"expected the library {LIBRARIES[adapter]}, got another module of that name" in done.stdout, done.stderr


def test_a_library_that_lacks_something_says_so_itself(tmp_path):
    (tmp_path / "zuko").mkdir()
    (tmp_path / "zuko" / "__init__.py").write_text("import a_package_that_nobody_has\n")
    done = run("import invattn.zuko", path=[tmp_path])
    assert "No module named 'a_package_that_nobody_has'" in done.stderr
    assert "pip install" not in done.stderr
