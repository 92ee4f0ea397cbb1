"""Uploads and downloads of blobs at `/blob` and `/blob/HASH` (A-01, A-04).

A connection carries one request. Content passes through in pieces: what is uploaded goes to the
store as it arrives, and no more is read from the client until it is there; a download is read as
the client takes it. Files are read and written on other threads. A client that is slower than the
least pace is cut off, so that it cannot hold a place indefinitely.
"""

import asyncio
import re
from typing import TYPE_CHECKING, Final, Protocol

from websockets.http11 import Response

from mcpp_gateway.blobs.service import (
    BlobService,
    BlobTooLargeError,
    FoundBlob,
    TooManyRequestsError,
    Upload,
)
from mcpp_gateway.blobs.store import BlobReader, BlobStoreError, NoSpaceError, WrongHashError
from mcpp_gateway.core.attachments.blob_table import QuotaError
from mcpp_gateway.core.pod import PodCore
from mcpp_gateway.edge.admission import Denial
from mcpp_gateway.edge.web.bodies import BodyError, ChunkedBody, SizedBody, read_body
from mcpp_gateway.edge.web.requests import HttpRequest
from mcpp_gateway.edge.web.responses import deny, json_answer, response

if TYPE_CHECKING:
    from mcpp_gateway.edge.server import Gateway

PATH: Final = "/blob"
_CHUNK_BYTES: Final = 131_072
_IDLE_SECONDS: Final = 20.0
_FREE_SECONDS: Final = 30.0
_BYTES_PER_SECOND: Final = 16_384  # on average, after the free time

_is_hash: Final = re.compile("[0-9a-f]{64}").fullmatch
_is_range: Final = re.compile(r"bytes=([0-9]{0,15})-([0-9]{0,15})").fullmatch

# A browser that is led to a blob saves it and runs nothing of it.
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Accept-Ranges": "bytes",
    "Cache-Control": "private, no-cache",
}


class Client(Protocol):
    """The connection of a client, as an exchange uses it."""

    full: bool

    def write(self, data: bytes) -> None:
        """Send bytes without waiting."""

    def set_outbox(self, max_bytes: int) -> None:
        """Set how many bytes may be unsent before the exchange is paused."""

    def pause_reading(self) -> None:
        """Read no more until `resume_reading`."""

    def resume_reading(self) -> None:
        """Read on."""

    def end_exchange(self, answer: Response | None) -> None:
        """Send an answer, if there is one, and close the connection behind it."""

    def abort(self) -> None:
        """Close at once."""


def is_blob(target: str) -> bool:
    """Return whether a request is about blobs."""
    path = target.partition("?")[0]
    return path == PATH or path.startswith(f"{PATH}/")


def handle(gateway: "Gateway", request: HttpRequest, client: Client) -> "Denial | BlobExchange":
    """Check a request, and return what will answer it."""
    found = gateway.recognise(request, has_joined=True)
    if isinstance(found, Denial):
        return found
    pod, participant = gateway.pods[found[0]], found[1]
    hash = request.path.removeprefix(PATH).removeprefix("/") or None
    if hash is not None and not _is_hash(hash):
        return Denial(404, "not found")
    if request.method in ("GET", "HEAD") and hash is not None:
        blob = gateway.blobs.find(pod, participant, hash)
        if blob is None:
            return Denial(404, "there is no such blob for you")
        return Download(gateway.blobs, pod, participant, request, client, blob)
    if (request.method, hash is None) not in (("POST", True), ("PUT", False)):
        return Denial(405, "use POST /blob, PUT /blob/HASH, GET /blob/HASH or HEAD /blob/HASH")
    upload = Upload(gateway.blobs, pod, participant)
    try:
        body = read_body(request.headers)
        upload.reserve(body.size or 0)
    except BodyError as error:
        return Denial(411 if "needs" in str(error) else 400, str(error))
    except (BlobTooLargeError, QuotaError) as error:
        return _denial(error)
    return Receipt(gateway.blobs, pod, participant, request, client, upload, body, hash)


class BlobExchange:
    """A request and its answer, on its own task. Owns what has arrived and was not stored yet."""

    def __init__(
        self,
        service: BlobService,
        pod: PodCore,
        participant: str,
        request: HttpRequest,
        client: Client,
    ) -> None:
        self._service = service
        self._pod = pod
        self._participant = participant
        self._request = request
        self._client = client
        self._is_over = False
        self._moved = 0
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()

    def start(self) -> None:
        """Begin. What the client sends is passed to `send` from here on."""
        self._service.run(self._run())

    def send(self, data: bytes) -> None:
        """Take what the client sent."""

    def pause(self) -> None:
        """Send no more, because the client does not read."""

    def resume(self) -> None:
        """Send on."""
        self._wake.set()

    def close(self) -> None:
        """End the exchange: the client is gone."""
        self._is_over = True
        self._wake.set()

    async def _run(self) -> None:
        answer: Response | None = None
        try:
            with self._service.request(self._pod, self._participant):
                answer = await self._answer()
        except TimeoutError:
            answer = deny(Denial(408, "the client is too slow"))
        except (BlobTooLargeError, QuotaError, TooManyRequestsError, BlobStoreError) as error:
            answer = deny(_denial(error))
        except BodyError as error:
            answer = deny(Denial(400, str(error)))
        finally:
            await self._clean_up()
            if not self._is_over:
                self._client.end_exchange(answer)

    async def _answer(self) -> Response | None:
        raise NotImplementedError

    async def _clean_up(self) -> None:
        """Release what the exchange holds."""

    async def _wait(self) -> None:
        """Wait until the client has done something. Raises TimeoutError if it is too slow."""
        elapsed = self._loop.time() - self._started
        left = _FREE_SECONDS + self._moved / _BYTES_PER_SECOND - elapsed
        async with asyncio.timeout(min(_IDLE_SECONDS, left)):
            await self._wake.wait()
        self._wake.clear()


