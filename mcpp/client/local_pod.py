"""The local pod: what `mcpp up` keeps under `.mcpp/`, and how agents beside it find their way in.

`.mcpp/pod.toml` is a gateway's ordinary configuration. People may edit it, so it is changed by
adding and cutting whole tables, never by writing it anew: comments and limits stay as they are.
"""

import fcntl
import getpass
import os
import re
import secrets
import signal
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec

from mcpp.errors import LocalPodError, PodNotFoundError
from mcpp.protocol.envelope import PARTICIPANT_PATTERN

DIRECTORY: Final = ".mcpp"
TOKEN_BYTES: Final = 32
ANYTHING: Final[Sequence[Mapping[str, Any]]] = ({"kind": "*"},)

# A gateway that listens everywhere is reached on the loopback.
_REACHED_AT: Final = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a pod is and how to get in."""

    url: str
    token: str
    fresh: bool = False  # just made: a running gateway may need a moment to know it


def find(start: Path | None = None) -> "LocalPod | None":
    """Return the local pod of this directory or of the nearest one above it, if there is one.

    A folder that belongs to somebody else is passed by: its tokens would lead an agent astray.
    """
    start = (Path.cwd() if start is None else start).absolute()
    for directory in (start, *start.parents):
        folder = directory / DIRECTORY
        if (folder / "pod.toml").is_file() and folder.stat().st_uid == os.getuid():
            return LocalPod(folder)
    return None


def create(
    start: Path | None = None, *, pod: str = "local", host: str = "127.0.0.1", port: int = 8787
) -> "LocalPod":
    """Make a local pod in a directory and return it; one that is there already stays as it is."""
    folder = (Path.cwd() if start is None else start).absolute() / DIRECTORY
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise LocalPodError(f"{folder} cannot be made: {error.strerror}") from None
    made = LocalPod(folder)
    with made._lock():
        if not made.path.exists():
            head = f"[gateway]\nhost = {_text(host)}\nport = {port}\n"
            made._write(f"{head}\n[pods.{_key(pod)}.participants]\n")
    return made


def person() -> str:
    """Return the name under which the person at this machine takes part."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = ""
    return re.sub(r"[^A-Za-z0-9._-]", "-", name)[:64] or "me"


def locate(
    name: str, environ: Mapping[str, str] = os.environ, *, multiple: bool = False
) -> Address:
    """Return where participant `name` finds its pod: MCPP_URL and MCPP_TOKEN, or `.mcpp/` here.

    A participant that the local pod does not know yet is added to it, with leave for several
    connections at once if `multiple`.

    Raises PodNotFoundError when there is neither.
    """
    if environ.get("MCPP_URL") or environ.get("MCPP_TOKEN"):
        return complete(None, None, environ)
    pod = find()
    if pod is None:
        raise PodNotFoundError("set MCPP_URL and MCPP_TOKEN, or start one here with `mcpp up`")
    token = pod.token(name)
    return Address(pod.url, token or pod.add(name, multiple=multiple), fresh=token is None)


def complete(
    url: str | None, token: str | None, environ: Mapping[str, str] = os.environ
) -> Address:
    """Return the address that was given, what is not given taken from MCPP_URL and MCPP_TOKEN.

    Raises PodNotFoundError where one is missing: who names a pod or a token means no other.
    """
    url = environ.get("MCPP_URL") if url is None else url
    token = environ.get("MCPP_TOKEN") if token is None else token
    if url and token:
        return Address(url, token)
    raise PodNotFoundError(f"{'MCPP_TOKEN' if url else 'MCPP_URL'} is missing beside the other")


