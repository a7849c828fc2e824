"""The build backend: scikit-build-core, and torch asked for only where the environment has none.

A build under isolation does not see the packages of the environment that the wheel is for, and a requirement on torch would download it again,
gigabytes, perhaps in another release than the one that is there. pip's isolation keeps the interpreter of the environment, so that its torch is
found by its folder. INVATTN_TORCH_DIR, the folder of a torch package, names another one.
"""

from __future__ import annotations

import os
import pathlib
import re
import site
import sys
import sysconfig
from collections.abc import Iterator
from typing import Any

from scikit_build_core import build as _build
from scikit_build_core.build import *  # noqa: F403

ROOT = pathlib.Path(__file__).resolve().parents[1]
PIN = re.search(r"^torch==(\S+)", (ROOT / "requirements-torch.txt").read_text(), re.MULTILINE)[1]  # 2.11.0
RELEASE = ".".join(PIN.split(".")[:2])


def _folders() -> Iterator[pathlib.Path]:
    """Where packages of the environment may lie, those that path files name among them."""
    own = [pathlib.Path(path) for path in sys.path if path]
    environment = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        environment.append(site.getusersitepackages())
    for folder in dict.fromkeys([*own, *(pathlib.Path(path) for path in environment)]):
        yield folder
        for named in sorted(folder.glob("*.pth")) if folder.is_dir() else []:
            for line in named.read_text(errors="replace").splitlines():
                if line.startswith("/"):
                    yield pathlib.Path(line.strip())


def torch_folder() -> str | None:
    """The folder of a torch of the wanted release, or None."""
    chosen = os.environ.get("INVATTN_TORCH_DIR")
    if chosen:
        return chosen
    for folder in _folders():
        version = folder / "torch" / "version.py"
        if version.is_file() and re.search(rf"__version__ = '{re.escape(RELEASE)}\.", version.read_text()):
            return str(folder / "torch")
    return None


def _with_torch(requirements: list[str]) -> list[str]:
    return requirements if torch_folder() else [*requirements, f"torch=={PIN}"]


def _with_folder() -> None:
    """For CMake: also where torch was installed for this build alone."""
    folder = torch_folder()
    if folder is None:
        raise RuntimeError(
            f"[torch_backend] expected torch {RELEASE} in this environment or in that of the build, found none. "
            f"Run pip install torch=={PIN}, or set INVATTN_TORCH_DIR to the folder of one."
        )
    os.environ["INVATTN_TORCH_DIR"] = folder


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    return _with_torch(_build.get_requires_for_build_wheel(config_settings))


def get_requires_for_build_editable(config_settings: dict[str, Any] | None = None) -> list[str]:
    return _with_torch(_build.get_requires_for_build_editable(config_settings))


def build_wheel(wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None) -> str:
    _with_folder()
    return _build.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None) -> str:
    _with_folder()
    return _build.build_editable(wheel_directory, config_settings, metadata_directory)
