"""The command `invattn` of the package: the library's tool with the subcommands that need no images."""

import os
import pathlib
import sys

import torch

from . import _core


def main() -> None:
    tool = pathlib.Path(_core.__file__).parent / "bin/invattn"
    # Wherever this environment has torch.
    libraries = [str(pathlib.Path(torch.__file__).parent / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(folder for folder in libraries if folder)
    sys.stdout.flush()
    os.execv(tool, ["invattn", *sys.argv[1:]])


if __name__ == "__main__":
    main()
