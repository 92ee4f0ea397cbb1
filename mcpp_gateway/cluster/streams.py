"""The streams of the cluster: one log for each pod, and one stream for all states.

A log's records are published again on `PREFIX.POD.out` once they are stored by a quorum; gateways
read them there, and ask for what they have missed with DIRECT.GET. A state is stored in parts, the
first one last: its number of parts and its id say whether the others belong to it.
"""

import asyncio
import logging
from base64 import b64decode
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

import msgspec
import uuid6

from mcpp_gateway.cluster.nats_link import LinkError, NatsLink, NatsMessage
from mcpp_gateway.config import RetentionSection
from mcpp_gateway.core.cluster.records import (
    ClusterState,
    decode_cluster_state,
    encode_cluster_state,
)

logger = logging.getLogger("mcpp.gateway")

_NOT_FOUND: Final = "404"
_END: Final = "204"  # of several answers
_STREAM_NOT_FOUND: Final = 10059
_MESSAGE_NOT_FOUND: Final = 10037
_READ_AT_ONCE: Final = 256
_READ_BYTES: Final = 8 << 20
_PART_BYTES: Final = 524_288
_NANOSECONDS: Final = 1_000_000_000
_ATTEMPTS: Final = 10
_RETRY_SECONDS: Final = 0.3

_encode = msgspec.json.encode
_encode_part = msgspec.msgpack.Encoder().encode


class _StatePart(msgspec.Struct, array_like=True):
    id: str
    number: int
    parts: int
    data: bytes


_decode_part = msgspec.msgpack.Decoder(_StatePart).decode


class JetStreamError(LinkError):
    """JetStream answered with an error, such as while its servers elect a leader."""

    def __init__(self, name: str, code: int, description: str) -> None:
        super().__init__(f"{name}: {description}")
        self.code = code


class StreamLostError(LinkError):
    """Records that this gateway needs are not in the stream any more."""


def token(pod: str) -> str:
    """Return a pod's name as a part of subjects and streams; they may not contain dots."""
    return pod.replace(".", "%")


