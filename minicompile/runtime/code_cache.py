"""A content-addressed store on disk: bytes by key, written atomically, never trusted when damaged or foreign.

An entry is a file that starts with the SHA-256 of its payload. A folder that belongs to someone else, or that others may
write, is not used at all: loading an entry runs code. An unwritable folder costs speed, never correctness. Only files in
the subfolders of `KINDS` are ever counted or removed. Nothing here knows what the entries mean.
"""

import contextlib
import hashlib
import os
import pathlib
import re
import stat
import tarfile
import tempfile
from collections.abc import Iterator

PORTABLE = ("graphs", "kernels", "tunings")
KINDS = (*PORTABLE, "bytecode", "programs", "cubins", "hashes")
"""Subfolders. What is not portable is made anew from the rest."""
_DIGEST_BYTES = 32
_MAGIC = b"minicompile1"
_HEADER_BYTES = len(_MAGIC) + _DIGEST_BYTES


class CodeCache:
    """Entries under one folder, at most `megabytes` of them; the least recently used go first."""

    def __init__(self, directory: pathlib.Path, megabytes: int = 4096) -> None:
        self.directory = directory
        self.limit_bytes = megabytes * 2**20
        self.usable = _prepare(directory)
        self._written_since_trim = 0

    def path(self, kind: str, key: str) -> pathlib.Path:
        """Where the entry lies, whether it exists or not."""
        return self.directory / kind / key[:2] / key

    def read(self, kind: str, key: str) -> bytes | None:
        """The payload, or `None` if there is none or it is damaged (a damaged entry is removed)."""
        if not self.usable:
            return None
        path = self.path(kind, key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        payload = content[_HEADER_BYTES:]
        if content != _sealed(payload):
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return payload

    def write(self, kind: str, key: str, payload: bytes) -> None:
        """Store `payload`; another process may do the same at the same time. Failure is silent."""
        if not self.usable:
            return
        content = _sealed(payload)
        if write_atomically(self.path(kind, key), content):
            self._written_since_trim += len(content)
            if self._written_since_trim * 20 > self.limit_bytes:
                self._written_since_trim = 0
                self.trim()

    def entries(self) -> Iterator[tuple[pathlib.Path, os.stat_result]]:
        """Every entry with its size and time of last use."""
        for kind in KINDS:
            for root, _, names in os.walk(self.directory / kind):
                for name in names:
                    path = pathlib.Path(root) / name
                    with contextlib.suppress(OSError):
                        yield path, path.stat()

    def trim(self, limit_bytes: int | None = None) -> None:
        """Remove the least recently used entries until the limit, or another one, holds."""
        found = sorted(self.entries(), key=lambda entry: entry[1].st_mtime)
        excess = sum(status.st_size for _, status in found) - (self.limit_bytes if limit_bytes is None else limit_bytes)
        for path, status in found:
            if excess <= 0:
                return
            with contextlib.suppress(OSError):
                path.unlink()
                excess -= status.st_size

    def clear(self) -> None:
        """Remove every entry."""
        self.trim(0)

    def export_to(self, file: pathlib.Path) -> int:
        """Write the portable entries that are whole to an archive; how many there were is returned."""
        count = 0
        with tarfile.open(file, "w:gz", compresslevel=3) as archive:
            for path, status in self.entries():
                kind = path.relative_to(self.directory).parts[0]
                if kind in PORTABLE and self.read(kind, path.name) is not None:
                    archive.add(path, f"{kind}/{path.name}", recursive=False)
                    count += status.st_size > 0
        return count

    def import_from(self, file: pathlib.Path) -> int:
        """Take over the whole entries of an archive. Their code will be run: the archive must come from a friend."""
        count = 0
        with tarfile.open(file, "r:*") as archive:
            for member in archive:
                kind, _, key = member.name.partition("/")
                opened = archive.extractfile(member) if member.isfile() else None
                if opened is None or kind not in PORTABLE or not re.fullmatch("[0-9a-f]{64}", key):
                    continue
                content = opened.read()
                if content == _sealed(content[_HEADER_BYTES:]) and self.usable:
                    count += write_atomically(self.path(kind, key), content)
        self.trim()
        return count


def _sealed(payload: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(payload).digest() + payload


def write_atomically(path: pathlib.Path, content: bytes) -> bool:
    """Write a file that appears whole or not at all; `False` if the disk or the permissions forbid it."""
    temporary = ""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
        return True
    except OSError:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return False


def _prepare(directory: pathlib.Path) -> bool:
    """Create the folder for this user alone; `False` if it cannot be used safely."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError:
        return False
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
