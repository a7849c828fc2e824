"""What is in the package, what it needs, and where its build finds torch."""

import importlib.metadata
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys
import types

import pytest

import invattn

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = pathlib.Path(invattn._core.__file__).parent
#: What every Linux has, and torch's own.
SYSTEM = re.compile(r"(ld-linux.*|lib(c|m|gcc_s|stdc\+\+|dl|pthread|rt))\.so.*")
TORCH = re.compile(r"lib(torch|torch_cpu|torch_cuda|torch_python|c10|c10_cuda|cudart|cuda)\.so.*")


def needed(file):
    told = subprocess.run(["readelf", "-d", file], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", told))


@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf")
def test_it_needs_torch_highway_and_openmp_alone():
    files = [*PACKAGE.glob("*.so*"), PACKAGE / "bin/invattn"]
    assert len(files) >= 3
    own = {file.name for file in files}
    for file in files:
        other = {name for name in needed(file) if not SYSTEM.fullmatch(name) and not TORCH.fullmatch(name)}
        assert other <= own | {"libgomp.so.1"}, file


def test_one_openmp_runtime_and_one_torch_are_loaded():
    code = """
import torch, invattn
invattn.InvertibleAttention(8)(torch.randn(2, 8, 16, 16))
print(*{line.split()[-1] for line in open("/proc/self/maps") if "/lib" in line})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    for pattern in (r"lib(gomp|iomp|omp)[-.].*", r"libtorch_cpu\.so.*", r"libinvattn\.so.*"):
        assert len({path for path in loaded if re.fullmatch(pattern, pathlib.Path(path).name)}) == 1, (pattern, loaded)


def test_metadata():
    told = importlib.metadata.metadata("invattn")
    assert told["Version"] == invattn.__version__ and told["License-Expression"] == "BSD-3-Clause"
    assert "torch==2.11.*" in told.get_all("Requires-Dist")
    files = [str(file) for file in importlib.metadata.files("invattn")]
    assert "invattn/py.typed" in files and "invattn/_core.pyi" in files and any(file.endswith("licenses/LICENSE") for file in files)


@pytest.fixture
def backend(monkeypatch):
    """The build backend of the source tree, over a stand-in for scikit-build-core."""
    build = types.ModuleType("scikit_build_core.build")
    build.get_requires_for_build_wheel = build.get_requires_for_build_editable = lambda config_settings=None: ["cmake>=3.25"]
    outer = types.ModuleType("scikit_build_core")
    outer.build = build
    monkeypatch.setitem(sys.modules, "scikit_build_core", outer)
    monkeypatch.setitem(sys.modules, "scikit_build_core.build", build)
    monkeypatch.delenv("INVATTN_TORCH_DIR", raising=False)
    spec = importlib.util.spec_from_file_location("torch_backend", ROOT / "python/torch_backend.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fake_torch(folder, version):
    (folder / "torch").mkdir(parents=True)
    (folder / "torch/version.py").write_text(f"__version__ = '{version}'\n")
    return folder


def test_torch_is_asked_for_where_there_is_none(backend, monkeypatch, tmp_path):
    other = fake_torch(tmp_path / "other", "2.10.1+cpu")
    monkeypatch.setattr(backend, "_folders", lambda: [other, tmp_path / "missing"])
    assert backend.torch_folder() is None
    assert backend.get_requires_for_build_wheel() == ["cmake>=3.25", "torch==" + backend.PIN]
    with pytest.raises(RuntimeError, match="pip install torch"):
        backend.build_wheel("somewhere")


def test_torch_of_the_environment_is_used(backend, monkeypatch, tmp_path):
    site = fake_torch(tmp_path / "site", backend.PIN + "+cu130")
    monkeypatch.setattr(backend, "_folders", lambda: [tmp_path / "missing", site])
    assert backend.torch_folder() == str(site / "torch")
    assert backend.get_requires_for_build_wheel() == backend.get_requires_for_build_editable() == ["cmake>=3.25"]


def test_a_torch_behind_a_path_file_or_a_variable_is_used(backend, monkeypatch, tmp_path):
    elsewhere = fake_torch(tmp_path / "elsewhere", backend.PIN)
    (tmp_path / "site").mkdir()
    (tmp_path / "site/more.pth").write_text(f"import sys\n{elsewhere}\n")
    monkeypatch.setattr(backend.sys, "path", [str(tmp_path / "site")])
    monkeypatch.setattr(backend.sysconfig, "get_path", lambda _: str(tmp_path / "nothing"))
    monkeypatch.setattr(backend.site, "getsitepackages", lambda: [])
    monkeypatch.setattr(backend.site, "ENABLE_USER_SITE", False)
    assert backend.torch_folder() == str(elsewhere / "torch")
    monkeypatch.setenv("INVATTN_TORCH_DIR", "/own/torch")
    assert backend.torch_folder() == "/own/torch"
