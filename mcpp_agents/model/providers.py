"""The interface between the model agent and a model's API: a prompt and tools in, a reply out.

Nothing here needs an API client; `anthropic_messages` and `openai_chat` are loaded on demand.
"""

import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Protocol

import msgspec

from mcpp import McppError
from mcpp.cli.extras import importing
from mcpp.outcomes import Usage
from mcpp.prompts import Prompt
from mcpp_agents.toolbox import RemoteTool

OnText = Callable[[str], Awaitable[None]]
Tools = Iterable[RemoteTool]

RETRIES: Final = 2
# The longest delay that an API may ask for before the question is given up.
PATIENT_SECONDS: Final = 60.0

_KEYS: Final = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}


class ProviderError(McppError):
    """The model's API gave no reply. `retry_seconds` is the delay that it asks for, if any."""

    def __init__(self, reason: str, retry_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.retry_seconds = retry_seconds


class ToolUse(msgspec.Struct, frozen=True):
    """A call that the model requests. `arguments` is None if they are not a JSON object."""

    name: str
    arguments: dict[str, Any] | None


class Reply(msgspec.Struct, frozen=True):
    """A model's reply: text, requested calls, tokens used, and why it is incomplete, if it is."""

    text: str
    calls: tuple[ToolUse, ...] = ()
    tokens: int = 0
    incomplete_reason: str = ""
    usage: Usage = Usage()
    stop_reason: str = ""  # in the API's own words


async def ignore_text(text: str) -> None:
    """Discard a piece of a reply; the default where no caller follows it."""


class Provider(Protocol):
    """A model behind an API."""

    async def reply(
        self, prompt: Prompt, tools: Tools, max_tokens: int, on_text: OnText = ignore_text
    ) -> Reply:
        """Return the model's reply; `on_text` receives its text as it arrives.

        Raises ProviderError.
        """
        ...


def make_provider(model: str, base_url: str | None) -> Provider:
    """Return the provider that `API:MODEL` names.

    Raises McppError for an unknown API, a missing key, or an API client that is not installed.
    """
    api, _, name = model.partition(":")
    if api not in _KEYS or not name:
        raise McppError(f"--model must be openai:MODEL or anthropic:MODEL, not {model!r}")
    variable = _KEYS[api]
    key = os.environ.get(variable)
    if not key and base_url is None:
        raise McppError(f"{variable} is not set; without a key, use --base-url with a local server")
    # Each client takes a second to import, so import only the one in use.
    with importing("agent"):
        provider = _load_openai() if api == "openai" else _load_anthropic()
    return provider(name, api_key=key or "none", base_url=base_url)


def _load_openai() -> Callable[..., Provider]:
    from mcpp_agents.model.apis.openai_chat import OpenAI

    return OpenAI


def _load_anthropic() -> Callable[..., Provider]:
    from mcpp_agents.model.apis.anthropic_messages import Anthropic

    return Anthropic
