"""What the providers share: the client's settings, streamed replies, and errors of an API.

Replies are streamed, so that other participants can follow a long one and cancelling takes effect
at once. The official clients retry by themselves, unless the API asks for a long delay: then the
caller decides, and reports it.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Final

import httpx2
import msgspec

from mcpp import McppError
from mcpp.prompts import Prompt
from mcpp.tokens import estimate
from mcpp_agents.model.apis.streamed_reply import (
    DONE,
    StreamedReply,
    joined_surrogates,
    read_events,
)
from mcpp_agents.model.providers import (
    RETRIES,
    OnText,
    ProviderError,
    Reply,
    Tools,
    ToolUse,
    ignore_text,
)
from mcpp_agents.model.tracing import chat_span, reply_attributes

# A model on the user's own machine may read a prompt for minutes before it answers.
SILENT_SECONDS: Final = 300.0
_CONNECT_SECONDS: Final = 10.0
# The longest delay asked for by an API that a client waits out by itself, unreported.
_UNREPORTED_SECONDS: Final = 5.0

CUT_OFF: Final = "the reply was cut off"
# Reasons for an incomplete reply, as shown to the person who asked.
AT_LIMIT: Final = "cut at the token limit"
AT_CONTEXT: Final = "cut because the model's context was full"
REFUSED: Final = "the model refused to continue"
FILTERED: Final = "the model's API withheld the rest"

logger = logging.getLogger("mcpp.model")


class ApiProvider(ABC):
    """A model behind an API that has an official client. Owns the client."""

    api: ClassVar[str]  # as OpenTelemetry names it
    client_type: ClassVar[Any]
    http_client_type: ClassVar[Any]
    error_type: ClassVar[type[Exception]]
    incomplete_reasons: ClassVar[Mapping[str, str]]  # by the API's stop reason

    def __init__(
        self,
        model: str,
        *,
        api_key: str,
        base_url: str | None = None,
        retries: int = RETRIES,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        self._model = model
        self._client = self.client_type(
            api_key=api_key,
            base_url=base_url,
            max_retries=retries,
            timeout=httpx2.Timeout(silent_seconds, connect=_CONNECT_SECONDS),
            http_client=self.http_client_type(event_hooks={"response": [_prevent_long_retry]}),
        )

    async def reply(
        self, prompt: Prompt, tools: Tools, max_tokens: int, on_text: OnText = ignore_text
    ) -> Reply:
        """Return the model's reply; `on_text` receives its text as it arrives.

        Raises ProviderError.
        """
        with chat_span(self.api, self._model, max_tokens, str(self._client.base_url)) as span:
            reply = await self._reply(prompt, tools, max_tokens, on_text)
            span.set(reply_attributes(reply))
            return reply

    async def _reply(self, prompt: Prompt, tools: Tools, max_tokens: int, on_text: OnText) -> Reply:
        request = self._request(prompt, tools, max_tokens)
        streamed = StreamedReply(on_text)
        with _translated_errors(self.error_type):
            async with self._create(**request, stream=True) as response:
                async for event in read_events(response.iter_bytes()):
                    if event == DONE:
                        streamed.is_complete = True
                    else:
                        await self._read(event, streamed)
        if not streamed.is_complete:
            raise ProviderError(CUT_OFF)
        incomplete_reason = self.incomplete_reasons.get(streamed.stop_reason, "")
        text = streamed.text
        # Not every server counts tokens; without an estimate no limit would ever be reached.
        tokens = streamed.tokens or prompt.tokens + estimate(
            text + "".join(call.name + call.arguments for call in streamed.calls.values())
        )
        calls = _read_calls(streamed, incomplete_reason)
        usage = msgspec.structs.replace(streamed.usage, model=self._model)
        return Reply(text, calls, tokens, incomplete_reason, usage, streamed.stop_reason)

    @abstractmethod
    def _request(self, prompt: Prompt, tools: Tools, max_tokens: int) -> dict[str, Any]:
        """Return the body of a request, in the API's own terms."""

    @property
    @abstractmethod
    def _create(self) -> Callable[..., AbstractAsyncContextManager[Any]]:
        """The client's method that makes a request and opens the response."""

    @abstractmethod
    async def _read(self, event: dict[str, Any], reply: StreamedReply) -> None:
        """Add what an event contains to the reply."""


def _read_calls(reply: StreamedReply, incomplete_reason: str) -> tuple[ToolUse, ...]:
    uses = [ToolUse(call.name, _json_object(call.arguments)) for call in reply.calls.values()]
    if incomplete_reason and uses:
        uses[-1] = ToolUse(uses[-1].name, None)  # the cut may have fallen within its arguments
    return tuple(uses)


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(joined_surrogates(text) or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        return None


async def _prevent_long_retry(response: httpx2.Response) -> None:
    """Response hook that keeps a client from waiting out a long delay."""
    if _delay_seconds(response.headers) > _UNREPORTED_SECONDS:
        response.headers["x-should-retry"] = "false"  # both clients obey this header


@contextmanager
def _translated_errors(client_error: type[Exception]) -> Iterator[None]:
    """Raise ProviderError for any failure of an API or its client."""
    try:
        yield
    except McppError:
        raise  # raised by `on_text`
    except client_error as error:
        if isinstance(error.__cause__, httpx2.HTTPError):
            # The pod does not need to know the API's address; the log does.
            logger.warning("%s: %s", _address(error), _shortened(error.__cause__))
            raise ProviderError("the model's API does not answer") from error
        raise ProviderError(_api_message(error), _retry_seconds(error)) from error
    except httpx2.HTTPError as error:
        raise ProviderError(f"{CUT_OFF}: {_shortened(error)}") from error
    except Exception as error:
        # The clients do not validate what a server sends, and fail on it in any way.
        kind = type(error).__name__
        logger.warning("the model's API sent an invalid reply: %s: %s", kind, _shortened(error))
        raise ProviderError("the model's API sent an invalid reply") from error


def _shortened(error: Exception | str) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _api_message(error: Exception) -> str:
    """Return the API's own error message with the HTTP status, where the error has them."""
    body = getattr(error, "body", None)
    details = body.get("error", body) if isinstance(body, dict) else None
    message = details.get("message") if isinstance(details, dict) else None
    if not isinstance(message, str):
        return _shortened(error)
    status = getattr(error, "status_code", None)
    return _shortened(message) if status is None else f"{_shortened(message)} (HTTP {status})"


def _address(error: Exception) -> str:
    """Return the address of a failed request, without credentials."""
    request = getattr(error, "request", None)
    return str(request.url.copy_with(userinfo=b"")) if request is not None else "the model's API"


def _retry_seconds(error: Exception) -> float | None:
    response = getattr(error, "response", None)
    seconds = 0.0 if response is None else _delay_seconds(response.headers)
    return seconds if seconds > _UNREPORTED_SECONDS else None


def _delay_seconds(headers: httpx2.Headers) -> float:
    """Return the delay that a `Retry-After` header asks for, in seconds or as a date."""
    value = headers.get("retry-after", "")
    try:
        return float(value)
    except ValueError:
        pass
    try:
        return (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):
        return 0.0
