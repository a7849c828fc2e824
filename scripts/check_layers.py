#!/usr/bin/env python3
"""Checks that no room includes upwards: every #include of our files against the table below (docs/reference/architecture.md explains the rooms).

usage: check_layers.py [--self-test]
Prints file:line and the broken rule for each finding; exit code 1 when there is one.
"""

import pathlib
import re
import sys
import tempfile

ALL = None  # may include every room

# room -> rooms it may include, besides itself
ROOMS = {
    "core": set(),
    "io": {"core"},
    "kernels": {"core"},  # what nvcc can compile of it
    "ops": {"core", "kernels"},
    "lipschitz": {"core", "ops"},
    "solver": {"core"},
    "logdet": {"core", "ops"},
    "nn": {"core", "io", "ops", "lipschitz", "solver", "logdet"},
    "data": {"core", "io"},
    "metrics": {"core"},
    "config": {"core", "io"},
    "report": {"core", "io"},
    "dist": {"core"},
    "train": {"core", "io", "ops", "lipschitz", "solver", "logdet", "nn", "data", "metrics", "config", "dist"},
    "experiments": ALL,
}

# room -> prefixes of other libraries' headers that it must not see
FORBIDDEN = {
    "core": ("ATen/", "torch/"),
    "kernels": ("ATen/", "torch/", "c10/"),
    "solver": ("torch/",),
}

# What a public header may include besides ours: the standard library (no slash, no .h) and torch. Users of the installed library have no more.
PUBLIC = re.compile(r"^([a-z_]+|(ATen|c10|torch)/.*)$")

# Including this one gives all of the public face: it, and what it includes, directly or not, is installed; all other headers are internal.
UMBRELLA = "invattn/invattn.h"

# In report/ each experiment has a folder, which includes none of the others; of what lies beside the folders this file alone includes them.
REPORTS_OF_ALL = "report.cpp"

SOURCE_ROOTS = ("invattn", "apps", "tests", "bench", "examples", "python")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def public_headers(root):
    """The umbrella and what it includes, directly or not, as paths from the root."""
    found, waiting = set(), [UMBRELLA]
    while waiting:
        header = waiting.pop()
        path = root / header
        if header in found or not path.exists():  # version.h is made by CMake
            continue
        found.add(header)
        matches = map(INCLUDE.match, path.read_text(encoding="utf-8").splitlines())
        waiting += [match[2] for match in matches if match and match[2].startswith("invattn/")]
    return found


def findings_of(root, path, public):
    """Yields (line, rule) for each broken rule of one file; `public` are the public headers."""
    parts = path.relative_to(root).parts
    room = parts[1] if parts[0] == "invattn" and len(parts) > 2 else None
    if room is not None and room not in ROOMS:
        yield 1, f"'{room}' is not a room: add it to the table in scripts/check_layers.py and docs/reference/architecture.md"
        return
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        match = INCLUDE.match(text)
        if not match:
            continue
        bracket, header = match.groups()
        ours = header.split("/")[0] in SOURCE_ROOTS
        if header == "torch/torch.h":
            yield number, "torch/torch.h costs 20 s per file: include the headers you need"
        beside = parts[0] != "invattn" and (path.parent / header).exists()  # apps/ and tests/ may name the file next to them
        if bracket == '"' and not ours and not beside:
            yield number, f'"{header}" is not a path from the repository root (other libraries: <…>)'
        if bracket == "<" and ours and parts[0] != "examples":
            yield number, f'<{header}> is ours: write it with quotes'
        if room is None:
            continue
        if ours and not header.startswith("invattn/"):
            yield number, f"the library must not include {header}"
        if header.startswith("invattn/"):
            other = header.split("/")[1]
            if other != room and ROOMS[room] is not ALL and other not in ROOMS[room]:
                may = ", ".join(sorted(ROOMS[room])) or "no other room"
                yield number, f"{room}/ must not include {other}/ (it may include {may})"
        if header.startswith("invattn/report/") and header.count("/") > 2 and room == "report" and parts[2] != REPORTS_OF_ALL:
            if len(parts) < 4 or parts[2] != header.split("/")[2]:
                yield number, f"the report of an experiment is known to {REPORTS_OF_ALL} alone: what others need of {header} belongs beside the folders"
        if header.startswith(FORBIDDEN.get(room, ())):
            yield number, f"{room}/ must not include <{header}>"
        if path.relative_to(root).as_posix() in public and not ours and not PUBLIC.match(header):
            yield number, f"a public header ({UMBRELLA} includes it) must include only the standard library and torch, not <{header}>"


