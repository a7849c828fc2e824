"""The calls that changed a folder, as shim.c noted them, and the folders that a crash after any of them could leave."""
import os
import random
import struct
from pathlib import Path

RECORD = struct.Struct("<IIQQII")
CREATE, WRITE, TRUNCATE, SYNC, RENAME, REMOVE, MAKE_FOLDER = range(1, 8)
NAMES = {CREATE: "open", WRITE: "write", TRUNCATE: "truncate", SYNC: "fsync", RENAME: "rename", REMOVE: "unlink", MAKE_FOLDER: "mkdir"}


class Call:
    def __init__(self, kind, number, offset, path, second, data):
        self.kind, self.number, self.offset, self.path, self.second, self.data = kind, number, offset, path, second, data

    def __str__(self):
        return NAMES[self.kind] + " " + self.path


def read_journal(path, folder):
    """The calls, with paths relative to the folder."""
    calls, raw, place = [], Path(path).read_bytes(), 0
    root = str(folder)

    def relative(name):
        return os.path.relpath(name, root)

    while place < len(raw):
        kind, number, offset, length, first, second = RECORD.unpack_from(raw, place)
        place += RECORD.size
        names = raw[place:place + first + second].decode("utf-8", "surrogateescape")
        place += first + second
        other = names[first:] and relative(names[first:])
        calls.append(Call(kind, number, offset, relative(names[:first]), other, raw[place:place + length]))
        place += length
    return calls


class File:
    """What was written, and what of it a power cut leaves for certain."""

    def __init__(self):
        self.data = bytearray()
        self.synced = b""


class Disk:
    """A folder while calls are made on it: what processes see, and what is on the disk for certain.

    A file's data is certain after a sync of the file, its name after a sync of the folder that holds it.
    """

    def __init__(self):
        self.names = {}  # path to File, or to None for a folder
        self.certain = {}
        self.pending = {}  # folder to the changes of its names since its last sync, each {path: what is there now or KeyError}

    def apply(self, call):
        path = call.path
        if path == ".":
            if call.kind == SYNC:
                self._sync_names(path)
            return
        if call.kind == CREATE:
            self._change({path: File()})
        elif call.kind == MAKE_FOLDER:
            self._change({path: None})
        elif call.kind == REMOVE:
            self._change({path: KeyError})
        elif call.kind == RENAME:
            self._change({path: KeyError, call.second: self.names[path]})
        elif call.kind == WRITE:
            data = self.names[path].data
            data.extend(bytes(max(0, call.offset - len(data))))
            data[call.offset:call.offset + len(call.data)] = call.data
        elif call.kind == TRUNCATE:
            data = self.names[path].data
            data.extend(bytes(max(0, call.offset - len(data))))
            del data[call.offset:]
        elif call.kind == SYNC and self.names[path] is None:
            self._sync_names(path)
        elif call.kind == SYNC:
            self.names[path].synced = bytes(self.names[path].data)

    def _change(self, change):
        _play(self.names, change)
        folders = {os.path.dirname(path) or "." for path in change}
        assert len(folders) == 1, "a rename across folders: not in the model"
        self.pending.setdefault(folders.pop(), []).append(change)

    def _sync_names(self, folder):
        for change in self.pending.pop(folder, []):
            _play(self.certain, change)

    def seen(self):
        """As processes see it: what a kill leaves."""
        return {path: None if file is None else bytes(file.data) for path, file in self.names.items()}

    def names_kept(self):
        """A power cut that keeps every name and loses all data that is not certain."""
        return {path: None if file is None else file.synced for path, file in self.names.items()}

    def names_lost(self):
        """A power cut that loses everything that is not certain."""
        return self._reachable({path: None if file is None else file.synced for path, file in self.certain.items()})

    def mixed(self, chance):
        """A power cut in the middle: of each folder's changes the first few, of each file's data some."""
        names = dict(self.certain)
        for folder in sorted(self.pending):
            for change in self.pending[folder][:chance.randint(0, len(self.pending[folder]))]:
                _play(names, change)
        state = {}
        for path, file in names.items():
            if file is None or file.data == file.synced or chance.random() < 0.3:
                state[path] = None if file is None else file.synced
                continue
            data = bytes(file.data[:chance.randint(min(len(file.synced), len(file.data)), len(file.data))])
            if chance.random() < 0.3:  # blocks that were never written
                data = data[:len(file.synced)] + bytes(len(data) - len(file.synced))
            state[path] = data
        return self._reachable(state)

    @staticmethod
    def _reachable(state):
        def there(path):
            above = os.path.dirname(path)
            return path in state and (not above or there(above))
        return {path: data for path, data in state.items() if there(path)}


def _play(names, change):
    for path, file in change.items():
        if file is KeyError:
            names.pop(path, None)
        else:
            names[path] = file


KINDS = ("kill", "power cut, names kept", "power cut, names lost", "power cut, mixed")


def _crash(disk, number, kind, seed):
    if kind == "kill":
        return disk.seen()
    if kind == "power cut, names kept":
        return disk.names_kept()
    if kind == "power cut, names lost":
        return disk.names_lost()
    return disk.mixed(random.Random(f"{seed} {number}"))


def alike(calls, number):
    """Whether the call is one of several writes to one file, neither the first nor the last: it tells nothing that those do not."""
    def same(one, other):
        return one.kind == other.kind == WRITE and one.path == other.path
    return 0 < number < len(calls) - 1 and same(calls[number - 1], calls[number]) and same(calls[number], calls[number + 1])


def crashes(calls, seed):
    """(number of calls before it, kind) of every crash that leaves another folder than those before."""
    disk, seen = Disk(), set()
    for number in range(len(calls) + 1):
        if number > 0:
            disk.apply(calls[number - 1])
        if number > 0 and alike(calls, number - 1):
            continue
        for kind in KINDS:
            key = hash(frozenset(_crash(disk, number, kind, seed).items()))
            if key not in seen:
                seen.add(key)
                yield number, kind


def crash_state(calls, number, kind, seed):
    """The folder that it leaves: path to data, or to None for a folder."""
    disk = Disk()
    for call in calls[:number]:
        disk.apply(call)
    return _crash(disk, number, kind, seed)


def write_state(state, folder):
    Path(folder).mkdir(parents=True)
    for path in sorted(state):
        if state[path] is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(state[path])


def read_state(folder):
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes() for path in folder.rglob("*")}
