"""The local pod that `mcpp up` keeps under `.mcpp/`, and how agents find it.

`.mcpp/pod.toml` is an ordinary gateway configuration. People may edit it, so it is changed only by
adding and removing whole tables; comments and limits are preserved.
"""

import fcntl
import getpass
import logging
import os
import re
import secrets
import signal
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import msgspec

from mcpp.errors import LocalPodError, PodNotFoundError
from mcpp.protocol.envelope import PARTICIPANT_PATTERN
from mcpp.transports.token_sources import TokenSource, command_token, file_token

__all__ = ["ANYTHING", "Address", "LocalPod", "create", "find", "is_named", "locate", "person"]

logger = logging.getLogger("mcpp.client")

DIRECTORY: Final = ".mcpp"
TOKEN_BYTES: Final = 32
ANYTHING: Final[Sequence[Mapping[str, Any]]] = ({"kind": "*"},)
RELOAD_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.002  # a reload takes about a millisecond

# The variables that name a token, the most direct one first.
_TOKEN_VARIABLES: Final[Mapping[str, Callable[[str], TokenSource]]] = {
    "MCPP_TOKEN": str,
    "MCPP_TOKEN_FILE": file_token,
    "MCPP_TOKEN_COMMAND": command_token,
}

Loading: TypeAlias = Callable[[], AbstractContextManager[None]]

# A gateway that listens on all interfaces is reached on the loopback.
_REACHED_AT: Final = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a pod's gateway, with a participant's token.

    `ca` is a file with the certificate of the authority that signed the gateway's; without one, it
    is MCPP_CA, or the system's authorities are trusted.
    """

    url: str
    token: TokenSource
    ca: str | None = None


def find(start: Path | None = None) -> "LocalPod | None":
    """Return the local pod of this directory or of the nearest one above it, or None.

    Another user's folder is skipped: its tokens could lead an agent into a foreign pod.
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
    """Create a local pod in a directory and return it. An existing one is left unchanged.

    Raises LocalPodError if the folder cannot be created.
    """
    folder = (Path.cwd() if start is None else start).absolute() / DIRECTORY
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise LocalPodError(f"{folder} cannot be created: {error.strerror}") from None
    created = LocalPod(folder)
    with created._lock():
        if not created.path.exists():
            head = f"[gateway]\nhost = {_text(host)}\nport = {port}\n"
            created._write(f"{head}\n[pods.{_key(pod)}.participants]\n")
    return created


