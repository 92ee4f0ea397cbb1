"""Limits in front of the HTTP endpoint: on guessing bearer tokens, and on requests at once."""

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger("mcpp.memory")

_FREE_FAILURES: Final = 10
_WINDOW_SECONDS: Final = 60.0
_LOOKS_PER_SECOND: Final = 5.0
_FAILURES_IN_ALL: Final = 1_000  # a window
_MAX_ADDRESSES: Final = 4096
_REQUESTS_AT_ONCE: Final = 64


class GuessLimit:
    """Counts refused requests by address and in all. Owns the counts.

    An address with many wrong tokens within a minute is answered 429, but for a few requests a
    second, without looking at its token. So is every address while there are too many in all. One
    line a minute is logged.
    """

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._clock = clock
        self._failures: OrderedDict[str, int] = OrderedDict()
        self._looks: dict[str, float] = {}  # when the next token is looked at, by address
        self._in_all = 0
        self._window_ends = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with 429, or pass it on and count whether it was refused."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        address = (scope.get("client") or ("local", 0))[0]
        if not self._may_look(address):
            answer = PlainTextResponse("too many wrong tokens", 429, {"Retry-After": "1"})
            await answer(scope, receive, send)
            return

        async def count(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 401:
                self._count(address)
            await send(message)

        await self._app(scope, receive, count)

    def _may_look(self, address: str) -> bool:
        now = self._clock()
        if now >= self._window_ends:
            if self._in_all:
                logger.warning("%d requests with a wrong token", self._in_all)
            self._window_ends = now + _WINDOW_SECONDS
            self._failures.clear()
            self._looks.clear()
            self._in_all = 0
        many = self._failures.get(address, 0) >= _FREE_FAILURES
        if not many and self._in_all < _FAILURES_IN_ALL:
            return True
        key = address if many else ""
        if self._looks.get(key, 0.0) > now:
            return False
        self._looks[key] = now + 1 / _LOOKS_PER_SECOND
        return True

    def _count(self, address: str) -> None:
        self._in_all += 1
        self._failures[address] = self._failures.pop(address, 0) + 1
        if len(self._failures) > _MAX_ADDRESSES:
            oldest, _ = self._failures.popitem(last=False)
            self._looks.pop(oldest, None)


class RequestLimit:
    """Answers 429 to a token that has 64 requests under way. Owns the counts.

    A request that waits for its turn is kept with its body, also if the client has gone. GET would
    hold a stream open, on which this server never sends anything: it is answered 405.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._under_way: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, unless too many with the same token are under way."""
        is_http = scope["type"] == "http"
        token = Headers(scope=scope).get("authorization", "")[len("Bearer ") :] if is_http else ""
        if not token:  # it is refused at once
            await self._app(scope, receive, send)
        elif scope["method"] == "GET":
            answer = PlainTextResponse("no stream is offered", 405, {"Allow": "POST"})
            await answer(scope, receive, send)
        elif self._under_way[token] >= _REQUESTS_AT_ONCE:
            answer = PlainTextResponse("too many requests at once", 429, {"Retry-After": "1"})
            await answer(scope, receive, send)
        else:
            self._under_way[token] += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._under_way[token] -= 1
                if not self._under_way[token]:
                    del self._under_way[token]