def check(root):
    """Prints the findings below root and returns how many there are."""
    count = files = 0
    public = public_headers(root)
    for top in SOURCE_ROOTS:
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
                continue
            files += 1
            for line, rule in findings_of(root, path, public):
                print(f"{path.relative_to(root)}:{line}: {rule}")
                count += 1
    print(f"layers: {files} files, {len(public)} public headers, {count} findings")
    return count


def self_test():
    """Each broken file must be found, each good one must pass."""
    bad = {
        "invattn/solver/up.cpp": '#include "invattn/nn/attention.h"',
        "invattn/solver/heavy.cpp": "#include <torch/types.h>",
        "invattn/core/tensor.h": "#include <ATen/core/Tensor.h>",
        "invattn/kernels/cpu/tensor.cpp": "#include <c10/core/Device.h>",
        "invattn/kernels/cpu/up.cpp": '#include "invattn/ops/response.h"',
        "invattn/nn/relative.cpp": '#include "attention.h"',
        "invattn/nn/angle.cpp": "#include <invattn/nn/attention.h>",
        "invattn/nn/all_of_torch.cpp": "#include <torch/torch.h>",
        "invattn/nn/tests.cpp": '#include "tests/nn/help.h"',
        "invattn/nn/public.h": '#include <nlohmann/json.hpp>',
        "invattn/ops/deep.h": '#include <hwy/highway.h>',
        "invattn/attic/file.cpp": "#include <vector>",
        "invattn/report/frame.h": '#include "invattn/report/density/run.h"',
        "invattn/report/density/page.cpp": '#include "invattn/report/detection/run.h"',
    }
    good = {
        "invattn/nn/block.cpp": '#include "invattn/solver/anderson.h"\n#include <torch/nn/module.h>',
        "invattn/io/private.cpp": "#include <nlohmann/json.hpp>",
        "invattn/core/error.h": "#include <string>",
        "invattn/report/report.cpp": '#include "invattn/report/density/run.h"',
        "invattn/report/density/run.cpp": '#include "invattn/report/density/run.h"\n#include "invattn/report/table.h"',
        "invattn/io/internal.h": "#include <nlohmann/json.hpp>",
        "invattn/invattn.h": '#include "invattn/nn/public.h"\n#include "invattn/nn/middle.h"',
        "invattn/nn/middle.h": '#include "invattn/ops/deep.h"',
        "invattn/kernels/cpu/pass.h": "#include <hwy/highway.h>",
        "invattn/kernels/solver.h": '#include "invattn/core/iteration.h"',
        "tests/solver/help.h": "#include <vector>",
        "tests/solver/help_test.cpp": '#include "help.h"',
        "tests/solver/any_test.cpp": '#include "invattn/nn/attention.h"\n#include <gtest/gtest.h>',
    }
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in (bad | good).items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("#pragma once\n" + text + "\n", encoding="utf-8")
        public = public_headers(root)
        for name in bad | good:
            found = len(list(findings_of(root, root / name, public)))
            if found != (1 if name in bad else 0):
                print(f"self-test: {name} gave {found} findings")
                failures += 1
    print(f"layers self-test: {len(bad)} broken and {len(good)} good files, {failures} failures")
    return failures


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--self-test"]):
        sys.exit(__doc__)
    sys.exit(1 if (self_test() if sys.argv[1:] else check(pathlib.Path(__file__).resolve().parent.parent)) else 0)
