#!/usr/bin/env python3
"""Notebooks of the example scripts, whose cells begin with `# %%`. There is one source: the script.

usage: python to_notebook.py two_moons.py [more.py ...] [--out FOLDER] [--arguments "--steps 20"]

A notebook runs as the script does, with these arguments, which stand in its first cell.
"""

from __future__ import annotations

import argparse
import pathlib
import shlex

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook


def notebook_of(script: pathlib.Path, arguments: str = "") -> nbformat.NotebookNode:
    """The cells of a script; text before the first cell is left out."""
    cells, kind, lines = [], None, []

    def close() -> None:
        text = "\n".join(lines).strip("\n")
        if kind == "markdown":
            cells.append(new_markdown_cell("\n".join(line.removeprefix("#").removeprefix(" ") for line in text.splitlines())))
        elif kind == "code" and text:
            cells.append(new_code_cell(text))

    for line in script.read_text().splitlines():
        if line.startswith("# %%"):
            close()
            kind, lines = ("markdown" if line.removeprefix("# %%").strip() == "[markdown]" else "code"), []
        elif kind is not None:
            lines.append(line)
    close()
    command = [script.name, *shlex.split(arguments)]
    cells.insert(1, new_code_cell(f"import sys\n\nsys.argv = {command!r}  # the arguments of the script".replace("'", '"')))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"  # the same every time
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="+", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--arguments", default="", help="of the script")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for script in arguments.scripts:
        path = arguments.out / script.with_suffix(".ipynb").name
        nbformat.write(notebook_of(script, arguments.arguments), path)
        print(path)


if __name__ == "__main__":
    main()
