#!/usr/bin/env python3
"""Writes the type stubs of the extension module, python/invattn/_core.pyi and _fields.pyi, from the installed package.

    .venv/bin/python3 scripts/python_stubs.py  # after `make python`; a test compares them
"""

import ast
import inspect
import pathlib
import re
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).parents[1] / "python/invattn"
HEADING = '"""Made by scripts/python_stubs.py from the binding."""\n'


def option_classes(module) -> dict[str, list]:
    """The classes of options with their fields."""
    return {name: cls.fields() for name, cls in vars(module).items() if inspect.isclass(cls) and hasattr(cls, "fields")}


class Typed(ast.NodeTransformer):
    """Keywords and attributes of option classes with their types; no docstrings, which `help` shows."""

    def __init__(self, options: dict[str, list]) -> None:
        self.options = options
        self.fields: dict[str, str] | None = None

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self.fields = {name: kind for name, kind, _, _ in self.options[node.name]} if node.name in self.options else None
        node = self.generic_visit(node)
        node.body = [part for part in node.body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))] or [ast.Pass()]
        self.fields = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.body = [ast.Expr(ast.Constant(...))]
        if self.fields is None:
            return node
        if node.name in ("__init__", "replace"):
            node.args.kwarg = None
            node.args.kwonlyargs = [ast.arg(name, ast.parse(kind, mode="eval").body) for name, kind in self.fields.items()]
            node.args.kw_defaults = [ast.Constant(...)] * len(self.fields)
        elif node.name in self.fields:
            held = re.sub(r"^Sequence\[(.*)\]$", r"tuple[\1, ...]", self.fields[node.name])
            node.returns = ast.parse(held, mode="eval").body
        return node


def core_stub(module) -> str:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "pybind11_stubgen", "invattn._core", "-o", folder, "--numpy-array-use-type-var"],
            check=True,
            capture_output=True,
        )
        tree = ast.parse((pathlib.Path(folder) / "invattn/_core.pyi").read_text())
    tree.body = [part for part in tree.body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))]
    tree = Typed(option_classes(module)).visit(tree)
    imports = "from collections.abc import Sequence\nfrom typing import Any, Literal\n"
    text = ast.unparse(ast.fix_missing_locations(tree)).replace("from __future__ import annotations\n", "").replace("invattn._core.", "")
    text = re.sub(r"^(BUILT_WITH_CUDA: bool|VERSION: str) = .*$", r"\1", text, flags=re.MULTILINE)  # another in every build
    text = re.sub(r":\n +\.\.\.\n(\n(?= +def|    @))?", ": ...\n", text)
    return HEADING + imports + text + "\n"


def fields_stub(module) -> str:
    text = HEADING + "from collections.abc import Sequence\nfrom typing import Any, Literal, TypedDict\n"
    for name, fields in option_classes(module).items():
        text += f"\nclass {name.removesuffix('Options')}Fields(TypedDict, total=False):\n"
        # What has to be given is an argument of its own.
        text += "".join(f"    {field}: {kind}\n" for field, kind, _, meaning in fields if "has to be given" not in meaning)
    return text


def stubs() -> dict[str, str]:
    """Name and content of each file."""
    from invattn import _core

    return {"_core.pyi": core_stub(_core), "_fields.pyi": fields_stub(_core)}


if __name__ == "__main__":
    for name, content in stubs().items():
        (FOLDER / name).write_text(content)
