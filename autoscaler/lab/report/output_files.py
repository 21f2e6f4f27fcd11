"""Output files: checked before the simulation, and written completely or not at all."""

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

NEW_MODE = 0o644  # mode of a new file


def check(outputs: Sequence[Path], inputs: Sequence[Path] = ()) -> None:
    """Raise ValueError for an output that cannot be written, or that is also an input or another output."""
    for place, path in enumerate(outputs):
        try:
            _check_writable(path)
        except OSError as error:
            raise ValueError(_error_text(path, error)) from error
        if _is_stream(path):
            continue
        for other in (*inputs, *outputs[:place]):
            if _is_same(path, other):
                also = f"the output {other}" if other in outputs[:place] else f"the input {other}"
                raise ValueError(f"{path} would replace {also}; allowed: a file of its own")


def write(contents: Sequence[tuple[Path, str]]) -> None:
    """Write all files, or none if one cannot be written. Raises ValueError.

    A file is replaced atomically. A link stays a link, and an existing file keeps its mode. Devices and pipes are
    written directly. Characters that UTF-8 cannot encode become question marks.
    """
    staged: list[tuple[Path, Path, Path]] = []  # path as given, resolved path, temporary file
    path = Path()
    try:
        for path, content in contents:
            if not _is_stream(path):
                target = Path(os.path.realpath(path))
                staged.append((path, target, _temporary(target)))
                _write_temporary(staged[-1][2], target, content)
        for path, content in contents:
            if _is_stream(path):
                _write_stream(path, content)
        for path, target, temporary in staged:  # noqa: B007  (the error below names it)
            temporary.replace(target)
    except OSError as error:
        raise ValueError(_error_text(path, error)) from error
    finally:
        for _, _, temporary in staged:
            temporary.unlink(missing_ok=True)


def _check_writable(path: Path) -> None:
    """Raise ValueError or OSError if a file cannot be written. Leaves nothing behind."""
    found = _stat(path)
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise ValueError(f"{path} is a folder; allowed: a file")
    if _is_stream(path):
        if _standard(path) is None and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return
    if not path.parent.is_dir():
        raise ValueError(f"{path}: the folder {path.parent} does not exist")
    _temporary(Path(os.path.realpath(path))).unlink()


def _temporary(target: Path) -> Path:
    """Create an empty file beside `target`. Its name is short, since that of `target` may have the longest possible
    name.
    """
    descriptor, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=target.parent)
    os.close(descriptor)
    return Path(name)


def _write_temporary(temporary: Path, target: Path, content: str) -> None:
    """Write the content of the temporary file, with the mode of `target`."""
    found = _stat(target)
    with temporary.open("w", encoding="utf-8", errors="replace") as stream:
        stream.write(content)
        stream.flush()
        os.fchmod(stream.fileno(), NEW_MODE if found is None else stat.S_IMODE(found.st_mode))
        os.fsync(stream.fileno())


def _write_stream(path: Path, content: str) -> None:
    """Write to a device or pipe, whose reader may have closed; to standard output at its position in its file."""
    standard = _standard(path)
    descriptor = os.open(path, os.O_WRONLY) if standard is None else os.dup(standard)
    with suppress(BrokenPipeError), os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as stream:
        stream.write(content)


def _stat(path: Path) -> os.stat_result | None:
    """Return the status of a path, following links, or None if it does not exist. Raises OSError."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _is_stream(path: Path) -> bool:
    """Return whether a path is a device, a pipe, or the target of standard output."""
    found = _stat(path)
    return found is not None and (not stat.S_ISREG(found.st_mode) or _standard(path) is not None)


def _standard(path: Path) -> int | None:
    """Return the descriptor of standard output or error if `path` is the same file, else None."""
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None and os.path.samestat(path.stat(), os.fstat(stream.fileno())):
            return stream.fileno()
    return None


def _is_same(path: Path, other: Path) -> bool:
    if os.path.realpath(path) == os.path.realpath(other):
        return True
    return path.exists() and other.exists() and path.samefile(other)


def _error_text(path: Path, error: OSError) -> str:
    return f"{path} cannot be written: {error.strerror or error}"