class Streams:
    """Creates, reads and describes the streams of one cluster."""

    def __init__(self, link: NatsLink, replicas: int, retention: RetentionSection) -> None:
        self.link = link
        self._replicas = replicas
        self._retention = retention
        self._prefix = link.prefix

    def log_subject(self, pod: str) -> str:
        """Return the subject on which a pod's records are stored."""
        return f"{self._prefix}.{token(pod)}.log"

    def log_stream(self, pod: str) -> str:
        """Return the name of a pod's stream."""
        return f"{self._prefix.upper()}_{token(pod)}"

    @property
    def state_stream(self) -> str:
        """The name of the stream of states."""
        return f"{self._prefix.upper()}=STATES"

    async def create(self, pod: str) -> int:
        """Create a pod's stream if there is none. Return the sequence number of its last record."""
        subject = self.log_subject(pod)
        age = self._retention.max_age_days * 86_400
        config = self.config(
            self.log_stream(pod),
            [subject],
            max_age=round(age * _NANOSECONDS),
            max_bytes=self._retention.max_bytes or -1,
            republish={"src": subject, "dest": f"{self._prefix}.{token(pod)}.out"},
        )
        return await self.ensure(config)

    async def create_states(self) -> None:
        """Create the stream of states if there is none."""
        subjects = [f"{self._prefix}.*.state.*"]
        await self.ensure(self.config(self.state_stream, subjects, max_msgs_per_subject=2))

    async def first(self, pod: str) -> int:
        """Return the sequence number of the oldest record, 1 if there was none yet."""
        found = await self.call(f"STREAM.INFO.{self.log_stream(pod)}", {})
        return max(1, int(found["state"]["first_seq"]))

    async def read(
        self, pod: str, sequence: int, limit: int = _READ_AT_ONCE
    ) -> list[tuple[int, bytes]]:
        """Return some records from a sequence number on; none if there are no more.

        Any server of the stream answers, also one that does not have the latest yet. Raises
        LinkError.
        """
        subject = f"$JS.API.DIRECT.GET.{self.log_stream(pod)}"
        request = {"seq": sequence, "batch": limit, "max_bytes": _READ_BYTES}
        *found, last = await self.link.request_many(subject, _encode(request))
        if last.status not in (_END, _NOT_FOUND):
            _check(last)
        return [(int(message.headers["Nats-Sequence"]), message.data) for message in found]

    async def read_all(
        self, pod: str, first: int, last: int
    ) -> AsyncIterator[list[tuple[int, bytes]]]:
        """Yield all records between two sequence numbers, in portions. Raises LinkError."""
        attempts = 0
        while first <= last:
            found = [each for each in await self.read(pod, first) if each[0] <= last]
            if found:
                attempts = 0
                yield found
                first = found[-1][0] + 1
            elif attempts < _ATTEMPTS:
                attempts += 1
                await asyncio.sleep(_RETRY_SECONDS)  # the server that answered is behind
            else:
                raise LinkError(f"the log of pod {pod!r} cannot be read beyond record {first}")

    async def append(self, pod: str, records: Iterable[bytes]) -> list[int]:
        """Store records in their order; return their sequence numbers. Raises LinkError."""
        subject = self.log_subject(pod)
        answers = await asyncio.gather(*(self.link.request(subject, each) for each in records))
        found: list[int] = []
        for answer in answers:
            _check(answer)
            stored: dict[str, Any] = msgspec.json.decode(answer.data)
            if "error" in stored:
                raise LinkError(f"a record was not stored: {stored['error'].get('description')}")
            found.append(int(stored["seq"]))
        return found

    # --- states ---------------------------------------------------------------------------------

    def save_state(self, pod: str, state: ClusterState, id: str) -> None:
        """Store a state. A failure is logged only: the one before it serves as well."""
        data = encode_cluster_state(state)
        parts = [data[at : at + _PART_BYTES] for at in range(0, len(data), _PART_BYTES)]
        for number in (*range(1, len(parts)), 0):
            part = _StatePart(id, number, len(parts), parts[number])
            subject = f"{self._prefix}.{token(pod)}.state.{number}"
            self.link.send(subject, _encode_part(part))

    async def store_state(self, pod: str, state: ClusterState) -> None:
        """Store a state, and return when it is stored. Raises LinkError."""
        self.save_state(pod, state, str(uuid6.uuid7()))
        for _ in range(_ATTEMPTS):
            found = await self.load_state(pod)
            if found is not None and found.sequence == state.sequence:
                return
            await asyncio.sleep(_RETRY_SECONDS)
        raise LinkError(f"the state of pod {pod!r} could not be stored")

    async def load_state(self, pod: str) -> ClusterState | None:
        """Return the newest state of a pod. Raises LinkError."""
        for _ in range(_ATTEMPTS):
            first = await self._load_part(pod, 0)
            if first is None:
                return None
            numbers = range(1, first.parts)
            others = await asyncio.gather(*(self._load_part(pod, each) for each in numbers))
            parts = [first, *(each for each in others if each and each.id == first.id)]
            if len(parts) == first.parts:
                try:
                    return decode_cluster_state(b"".join(part.data for part in parts))
                except msgspec.DecodeError as error:
                    reason = f"the stored state of pod {pod!r} is of a newer version, or damaged"
                    raise LinkError(f"{reason}: {error}") from None
            await asyncio.sleep(_RETRY_SECONDS)  # another gateway is storing one just now
        raise LinkError(f"the stored state of pod {pod!r} is not complete")

    async def _load_part(self, pod: str, number: int) -> _StatePart | None:
        subject = f"{self._prefix}.{token(pod)}.state.{number}"
        address = f"$JS.API.DIRECT.GET.{self.state_stream}.{subject}"
        message = await self.link.request(address, b"")
        if message.status == _NOT_FOUND:
            return None
        _check(message)
        return _decode_part(message.data)

    # --- streams in general ---------------------------------------------------------------------

    def config(self, name: str, subjects: list[str], **more: Any) -> dict[str, Any]:
        """Return the configuration of a stream."""
        return {
            "name": name,
            "subjects": subjects,
            "retention": "limits",
            "storage": "file",
            "discard": "old",
            "num_replicas": self._replicas,
            "allow_direct": True,
            **more,
        }

    async def ensure(self, config: dict[str, Any]) -> int:
        """Create a stream if there is none, with its limits. Return its last sequence number."""
        name = config["name"]
        found = await self.info(name)
        if found is None:
            try:
                found = await self.call(f"STREAM.CREATE.{name}", config)
            except JetStreamError:
                found = await self.info(name)  # another gateway may have created it just now
                if found is None:
                    raise
        known = found["config"]
        if known.get("sealed"):
            raise LinkError(f"stream {name} is sealed: the log was moved, or is being replaced")
        limits = ("max_age", "max_bytes")
        changed: dict[str, Any] = {key: config[key] for key in limits if key in config}
        if any(known.get(key, 0) != value for key, value in changed.items()):
            try:
                await self.call(f"STREAM.UPDATE.{name}", {**known, **changed})
            except JetStreamError as error:
                logger.warning(
                    "the limits of a stream stay as they were", extra={"reason": str(error)}
                )
        return int(found["state"]["last_seq"])

    async def info(self, stream: str) -> dict[str, Any] | None:
        """Return what JetStream says about a stream; None if there is none. Raises LinkError."""
        try:
            return await self.call(f"STREAM.INFO.{stream}", {})
        except JetStreamError as error:
            if error.code == _STREAM_NOT_FOUND:
                return None
            raise

    async def has_leader(self, stream: str) -> bool:
        """Return whether a stream has a leader, which only a majority elects. Raises LinkError.

        A server without a majority still describes the stream, but names no leader.
        """
        info = await self.info(stream)
        return info is not None and ("cluster" not in info or "leader" in info["cluster"])

    async def stored(self, stream: str, **wanted: object) -> tuple[int, bytes] | None:
        """Return a message, by `seq` or `last_by_subj`, with its number; None if there is none.

        The stream's leader answers: other servers may not know it yet. Raises LinkError.
        """
        try:
            found = (await self.call(f"STREAM.MSG.GET.{stream}", wanted))["message"]
        except JetStreamError as error:
            if error.code == _MESSAGE_NOT_FOUND:
                return None
            raise
        return int(found["seq"]), b64decode(found.get("data", ""))

    async def call(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Call a function of JetStream.

        Raises JetStreamError if it fails, and LinkError if it is not answered.
        """
        message = await self.link.request(f"$JS.API.{name}", _encode(body))
        _check(message)
        answer: dict[str, Any] = msgspec.json.decode(message.data)
        error = answer.get("error")
        if error:
            code = int(error.get("err_code", error.get("code", 0)))
            raise JetStreamError(name, code, str(error.get("description", "")))
        return answer


def _check(message: NatsMessage) -> None:
    """Raise LinkError for an answer that is an error."""
    if message.status:
        description = message.headers.get("Description", "")
        raise LinkError(f"JetStream answered {message.status} {description}".rstrip())
