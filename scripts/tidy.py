#!/usr/bin/env python3
"""Runs clang-tidy on our files, in parallel, and skips those that were clean before and have not changed since.

usage: tidy.py BUILD_FOLDER [FILE …]
BUILD_FOLDER holds compile_commands.json; a file counts as changed when it, one of our headers below it, its compile command or .clang-tidy
did. The record of clean files is BUILD_FOLDER/clean/.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
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


def key_of(path, command, build):
    digest = hashlib.sha256(command.encode())
    for part in [ROOT / ".clang-tidy", *sorted(closure(path, build, set()))]:
        digest.update(part.read_bytes())
    return digest.hexdigest()


def tidy(path, build):
    start = time.monotonic()
    run = subprocess.run(["clang-tidy", "--quiet", "-p", str(build), str(path)], capture_output=True, text=True, check=False)
    # What is left on stderr of a clean run is the count of findings in torch's headers.
    output = run.stdout + (run.stderr if run.returncode and not run.stdout else "")
    return run.returncode, output, time.monotonic() - start


def main(build, only):
    clean = build / "clean"
    clean.mkdir(exist_ok=True)
    work = {}
    skipped = 0
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        path = pathlib.Path(entry["file"])
        if not path.is_relative_to(ROOT) or path.is_relative_to(build) or (only and path not in only):
            continue
        stamp = clean / key_of(path, entry["command"], build)
        if stamp.exists():
            skipped += 1
        else:
            work[path] = stamp
    print(f"clang-tidy: {len(work)} files to check, {skipped} clean since the last time", flush=True)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = {pool.submit(tidy, path, build): path for path in work}
        for future in concurrent.futures.as_completed(futures):
            path = futures[future]
            code, output, seconds = future.result()
            print(f"  {path.relative_to(ROOT)} {seconds:.0f} s{'' if code == 0 else ': not clean'}", flush=True)
            if code == 0:
                work[path].touch()
            else:
                failed += 1
                print(output, flush=True)
    print(f"clang-tidy: {failed} files are not clean" if failed else "clang-tidy: clean")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve(), {pathlib.Path(name).resolve() for name in sys.argv[2:]}))