class Receipt(BlobExchange):
    """An upload."""

    def __init__(
        self,
        service: BlobService,
        pod: PodCore,
        participant: str,
        request: HttpRequest,
        client: Client,
        upload: Upload,
        body: SizedBody | ChunkedBody,
        hash: str | None,
    ) -> None:
        super().__init__(service, pod, participant, request, client)
        self._upload = upload
        self._body = body
        self._hash = hash
        self._arrived: list[bytes] = []
        self._arrived_bytes = 0

    def send(self, data: bytes) -> None:
        self._arrived.append(data)
        self._arrived_bytes += len(data)
        if self._arrived_bytes >= _CHUNK_BYTES:
            self._client.pause_reading()
        self._wake.set()

    async def _answer(self) -> Response | None:
        if self._request.headers.get("expect", [""])[0].lower() == "100-continue":
            self._client.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not self._body.is_complete:
            if not self._arrived:
                await self._wait()
            if self._is_over:
                return None
            data, self._arrived, self._arrived_bytes = b"".join(self._arrived), [], 0
            self._moved += len(data)
            await self._upload.write(self._body.feed(data))
            self._client.resume_reading()
        hash = await self._upload.finish(self._hash)
        answer = json_answer({"hash": hash, "size": self._upload.size})
        answer.status_code, answer.reason_phrase = 201, "Created"
        return answer

    async def _clean_up(self) -> None:
        await self._upload.abort()


class Download(BlobExchange):
    """A download, of the whole blob or of one range."""

    def __init__(
        self,
        service: BlobService,
        pod: PodCore,
        participant: str,
        request: HttpRequest,
        client: Client,
        blob: FoundBlob,
    ) -> None:
        super().__init__(service, pod, participant, request, client)
        self._blob = blob
        self._reader: BlobReader | None = None

    async def _answer(self) -> Response | None:
        tag, size = f'"{self._blob.hash}"', self._blob.size
        headers = self._request.headers
        if tag in ",".join(headers.get("if-none-match", [])).replace(" ", "").split(","):
            return _head(304, 0, {"ETag": tag})
        start, end = 0, size
        if headers.get("if-range", [tag]) == [tag]:
            found = _range(headers.get("range", []), size)
            if found is None:
                return _head(416, 0, {"Content-Range": f"bytes */{size}"})
            start, end = found
        more = {"ETag": tag, "Content-Disposition": f'attachment; filename="{self._blob.hash}"'}
        is_part = (start, end) != (0, size)
        if is_part:
            more["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        head = _head(206 if is_part else 200, end - start, more)
        if self._request.method == "HEAD":
            return head
        self._reader = await self._service.open(self._pod, self._blob.hash)
        # Behind every piece it is waited until the socket has taken it.
        self._client.set_outbox(0)
        self._client.write(head.serialize())
        try:
            await self._send_range(start, end)
        except (BlobStoreError, TimeoutError):
            self._client.abort()  # the head is sent: only a short body can say it
        return None

    async def _send_range(self, position: int, end: int) -> None:
        assert self._reader is not None
        while position < end and not self._is_over:
            data = await self._reader.read(position, min(_CHUNK_BYTES, end - position))
            position += len(data)
            self._client.write(data)
            while self._client.full and not self._is_over:
                await self._wait()
            self._moved += len(data)

    async def _clean_up(self) -> None:
        if self._reader is not None:
            await self._reader.close()


def _head(status: int, size: int, more: dict[str, str]) -> Response:
    answer = response(status, "application/octet-stream", b"", {**_HEADERS, **more})
    del answer.headers["Content-Length"]
    if status != 304:
        answer.headers["Content-Length"] = str(size)
    return answer


def _range(values: list[str] | tuple[str, ...], size: int) -> tuple[int, int] | None:
    """Return start and end of what was asked for; None if that is outside of the blob.

    Several ranges and other units are ignored: then the whole blob is sent (RFC 9110, 14.2).
    """
    match = _is_range(values[0].replace(" ", "")) if len(values) == 1 else None
    if match is None or not (match[1] or match[2]):
        return 0, size
    if not match[1]:
        length = int(match[2])
        return (max(0, size - length), size) if length and size else None
    start, end = int(match[1]), int(match[2]) + 1 if match[2] else size
    if end <= start and match[2]:
        return 0, size  # not a range
    return (start, min(end, size)) if start < size else None


def _denial(error: Exception) -> Denial:
    if isinstance(error, BlobTooLargeError):
        return Denial(413, str(error))
    if isinstance(error, QuotaError):
        return Denial(507, str(error))
    if isinstance(error, NoSpaceError):
        return Denial(507, "the gateway has no space left for blobs")
    if isinstance(error, WrongHashError):
        return Denial(422, str(error))
    if isinstance(error, TooManyRequestsError):
        return Denial(429, str(error), retry_after_seconds=1)
    return Denial(503, "the blob cannot be read or written now", retry_after_seconds=5)