@dataclass(frozen=True, slots=True)
class LocalPod:
    """A `.mcpp/` folder. Owns nothing in memory: each question reads the file as it is now."""

    folder: Path

    @property
    def path(self) -> Path:
        """The configuration file."""
        return self.folder / "pod.toml"

    @property
    def name(self) -> str:
        """The pod's name: the first one configured."""
        name: str = next(iter(self._read()["pods"]))
        return name

    @property
    def url(self) -> str:
        """The address that participants connect to."""
        gateway = self._read().get("gateway", {})
        host = gateway.get("host", "127.0.0.1")
        host = _REACHED_AT.get(host, host)
        scheme = "wss" if "tls_cert" in gateway else "ws"
        authority = f"[{host}]" if ":" in host else host
        return f"{scheme}://{authority}:{gateway.get('port', 8787)}/ws?pod={quote(self.name)}"

    @property
    def participants(self) -> list[str]:
        """The configured participants' names."""
        return list(_participants(self._read()))

    def token(self, name: str) -> str | None:
        """Return a participant's token, or None where there is no such participant."""
        token = _participants(self._read()).get(name, {}).get("token")
        return token if isinstance(token, str) else None

    def add(
        self,
        name: str,
        capabilities: Sequence[Mapping[str, Any]] = ANYTHING,
        multiple: bool = False,
    ) -> str:
        """Add a participant, tell a running gateway, and return its token.

        One that is there already keeps its token and its capabilities.

        Raises LocalPodError for a name that the protocol does not allow.
        """
        if not re.fullmatch(PARTICIPANT_PATTERN, name) or name.startswith("system:"):
            raise LocalPodError(f"{name!r} cannot be a participant's name")
        with self._lock():
            existing = self.token(name)
            if existing is not None:
                return existing
            token = secrets.token_urlsafe(TOKEN_BYTES)
            text = self.path.read_text()
            table = _table(self.name, name, token, capabilities, multiple)
            self._write(f"{text.rstrip()}\n\n{table}")
        self.reload()
        return token

    def remove(self, name: str) -> bool:
        """Remove a participant, tell a running gateway, and tell whether it was there."""
        with self._lock():
            text = self.path.read_text()
            expected = tomllib.loads(text)
            if _participants(expected).pop(name, None) is None:
                return False
            rest = _without_table(text, ("pods", self.name, "participants", name))
            if tomllib.loads(rest) != expected:
                raise LocalPodError(f"{name!r} is not in a table of its own: edit {self.path}")
            self._write(rest)
        self.reload()
        return True

    def move(self, port: int) -> None:
        """Have the gateway listen on this port from its next start on: agents look for it there."""
        with self._lock():
            text = self.path.read_text()
            expected = tomllib.loads(text)
            expected.setdefault("gateway", {})["port"] = port
            moved = re.sub(r"(?m)^port\s*=\s*\d+", f"port = {port}", text, count=1)
            if tomllib.loads(moved) != expected:
                raise LocalPodError(f"the port cannot be changed here: edit {self.path}")
            self._write(moved)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Hold this pod as its gateway, so that `reload` finds the process.

        The lock on `gateway.pid`, not the number in it, says that a gateway runs: after a crash
        the number may be another process's by now.

        Raises LocalPodError when another process holds it.
        """
        descriptor = os.open(self._pid_path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not _try_lock(descriptor):
                raise LocalPodError(f"a gateway for {self.folder} is running already")
            # From here on others send SIGHUP, which ends a process that does not expect it yet.
            if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
                signal.signal(signal.SIGHUP, lambda *_: None)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def reload(self) -> bool:
        """Have a running gateway read its configuration again; tell whether one runs."""
        try:
            descriptor = os.open(self._pid_path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            number = os.read(descriptor, 32).strip()
            if not number.isdigit() or _try_lock(descriptor):
                return False
            os.kill(int(number), signal.SIGHUP)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True

    @property
    def _pid_path(self) -> Path:
        return self.folder / "gateway.pid"

    def _read(self) -> dict[str, Any]:
        try:
            document = tomllib.loads(self.path.read_text())
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise LocalPodError(f"{self.path}: {error}") from None
        if not document.get("pods"):
            raise LocalPodError(f"{self.path} has no pod")
        return document

    def _write(self, text: str) -> None:
        # mkstemp makes the file 0600; a reader sees the old text or the new one, never a part.
        descriptor, name = tempfile.mkstemp(dir=self.folder, prefix=".pod-")
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(self.path)
        except BaseException:
            Path(name).unlink()
            raise

    @contextmanager
    def _lock(self) -> Iterator[None]:
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _participants(document: dict[str, Any]) -> dict[str, Any]:
    pod = next(iter(document["pods"].values()))
    participants: dict[str, Any] = pod.setdefault("participants", {})
    return participants


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# --- TOML, as far as it is written here --------------------------------------------------------


def _table(
    pod: str, name: str, token: str, capabilities: Sequence[Mapping[str, Any]], multiple: bool
) -> str:
    lines = [
        f"[pods.{_key(pod)}.participants.{_key(name)}]",
        f"token = {_text(token)}",
        f"capabilities = {to_toml(capabilities)}",
    ]
    if multiple:
        lines.append("multiple = true")
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _text(text: str) -> str:
    # A JSON string is a TOML string, but for DEL, which TOML wants escaped.
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")


def to_toml(value: object) -> str:
    """Return a value as TOML writes it in one line."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        members = (f"{_key(name)} = {to_toml(member)}" for name, member in value.items())
        return "{ " + ", ".join(members) + " }"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(to_toml, value)) + "]"
    if value is None:
        raise LocalPodError("TOML has no null: a capability cannot ask for one here")
    return msgspec.json.encode(value).decode()


def _without_table(text: str, path: tuple[str, ...]) -> str:
    """Cut the table with this path, and the tables below it, out of a document."""
    kept: list[str] = []
    inside = False
    for line in text.splitlines(keepends=True):
        header = _header(line)
        if header is not None:
            inside = header[: len(path)] == path
        if not inside:
            kept.append(line)
    return "".join(kept)


def _header(line: str) -> tuple[str, ...] | None:
    """Return the path of a line that opens a table, or None for any other line."""
    if not line.lstrip().startswith("["):
        return None
    try:
        value: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    path: list[str] = []
    while isinstance(value, dict) and value:
        ((key, value),) = value.items()
        path.append(key)
    return tuple(path)
