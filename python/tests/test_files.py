"""Models go over files between Python, the library and the tool."""

import json
import os
import pathlib
import subprocess

import pytest
import torch
from makers import BIJECTIONS, images, started
from safetensors import safe_open

import invattn

TOOL = os.environ.get("INVATTN_TOOL", str(pathlib.Path(__file__).parents[2] / "build/invattn"))
needs_tool = pytest.mark.skipif(not pathlib.Path(TOOL).exists(), reason="needs the tool: make build")


@pytest.mark.parametrize("name", [name for name in BIJECTIONS if name != "python"])
def test_saved_and_loaded(name, tmp_path):
    module, x = started(*BIJECTIONS[name])
    path = tmp_path / "model.safetensors"
    invattn.save(path, module)
    other = invattn.load(path)
    assert not other.training and list(other.state_dict()) == list(module.state_dict())
    torch.testing.assert_close(other(x), module(x))
    assert type(other) is type(module)
    with safe_open(path, "pt") as file:
        assert sorted(file.keys()) == sorted(module.state_dict())
    assert set(other.certificates()) == set(module.certificates())


def test_in_double(tmp_path):
    module, x = started(*BIJECTIONS["flow"], dtype=torch.float64)
    invattn.save(tmp_path / "model.safetensors", module)
    assert torch.equal(invattn.load(tmp_path / "model.safetensors")(x), module(x))


def test_a_detector(tmp_path):
    detector = invattn.Detector(variant="invertible-dot-product", size=64, backbone={"blocks": [1, 1, 1, 1]}).eval()
    pixels = 255 * torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        expected = detector(pixels)
    invattn.save(tmp_path / "detector.safetensors", detector)
    other = invattn.load(tmp_path / "detector.safetensors")
    assert isinstance(other, invattn.Detector)
    with torch.no_grad():
        torch.testing.assert_close(other(pixels), expected)
    blocks = [module for module in other.modules() if isinstance(module, invattn.InvertibleAttention)]
    assert len(blocks) == 4 and len(other.certificates()) == 4
    optimizer = torch.optim.SGD(detector.train().parameters(), 1e-3)
    detector(pixels).square().mean().backward()
    optimizer.step()


def test_what_cannot_be_saved_says_so(tmp_path):
    with pytest.raises(invattn.UsageError, match="state_dict"):
        invattn.save(tmp_path / "model.safetensors", BIJECTIONS["python"][0]())
    with pytest.raises(invattn.UsageError, match="torch.save"):
        invattn.save(tmp_path / "model.safetensors", torch.nn.Linear(2, 2))
    assert not list(tmp_path.iterdir())


def test_files_that_are_no_models(tmp_path):
    with pytest.raises(invattn.DataError, match="missing.safetensors"):
        invattn.load(tmp_path / "missing.safetensors")
    module, _ = started(*BIJECTIONS["gaussian"])
    path = tmp_path / "model.safetensors"
    invattn.save(path, module)
    content = path.read_bytes()
    for damaged in (b"", content[:100], content[:-3], content.replace(b'"attention', b'"attentoin')):
        path.write_bytes(damaged)
        with pytest.raises(invattn.DataError):
            invattn.load(path)


@needs_tool
def test_the_tool_reads_what_python_saved(tmp_path):
    block, x = started(*BIJECTIONS["concatenation"])
    invattn.Guard(block, fraction=1).finish(block, [x], "two random images")
    invattn.save(tmp_path / "block.safetensors", block)
    told = json.loads(subprocess.run([TOOL, "info", "--json", tmp_path / "block.safetensors"], capture_output=True, check=True).stdout)
    assert told["invattn_model"] and "two random images" in json.dumps(told)


@needs_tool
@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (
            ["density", "train", "steps=3", "cool_down=0", "warm_up=0", "train_images=64", "validation_images=16", "measured_images=16", "samples=0"],
            invattn.Flow,
        ),
        (
            ["detect", "train", "--variant=invertible-gaussian", "epochs=1", "batch=2", "train_images=4", "test_images=2"],
            invattn.Detector,
        ),
    ],
)
def test_python_reads_what_the_tool_saved(command, kind, tmp_path):
    run = tmp_path / "run"
    command = [f"--set={part}" if "=" in part and not part.startswith("--") else part for part in command]
    done = subprocess.run([TOOL, *command, "--out", run], capture_output=True, text=True)
    assert done.returncode in (0, 3), done.stderr + done.stdout
    [path] = run.rglob("model.safetensors")
    model = invattn.load(path)
    assert isinstance(model, kind) and model.certificates() is not None