def person() -> str:
    """Return a participant name for the user of this machine."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = ""
    return re.sub(r"[^A-Za-z0-9._-]", "-", name)[:64] or "me"


def locate(
    name: str, environ: Mapping[str, str] = os.environ, *, is_person: bool = False
) -> Address:
    """Return the address for a participant: MCPP_URL and its token, or the nearest `.mcpp/`.

    A participant that the local pod does not know is added to it; a person may have several
    connections at once.

    Raises PodNotFoundError if there is neither.
    """
    if is_named(environ):
        return complete(None, None, environ)
    pod = find()
    if pod is None:
        raise PodNotFoundError("set MCPP_URL and MCPP_TOKEN, or start one here with `mcpp up`")
    token = pod.token(name) or pod.add(name, multiple=is_person, is_person=is_person)
    return Address(pod.url, token, environ.get("MCPP_CA"))


def is_named(environ: Mapping[str, str]) -> bool:
    """Return whether the environment names a pod."""
    return any(environ.get(name) for name in ("MCPP_URL", *_TOKEN_VARIABLES))


def complete(
    url: str | None, token: TokenSource | None, environ: Mapping[str, str] = os.environ
) -> Address:
    """Return the given address, completed from the environment.

    The token is that of MCPP_TOKEN, or the present one of MCPP_TOKEN_FILE or MCPP_TOKEN_COMMAND.

    Raises PodNotFoundError if one of the two is missing. The local pod is no substitute: naming a
    url or a token means one particular pod.
    """
    url = environ.get("MCPP_URL") if url is None else url
    token = _token_of(environ) if token is None else token
    if url and token:
        return Address(url, token, environ.get("MCPP_CA"))
    missing = "MCPP_TOKEN is not set, and there is no other token"
    if not url:
        missing = "MCPP_URL is not set, and there is no other address"
    raise PodNotFoundError(missing)


def _token_of(environ: Mapping[str, str]) -> TokenSource | None:
    for name, source in _TOKEN_VARIABLES.items():
        if environ.get(name):
            return source(environ[name])
    return None


@dataclass(frozen=True, slots=True)
class LocalPod:
    """A `.mcpp/` folder. Holds no state: every call reads the file."""

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
        """Return a participant's token, or None if there is no such participant."""
        token = _participants(self._read()).get(name, {}).get("token")
        return token if isinstance(token, str) else None

    def add(
        self,
        name: str,
        capabilities: Sequence[Mapping[str, Any]] = ANYTHING,
        multiple: bool = False,
        is_person: bool = False,
    ) -> str:
        """Add a participant, reload a running gateway, and return the token.

        The gateway accepts the token when this returns. An existing participant keeps its token and
        its capabilities.

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
            flags = {"multiple": multiple, "person": is_person}
            table = _table(self.name, name, token, capabilities, flags)
            self._write(f"{text.rstrip()}\n\n{table}")
        self.reload()
        return token

    def remove(self, name: str) -> bool:
        """Remove a participant, reload a running gateway, and return whether it existed."""
        with self._lock():
            text, expected = self._read_document()
            if _participants(expected).pop(name, None) is None:
                return False
            rest = _without_table(text, ("pods", self.name, "participants", name))
            self._write_expected(rest, expected, f"{name!r} does not have its own table")
        self.reload()
        return True

    def set_port(self, port: int) -> None:
        """Set the port that the gateway listens on from its next start, and that agents use."""
        with self._lock():
            text, expected = self._read_document()
            expected.setdefault("gateway", {})["port"] = port
            changed = re.sub(r"(?m)^port\s*=\s*\d+", f"port = {port}", text, count=1)
            self._write_expected(changed, expected, "cannot change the port automatically")

    @contextmanager
    def running(self) -> Iterator["Loading"]:
        """Hold the pod's lock as its gateway, so that `reload` finds the process.

        The lock on `gateway.pid` shows that a gateway runs, not the number in it: after a crash
        another process may have the number. The gateway loads its configuration inside the context
        manager that this one yields, so that `reload` can wait for it.

        Raises LocalPodError if another process holds it.
        """
        descriptor = os.open(self._pid_path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not _try_lock(descriptor):
                raise LocalPodError(f"a gateway for {self.folder} is already running")
            # From here on `reload` sends SIGHUP, which would end a process without a handler.
            if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
                signal.signal(signal.SIGHUP, lambda *_: None)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)

            @contextmanager
            def loading() -> Iterator[None]:
                version = self._version()  # first: a change during the load is a later version
                yield
                os.pwrite(descriptor, f"{os.getpid()}\n{version}\n".encode(), 0)

            yield loading
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def reload(self) -> bool:
        """Have a running gateway reload its configuration; return whether one is running.

        Waits until the gateway has loaded the current file, for two seconds at most: it never loads
        a file that it rejects.
        """
        try:
            descriptor = os.open(self._pid_path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            number, _ = _read_pid(descriptor)
            if not number.isdigit() or _try_lock(descriptor):
                return False
            os.kill(int(number), signal.SIGHUP)
            if int(number) != os.getpid():
                self._wait_until_loaded(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True

    def _wait_until_loaded(self, descriptor: int, number: str) -> None:
        deadline = time.monotonic() + RELOAD_SECONDS
        while True:
            running, version = _read_pid(descriptor)
            # Without its number in the file, the gateway has ended.
            if running != number or version == self._version():
                return
            if time.monotonic() > deadline:
                logger.warning("the gateway has not loaded %s; see its log", self.path)
                return
            time.sleep(_POLL_SECONDS)

    def _version(self) -> str:
        # Every change replaces the file, so its inode differs even within one tick of the clock.
        status = self.path.stat()
        return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"

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

    def _read_document(self) -> tuple[str, dict[str, Any]]:
        text = self.path.read_text()
        return text, tomllib.loads(text)

    def _write_expected(self, text: str, expected: dict[str, Any], problem: str) -> None:
        # The text was edited by pattern; TOML has more ways to write it than the patterns know.
        if tomllib.loads(text) != expected:
            raise LocalPodError(f"{problem}: edit {self.path}")
        self._write(text)

    def _write(self, text: str) -> None:
        # mkstemp creates the file with mode 0600; replacing it is atomic for readers.
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


def _read_pid(descriptor: int) -> tuple[str, str]:
    """Return the gateway's process id and the version of the file that it has loaded."""
    number, version, *_ = (*os.pread(descriptor, 128, 0).decode().split("\n"), "", "")
    return number, version


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# --- TOML ---------------------------------------------------------------------------------------


def _table(
    pod: str,
    name: str,
    token: str,
    capabilities: Sequence[Mapping[str, Any]],
    flags: Mapping[str, bool],
) -> str:
    lines = [
        f"[pods.{_key(pod)}.participants.{_key(name)}]",
        f"token = {_text(token)}",
        f"capabilities = {to_toml(capabilities)}",
    ]
    lines += [f"{flag} = true" for flag, is_set in flags.items() if is_set]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _text(text: str) -> str:
    # A JSON string is a TOML string except for DEL, which TOML requires to be escaped.
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")


def to_toml(value: object) -> str:
    """Return a value as TOML on one line."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        members = (f"{_key(name)} = {to_toml(member)}" for name, member in value.items())
        return "{ " + ", ".join(members) + " }"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(to_toml, value)) + "]"
    if value is None:
        raise LocalPodError("TOML has no null, so a capability in pod.toml cannot contain one")
    return msgspec.json.encode(value).decode()


def _without_table(text: str, path: tuple[str, ...]) -> str:
    """Return a document without the table at this path and the tables below it."""
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
    """Return the path of a table header, or None for any other line."""
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
