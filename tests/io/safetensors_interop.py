"""Our safetensors files open in Python's safetensors package, and the other way round.

usage: safetensors_interop.py ROUNDTRIP_TOOL
"""

import subprocess
import sys
import tempfile
from pathlib import Path

SKIPPED = 77

try:
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"skipped: {error}. Install it: {sys.executable} -m pip install torch numpy safetensors")
    sys.exit(SKIPPED)


def expected_tensors():
    """The same values as in safetensors_roundtrip_tool.cpp, written down a second time on purpose."""
    values = [[-0.5, -0.25, 0.0], [0.25, 0.5, 0.75]]
    return {
        "float64": torch.tensor(values, dtype=torch.float64),
        "float32": torch.tensor(values, dtype=torch.float32),
        "float16": torch.tensor(values, dtype=torch.float16),
        "bfloat16": torch.tensor(values, dtype=torch.bfloat16),
        "int64": torch.tensor([k * 2**40 for k in (-2, -1, 0, 1, 2)], dtype=torch.int64),
        "int32": torch.tensor([k * 2**20 for k in (-2, -1, 0, 1, 2)], dtype=torch.int32),
        "int16": torch.tensor([-2000, -1000, 0, 1000, 2000], dtype=torch.int16),
        "int8": torch.tensor([-100, -50, 0, 50, 100], dtype=torch.int8),
        "uint8": torch.tensor([0, 50, 100, 150, 200], dtype=torch.uint8),
        "bool": torch.tensor([False, True, False, True, False]),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty((0, 3)),
        "transposed": torch.tensor([[-0.5, 0.25], [-0.25, 0.5], [0.0, 0.75]], dtype=torch.float64),
        'name with "quotes" and é': torch.ones(1),
    }


METADATA = {"format": "pt", "größe": 'zwölf "12"\n\\ 注意'}


def check(condition, message):
    if not condition:
        sys.exit(f"FAILED: {message}")


def run_tool(tool, command, path):
    result = subprocess.run([tool, command, path], capture_output=True, text=True, check=False)
    check(result.returncode == 0, f"`{command}` exited with {result.returncode}: {result.stderr}")


def main():
    tool = sys.argv[1]
    expected = expected_tensors()
    with tempfile.TemporaryDirectory() as folder:
        ours = Path(folder) / "ours.safetensors"
        run_tool(tool, "write", ours)
        loaded = load_file(ours)
        check(loaded.keys() == expected.keys(), f"names {sorted(loaded)} instead of {sorted(expected)}")
        for name, tensor in expected.items():
            got = loaded[name]
            check(got.dtype == tensor.dtype and torch.equal(got, tensor), f"{name}: {got} instead of {tensor}")
        with safe_open(ours, framework="pt") as file:
            check(file.metadata() == METADATA, f"metadata {file.metadata()} instead of {METADATA}")

        theirs = Path(folder) / "theirs.safetensors"
        save_file(expected, theirs, metadata=METADATA)
        run_tool(tool, "check", theirs)

        # Padded alike; the order of tensors of one element size and that of the metadata is each side's own.
        check(ours.stat().st_size == theirs.stat().st_size, f"{ours.stat().st_size} bytes instead of {theirs.stat().st_size}")

        damaged = Path(folder) / "damaged.safetensors"
        changed = expected_tensors()
        changed["int64"][0] += 1
        save_file(changed, damaged, metadata=METADATA)
        result = subprocess.run([tool, "check", damaged], capture_output=True, text=True, check=False)
        check(result.returncode == 1 and "int64" in result.stderr, "`check` did not notice another value")
    print(f"{len(expected)} tensors there and back")


if __name__ == "__main__":
    main()
