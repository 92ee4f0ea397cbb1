"""Several gateways of the same pod: a client that loses one moves on to the next."""

import random
import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import anyio

from mcpp.errors import BusyError, JoinError, TokenRefusedError, UnreachableError
from mcpp.session.resumption import Join
from mcpp.transports.transport import Connector, TokenRenewal, Transport, blob_transfer

# A gateway that does not answer in this time is passed over.
_SECONDS_EACH: Final = 3.0

# An address may contain commas, too: only one that precedes another address separates.
_SEPARATOR: Final = re.compile(r"\s*,\s*(?=(?:ws|http)s?://)")


def split_addresses(url: str) -> list[str]:
    """Return the addresses of a list such as `ws://a/ws,ws://b/ws`."""
    return _SEPARATOR.split(url.strip())


class SeveralGateways:
    """Opens connections to the gateways of one pod in turn.

    Every connection is opened to another gateway than the one before, because that one may be
    alive and yet out of reach of the pod's log. `shuffle` gives every client an order of its own:
    the clients of a gateway that is gone spread over all others.
    """

    def __init__(
        self,
        connectors: Sequence[Connector],
        shuffle: Callable[[list[Connector]], None] = random.shuffle,
    ) -> None:
        self._connectors = list(connectors)
        shuffle(self._connectors)
        self._next = 0
        self._opened = self._connectors[0]  # the last one that answered

    @property
    def address(self) -> str:
        """All addresses."""
        return ", ".join(connector.address for connector in self._connectors)

    async def open(self, join: Join) -> Transport:
        """Open a connection to the next gateway that accepts it.

        A gateway may refuse what another one accepts, for example because it has not read the new
        configuration yet. So JoinError is raised only if all of them refuse (P-12), and
        UnreachableError if one of them may still accept.
        """
        unreachable: list[UnreachableError] = []
        refusals: list[tuple[str, JoinError]] = []
        for _ in self._connectors:
            connector = self._connectors[self._next % len(self._connectors)]
            self._next += 1
            try:
                with anyio.fail_after(_SECONDS_EACH):
                    transport = await connector.open(join)
                    self._opened = connector
                    return transport
            except TimeoutError:
                reason = f"no answer in {_SECONDS_EACH:g} s"
                unreachable.append(UnreachableError(connector.address, reason))
            except UnreachableError as error:
                unreachable.append(error)
            except JoinError as error:
                refusals.append((connector.address, error))
        raise _most_useful(unreachable, refusals)

    async def has_newer_token(self) -> bool:
        """Return whether the token has changed since the last connection."""
        opened = self._opened
        return isinstance(opened, TokenRenewal) and await opened.has_newer_token()

    async def upload(self, hash: str, size: int, content: AsyncIterator[bytes]) -> None:
        """Upload a blob to the gateway that is connected: that one checks what is named (A-11)."""
        await blob_transfer(self._opened).upload(hash, size, content)

    def download(self, hash: str) -> AsyncIterator[bytes]:
        """Yield the content of a blob, from the gateway that is connected."""
        return blob_transfer(self._opened).download(hash)


def _most_useful(
    unreachable: Sequence[UnreachableError], refusals: Sequence[tuple[str, JoinError]]
) -> UnreachableError | JoinError:
    """Return one error for those of all gateways: the one after which a retry helps soonest.

    If it is not a refusal, its reason names one: that is what a person can mend.
    """
    address, refusal = max(refusals, key=_usefulness, default=("", None))
    if not unreachable:
        assert refusal is not None
        return refusal
    error = max(unreachable, key=lambda each: isinstance(each, BusyError))
    if refusal is None:
        return error
    reason = f"{error.reason}; {address} refused with {refusal.status}: {refusal.reason}"
    if isinstance(error, BusyError):
        return BusyError(error.url, reason, error.retry_after_seconds)
    return UnreachableError(error.url, reason)


def _usefulness(refusal: tuple[str, JoinError]) -> tuple[bool, bool]:
    """Return the order of refusals: the next token may be right; not 401: the token was right."""
    return isinstance(refusal[1], TokenRefusedError), refusal[1].status != 401
