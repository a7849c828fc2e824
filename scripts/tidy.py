#!/usr/bin/env python3
"""Runs clang-tidy on our files, in parallel, and skips those that nothing has changed for since they were found clean.

usage: tidy.py BUILD_FOLDER [FILE …]
BUILD_FOLDER holds compile_commands.json. scripts/tidy.clean records, for each clean file, a digest of all that the outcome depends on: the
file, our headers below it, the flags of its compile command, .clang-tidy, the release of torch and of clang-tidy. It belongs in the commit
of the change, so that the next machine checks only what a change can affect; without it everything is checked.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = ROOT / "scripts/tidy.clean"
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def closure(path, build, seen):
    """The file and all of our headers that it reaches."""
    if path in seen or not path.exists():
        return seen
    seen.add(path)
    for header in INCLUDE.findall(path.read_text(encoding="utf-8")):
        for folder in (ROOT, path.parent, build / "generated"):
            closure(folder / header, build, seen)
    return seen


def flags_of(command, build):
    """What of a compile command is the same on every machine: neither compiler nor folders nor names of files."""
    flags = []
    parts = iter(shlex.split(command)[1:])
    for part in parts:
        if part in ("-isystem", "-I", "-o", "-c"):
            next(parts, None)
        elif not part.startswith("-I"):
            flags.append(part.replace(str(build), "BUILD").replace(str(ROOT), "ROOT"))
    return " ".join(flags)


def key_of(path, command, build, common):
    digest = hashlib.sha256((common + flags_of(command, build)).encode())
    for part in sorted(closure(path, build, set())):
        digest.update(part.read_bytes())
    return digest.hexdigest()[:32]


def read_record():
    if not RECORD.exists():
        return {}
    return dict(line.split() for line in RECORD.read_text(encoding="utf-8").splitlines())


def write_record(record):
    kept = {name: key for name, key in record.items() if (ROOT / name).exists()}
    other = RECORD.with_suffix(".new")
    other.write_text("".join(f"{name} {kept[name]}\n" for name in sorted(kept)), encoding="utf-8")
    other.replace(RECORD)


def tidy(path, build):
    start = time.monotonic()
    run = subprocess.run(["clang-tidy", "--quiet", "-p", str(build), str(path)], capture_output=True, text=True, check=False)
    # What is left on stderr of a clean run is the count of findings in torch's headers.
    output = run.stdout + (run.stderr if run.returncode and not run.stdout else "")
    return run.returncode, output, time.monotonic() - start


def main(build, only):
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, text=True, check=True).stdout
    common = re.search(r"version (\d+)", version)[1] + "".join((ROOT / name).read_text() for name in (".clang-tidy", "requirements-torch.txt"))
    record = read_record()
    work = {}
    seen = set()  # a file may belong to several targets; one look at it is enough
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        path = pathlib.Path(entry["file"])
        if not path.is_relative_to(ROOT) or path.is_relative_to(build) or path in seen or (only and path not in only):
            continue
        seen.add(path)
        key = key_of(path, entry["command"], build, common)
        if record.get(str(path.relative_to(ROOT))) != key:
            work[path] = key
    print(f"clang-tidy: {len(work)} files to check, {len(seen) - len(work)} as they were when found clean", flush=True)
    findings = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = {pool.submit(tidy, path, build): path for path in work}
        for future in concurrent.futures.as_completed(futures):
            path = futures[future]
            name = str(path.relative_to(ROOT))
            code, output, seconds = future.result()
            print(f"  {name} {seconds:.0f} s{'' if code == 0 else ': not clean'}", flush=True)
            if code == 0:
                record[name] = work[path]
                write_record(record)  # after each file: an interrupted run is gone on with
            else:
                findings.append(output)
    print("".join(findings), end="")
    print(f"clang-tidy: {len(findings)} files are not clean" if findings else "clang-tidy: clean")
    return 1 if findings else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve(), {pathlib.Path(name).resolve() for name in sys.argv[2:]}))
