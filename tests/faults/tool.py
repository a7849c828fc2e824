"""Runs the tool under watch, and says whether how it ended is one of the ways that are documented."""
import os
import re
import shlex
import signal
import subprocess
import threading
import time
from pathlib import Path

GIBIBYTE = 1 << 30
MEMORY_LIMIT = 4 * GIBIBYTE
TIME_LIMIT = 60.0
GRACE = 20.0  # seconds from a request to stop to the end

# Text of libraries, of the language and of torch, that no message of ours holds.
FOREIGN = re.compile(
    r"json\.exception|unexpected error|terminate called|std::|c10::|at::|basic_string|filesystem error|Exception raised from"
    r"|DefaultCPUAllocator|vector::|bad_alloc|stod|stoll|regex_error|Traceback|AddressSanitizer|TORCH_CHECK|INTERNAL ASSERT"
    r"|Storage size calculation overflowed|numel: integer")
# [origin] expected …, got …. Next step.
MESSAGE = re.compile(r"^error: \[.+?\] .*expected .*\bgot\b.*[.:?!]['\")`]*\s+[A-Z`].*[.?!:`]\s*$", re.S)
USAGE = re.compile(r"^error: .+ Run with --help to see what is possible\.\s*$", re.S)
CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")


class Result:
    def __init__(self, command, code, out, err, seconds, stopped):
        self.command, self.code, self.out, self.err, self.seconds, self.stopped = command, code, out, err, seconds, stopped

    @property
    def error(self):
        return self.err.decode("utf-8", "replace")

    def last_line(self):
        lines = self.error.strip().splitlines()
        return lines[-1][:300] if lines else ""


def quoted(command):
    return " ".join(shlex.quote(os.fsdecode(word)) for word in command)


def resident(pid):
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, IndexError, ValueError):
        return 0


class Tool:
    def __init__(self, path):
        self.path = str(path)

    def run(self, arguments, *, environment=None, folder=None, limit=TIME_LIMIT, stop_after=None, stop_by=signal.SIGTERM, stdout=None,
            prepare=None, prefix=()):
        """`stop_after`: seconds after which `stop_by` is sent. `stdout`: in place of a pipe. `prefix`: of the command."""
        command = [*prefix, self.path, *arguments]
        started = time.monotonic()
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if stdout is None else stdout,
                                   stderr=subprocess.PIPE, env={**os.environ, **(environment or {})}, preexec_fn=prepare,
                                   start_new_session=True)
        output = {}

        def drain(name, stream):
            output[name] = stream.read()

        readers = [threading.Thread(target=drain, args=(name, stream), daemon=True)
                   for name, stream in (("out", process.stdout), ("err", process.stderr)) if stream is not None]
        for reader in readers:
            reader.start()
        stopped = ""
        asked = None
        while process.poll() is None:
            passed = time.monotonic() - started
            if stop_after is not None and asked is None and passed >= stop_after:
                process.send_signal(stop_by)
                asked = passed
            if resident(process.pid) > MEMORY_LIMIT:
                stopped = "memory"
            elif asked is not None and passed > asked + GRACE:
                stopped = "stop"
            elif passed > limit and asked is None:
                stopped = "time"
            if stopped:
                os.killpg(process.pid, signal.SIGKILL)
                break
            time.sleep(0.01 if passed < 5 else 0.05)
        process.wait()
        for reader in readers:
            reader.join(5)
        return Result(command, process.returncode, output.get("out", b""), output.get("err", b""), time.monotonic() - started, stopped)


def complaint(result, codes=(0, 2, 3, 4)):
    """What is wrong with how the tool ended, or nothing."""
    if result.stopped == "time":
        return f"does not end within {result.seconds:.0f} s: {result.last_line()}"
    if result.stopped == "stop":
        return f"goes on {GRACE:.0f} s after it was told to stop"
    if result.stopped == "memory":
        return f"takes more than {MEMORY_LIMIT / GIBIBYTE:.0f} GiB of memory"
    if result.code < 0 and result.code not in codes:
        return f"ended by {signal.Signals(-result.code).name}: {result.last_line()}"
    foreign = FOREIGN.search(result.error)
    if result.code not in codes:
        return f"exit code {result.code}, expected {' or '.join(map(str, sorted(codes)))}: {result.last_line()}"
    if foreign:
        return f"exit code {result.code} with the text of a library, '{foreign.group()}': {result.last_line()}"
    for name, text in (("standard output", result.out), ("standard error", result.err)):
        if CONTROL.search(text):
            return f"raw control characters on {name}: {CONTROL.search(text).group()!r} in {text[:200]!r}"
        try:
            text.decode("utf-8")
        except UnicodeDecodeError:
            return f"bytes on {name} that are not UTF-8: {text[:200]!r}"
    if result.code in (2, 3, 4):
        place = result.error.rfind("error: ")
        message = result.error[place:] if place >= 0 else result.error
        if not MESSAGE.search(message) and not (result.code == 2 and USAGE.search(message)):
            return f"exit code {result.code} with a message that is not '[origin] expected …, got …. Next step.': {message.strip()[:300]}"
    return ""
