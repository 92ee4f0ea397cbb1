"""What a model's API has to give: a prompt and tools go in, a reply comes out.

Replies are streamed, so that others can watch a long one grow and a cancelled one ends at once. The
official clients retry by themselves what may succeed later, unless that takes so long that somebody
has to be told.
"""

import logging
import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from operator import itemgetter
from typing import Any, Final, Protocol

import httpx2
import msgspec
from jsonschema import Draft202012Validator, SchemaError

from mcpp import McppError
from mcpp.prompts import Prompt
from mcpp_agents.toolbox import Offer

OnText = Callable[[str], Awaitable[None]]

RETRIES: Final = 2
# A model on one's own machine may take minutes to read a prompt; its API is silent meanwhile.
SILENT_SECONDS: Final = 300.0
_CONNECT_SECONDS: Final = 10.0
# An API may ask to be left alone. Longer than this is told to those who wait, and longer than that
# nobody waits.
_QUIET_SECONDS: Final = 5.0
PATIENT_SECONDS: Final = 60.0
CUT_OFF: Final = "the reply was cut off"
# Why a reply ends before its end, as those who asked are told.
AT_LIMIT: Final = "cut at the limit of a reply"
AT_CONTEXT: Final = "cut where the model's context was full"
REFUSED: Final = "the model refused to say more"
FILTERED: Final = "the model's API withheld the rest"


async def unheard(text: str) -> None:
    """Hear nothing of a reply before it is whole."""


# So much room for tools is in a prompt, and no more than a part of it for one of them.
_MAX_TOOLS_BYTES: Final = 200_000
_MAX_SCHEMA_BYTES: Final = 20_000

_ANY: Final = {"type": "object"}
_NOT_AT_THE_TOP: Final = ("oneOf", "anyOf", "allOf")  # Anthropic's rule
_is_property = re.compile(r"[A-Za-z0-9_.-]{1,64}").fullmatch

log = logging.getLogger("mcpp")


