"""The command `invattn` of the environment: the library's tool, with the subcommands that need no images."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest
from makers import BIJECTIONS, started

import invattn

COMMANDS = [[sys.executable, "-m", "invattn"], [str(pathlib.Path(sys.executable).parent / "invattn")]]


def run(command, *arguments, **options):
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, **options)


@pytest.mark.parametrize("command", COMMANDS, ids=["module", "script"])
def test_doctor(command):
    done = run(command, "doctor", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["ok"] and facts["invattn"]["version"] == invattn.__version__
    import torch

    assert pathlib.Path(facts["torch"]["library"]).resolve().parent == pathlib.Path(torch.__file__).resolve().parent / "lib"
    assert facts["cuda"]["built"] == invattn._core.BUILT_WITH_CUDA
    assert not facts["optional"], "what is for those who build the library is of no use here"
    assert "make clean" not in done.stdout
    assert "Everything required is there." in run(command, "doctor").stdout


def test_info(tmp_path):
    block, _ = started(*BIJECTIONS["gaussian"])
    invattn.save(tmp_path / "block.safetensors", block)
    done = run(COMMANDS[0], "info", "block.safetensors", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["invattn_model"] and told["parameters"] == sum(weight.numel() for weight in block.parameters())
    assert [part["name"] for part in told["blocks"]] == [""]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["info", "missing.safetensors"], 4, "missing.safetensors"),
        (["info"], 2, "--help"),
        (["doctr"], 2, "did you mean doctor"),
        (["density", "train"], 2, "`make build` in a clone makes the tool with all subcommands"),
        ([], 2, "expected a subcommand"),
    ],
)
def test_exit_codes(arguments, code, message):
    done = run(COMMANDS[0], *arguments)
    assert done.returncode == code and message in done.stderr, done.stderr


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written():
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMANDS[0], "doctor"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 4 and "standard output" in done.stderr


def test_the_environment_finds_it():
    assert shutil.which("invattn", path=str(pathlib.Path(sys.executable).parent))
