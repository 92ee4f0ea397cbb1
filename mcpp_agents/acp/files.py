"""The working folder: files that an agent reads and writes through the bridge.

Each part of a path is opened by itself, without following links, so that a path cannot lead out of
the folder, not even if a part is replaced meanwhile. `.mcpp` is closed, since it has the tokens of
a pod, and so is writing into `.git`, whose files can name programs to run.
"""

import io
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final

from mcpp import McppError

_CLOSED: Final = (".mcpp",)
_READ_ONLY: Final = (".git",)
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without waiting: a named pipe would block. What is not a regular file is refused after opening.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class FileRefusedError(McppError):
    """A file outside of the folder, not a text, too large, or not to be read or written."""


class FileMissingError(FileRefusedError):
    """There is no such file: an agent may create it."""


class WorkingFolder:
    """A folder in which files are read and written. Raises FileRefusedError; blocks."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._given = PurePosixPath(os.path.normpath(folder.absolute()))
        self.path = folder.resolve(strict=True)
        self._max_bytes = max_bytes

    def read(self, path: str, line: int | None = None, limit: int | None = None) -> str:
        """Return a file's text, from a line (the first is 1) on and at most so many lines."""
        with self._parent(path, creates=False) as (parent, name):
            try:
                descriptor = os.open(name, _FILE, dir_fd=parent)
            except OSError as error:
                raise _unreadable(f"cannot read {path}", error) from None
            with os.fdopen(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise FileRefusedError(f"{path} is not a file")
                data = file.read(self._max_bytes + 1)
        if len(data) > self._max_bytes:
            raise FileRefusedError(f"{path} has more than {self._max_bytes} bytes")
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise FileRefusedError(f"{path} is not UTF-8") from None
        if line is None and limit is None:
            return text
        first = max(0, (line or 1) - 1)
        # Not `splitlines`, for which a form feed also ends a line: agents count as editors do.
        lines = io.StringIO(text, newline="").readlines()[first:]
        return "".join(lines if limit is None else lines[: max(0, limit)])

    def write(self, path: str, text: str) -> None:
        """Replace a file's text, at once; create it and the folders above it if needed."""
        data = text.encode(errors="replace")
        if len(data) > self._max_bytes:
            raise FileRefusedError(f"the text has more than {self._max_bytes} bytes")
        if any(part.lower() in _READ_ONLY for part in self._parts(path)):
            raise FileRefusedError(f"{path} is not to be written by agents")
        with self._parent(path, creates=True) as (parent, name):
            mode = _mode_of(name, parent, path)
            new = f".{secrets.token_hex(8)}.tmp"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                descriptor = os.open(new, flags, 0o666, dir_fd=parent)
                try:
                    with os.fdopen(descriptor, "wb") as file:
                        file.write(data)
                        if mode is not None:
                            os.fchmod(descriptor, mode)
                    os.replace(new, name, src_dir_fd=parent, dst_dir_fd=parent)
                except BaseException:
                    with suppress(OSError):
                        os.unlink(new, dir_fd=parent)
                    raise
            except OSError as error:
                raise FileRefusedError(f"cannot write {path}: {error.strerror}") from None

    def folder(self, path: str | None) -> Path:
        """Return a folder inside this one, in which a program can be started."""
        if path is None:
            return self.path
        parts = self._parts(path, may_be_folder=True)
        with self._opened(parts, path, creates=False):
            return self.path.joinpath(*parts)

    def _parts(self, path: str, *, may_be_folder: bool = False) -> list[str]:
        """Return the parts of an absolute path below the folder."""
        pure = PurePosixPath(path)
        if not pure.is_absolute():
            raise FileRefusedError(f"{path!r} is not an absolute path")
        for root in (self._given, PurePosixPath(self.path)):
            if pure.is_relative_to(root):
                parts = list(pure.relative_to(root).parts)
                break
        else:
            raise FileRefusedError(f"{path} is outside of the working folder")
        if ".." in parts or "\0" in path or not (parts or may_be_folder):
            raise FileRefusedError(f"{path!r} is not the path of a file")
        if any(part.lower() in _CLOSED for part in parts):
            raise FileRefusedError(f"{path} is not for agents")
        return parts

    @contextmanager
    def _parent(self, path: str, *, creates: bool) -> Iterator[tuple[int, str]]:
        *above, name = self._parts(path)
        with self._opened(above, path, creates=creates) as parent:
            yield parent, name

    @contextmanager
    def _opened(self, parts: list[str], path: str, *, creates: bool) -> Iterator[int]:
        """Open the folder at the end of the parts, one part after another."""
        try:
            descriptor = os.open(self.path, _FOLDER)
        except OSError as error:
            raise FileRefusedError(f"cannot open {self.path}: {error.strerror}") from None
        try:
            try:
                for part in parts:
                    if creates:
                        with suppress(FileExistsError):
                            os.mkdir(part, dir_fd=descriptor)
                    inner = os.open(part, _FOLDER, dir_fd=descriptor)
                    os.close(descriptor)
                    descriptor = inner
            except OSError as error:
                raise _unreadable(f"cannot open {path}", error) from None
            yield descriptor
        finally:
            os.close(descriptor)


def _unreadable(what: str, error: OSError) -> FileRefusedError:
    is_missing = isinstance(error, FileNotFoundError)
    return (FileMissingError if is_missing else FileRefusedError)(f"{what}: {error.strerror}")


def _mode_of(name: str, parent: int, path: str) -> int | None:
    """Return the mode of an existing file, None if there is none."""
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileRefusedError(f"cannot write {path}: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise FileRefusedError(f"{path} is not a file")
    return stat.S_IMODE(status.st_mode)