class ProviderError(McppError):
    """The model's API did not give a reply; `retry_seconds` is when it wants to be asked again."""

    def __init__(self, reason: str, retry_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.retry_seconds = retry_seconds


class ToolUse(msgspec.Struct, frozen=True):
    """A call that the model wants made. `arguments` is None where it wrote no whole JSON object."""

    name: str
    arguments: dict[str, Any] | None


class Reply(msgspec.Struct, frozen=True):
    """What a model said, what it wants called, what that cost, and why it is not whole, if so."""

    text: str
    calls: tuple[ToolUse, ...] = ()
    tokens: int = 0
    broken_off: str = ""


class Provider(Protocol):
    """A model behind an API."""

    async def reply(
        self,
        prompt: Prompt,
        tools: Iterable[Offer],
        max_tokens: int,
        on_text: OnText = unheard,
    ) -> Reply:
        """Return the model's next word; `on_text` hears it grow. Raises ProviderError."""
        ...


async def tell_long_waits(response: httpx2.Response) -> None:
    """Have a client not wait in silence for as long as an API asks: a hook for its responses."""
    if _asked_seconds(response.headers) > _QUIET_SECONDS:
        response.headers["x-should-retry"] = "false"  # which both clients obey


HOOKS: Final = {"response": [tell_long_waits]}


def timeout(silent_seconds: float) -> httpx2.Timeout:
    """Return how long a client waits: to be connected, and for each next piece of a reply."""
    return httpx2.Timeout(silent_seconds, connect=_CONNECT_SECONDS)


@contextmanager
def boundary(foreign: type[Exception]) -> Iterator[None]:
    """Turn what goes wrong at an API into a ProviderError; `foreign` is its client's own error."""
    try:
        yield
    except McppError:
        raise  # what hears the text may fail, too
    except foreign as error:
        if isinstance(error.__cause__, httpx2.HTTPError):
            # Where the API is, is ours to know: the pod hears only that it is away.
            log.warning("%s: %s", _address(error), sentence(error.__cause__))
            raise ProviderError("the model's API does not answer") from error
        raise ProviderError(_refusal(error), _retry_seconds(error)) from error
    except httpx2.HTTPError as error:
        raise ProviderError(f"{CUT_OFF}: {sentence(error)}") from error
    except Exception as error:
        # The clients trust what an address sends: whatever makes no sense, they stumble over.
        log.warning("the model's API sent nonsense: %s: %s", type(error).__name__, sentence(error))
        raise ProviderError("the model's API sent what is no reply") from error


def read_calls(written: Iterable[tuple[str, str]], broken_off: str) -> tuple[ToolUse, ...]:
    """Return the calls that a model wrote: names, and arguments as JSON."""
    uses = [ToolUse(name, _object(arguments)) for name, arguments in written]
    if broken_off and uses:
        uses[-1] = ToolUse(uses[-1].name, None)  # what was cut was never meant
    return tuple(uses)


def tools_of(
    offers: Iterable[Offer], shape: Callable[[Offer], dict[str, Any]], limit: float = math.inf
) -> list[dict[str, Any]]:
    """Return as many tools as there is room for, and at most `limit`, in their order.

    Everybody has a turn before anybody has another: one who offers thousands must not cost the
    model all others' tools.
    """
    rank: Counter[str] = Counter()
    turns = []
    for place, offer in enumerate(offers):
        turns.append((rank[offer.participant], place, offer))
        rank[offer.participant] += 1
    kept: dict[int, dict[str, Any]] = {}
    left = _MAX_TOOLS_BYTES
    for _, place, offer in sorted(turns, key=itemgetter(0, 1)):
        if len(kept) >= limit:
            break
        tool = shape(offer)
        size = len(msgspec.json.encode(tool))
        if size <= left:
            kept[place] = tool
            left -= size
    return [kept[place] for place in sorted(kept)]


def describe(offer: Offer, limit: int) -> str:
    """Return what a model is told of a tool, in so many characters."""
    told = offer.definition.get("description")
    text = f"{told if isinstance(told, str) else ''} (@{offer.participant})".strip()
    return text if len(text) <= limit else text[: limit - 1] + "…"


def schema_of(offer: Offer) -> dict[str, Any]:
    """Return the schema of a tool's arguments, as every API takes it.

    For one schema that they do not take, the APIs refuse the whole request: one participant's
    nonsense must not cost the model all its tools.
    """
    schema = offer.definition.get("inputSchema")
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return dict(_ANY)
    if len(msgspec.json.encode(schema)) > _MAX_SCHEMA_BYTES:
        return dict(_ANY)
    known = {name: part for name, part in schema.items() if name not in _NOT_AT_THE_TOP}
    properties = known.get("properties", {})
    try:
        Draft202012Validator.check_schema(known)
    except SchemaError:
        return dict(_ANY)
    return known if all(map(_is_property, properties)) else dict(_ANY)


def sentence(error: Exception | str) -> str:
    """Return what went wrong at an API, in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def _refusal(error: Exception) -> str:
    """Return what an API says: its own message and the status, where there are such."""
    body = getattr(error, "body", None)
    told = body.get("error", body) if isinstance(body, dict) else None
    message = told.get("message") if isinstance(told, dict) else None
    if not isinstance(message, str):
        return sentence(error)
    status = getattr(error, "status_code", None)
    return sentence(message) if status is None else f"{sentence(message)} (HTTP {status})"


def _address(error: Exception) -> str:
    """Return where an API was asked, without a password that may stand there."""
    request = getattr(error, "request", None)
    return str(request.url.copy_with(userinfo=b"")) if request is not None else "the model's API"


def _object(text: str) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        return None


def _retry_seconds(error: Exception) -> float | None:
    response = getattr(error, "response", None)
    seconds = 0.0 if response is None else _asked_seconds(response.headers)
    return seconds if seconds > _QUIET_SECONDS else None


def _asked_seconds(headers: httpx2.Headers) -> float:
    """Return how long an API asks to be left alone: in seconds, or until a date."""
    asked = headers.get("retry-after", "")
    try:
        return float(asked)
    except ValueError:
        pass
    try:
        return (parsedate_to_datetime(asked) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):
        return 0.0
