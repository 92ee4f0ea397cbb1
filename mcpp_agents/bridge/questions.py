"""Questions of an MCP server, passed on to the pod.

A server asks a person (`elicitation/create`), a model (`sampling/createMessage`) or for the folders
that it may use (`roots/list`). Each question is a request of the bridge: first to the participant
whose call the server is working on, if its card says that it answers such questions; if that one
does not answer, to others at the same time, by their cards. The first answer counts, and the other
requests are cancelled. A server of an older revision asks while it works on any of its calls; a
newer one answers a call with its questions, and gets the answers with the same call, made again.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import mcp_types as types
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ValidationError

from mcpp import CallError, McppError, Pod, RemoteError, ToolCall
from mcpp.protocol import rpc
from mcpp.protocol.cards import QUESTIONS
from mcpp.protocol.rpc import Failure
from mcpp_agents.cli.display import one_line

# People take their time; the participant that made the call may give up earlier.
ANSWER_SECONDS: Final = 300.0
_ROOTS_SECONDS: Final = 10.0  # a program knows its folders
# Of a participant without a card: most are programs that only call, and answer nothing.
UNKNOWN_SECONDS: Final = 10.0
# Of participants that are not named by the operator, so many are asked at once.
_MAX_ASKED: Final = 16
_MAX_ROUNDS: Final = 10
_FIRST_DELAY_SECONDS: Final = 0.05
_LAST_DELAY_SECONDS: Final = 1.0

ELICIT: Final = "elicitation/create"
SAMPLE: Final = "sampling/createMessage"
LIST_ROOTS: Final = "roots/list"
_ANSWERS: Final[Mapping[str, type[BaseModel]]] = {
    ELICIT: types.ElicitResult,
    SAMPLE: types.CreateMessageResult,
    LIST_ROOTS: types.ListRootsResult,
}

logger = logging.getLogger("mcpp.bridge")
Retry = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


@dataclass(slots=True)
class Questions:
    """Asks the pod. Owns the list of calls that the server works on.

    `answerers` are the participants to ask besides the caller; None means any that is present.
    If several participants have calls in progress and `answerers` is given, only those in
    `answerers` are asked.
    A participant has `seconds` to answer; without a card, and not named, `unknown_seconds`.
    """

    answerers: Sequence[str] | None = None
    seconds: float = ANSWER_SECONDS
    unknown_seconds: float = UNKNOWN_SECONDS
    pod: Pod | None = None
    calls: list[ToolCall] = field(default_factory=list)

    @contextmanager
    def during(self, call: ToolCall) -> Iterator[None]:
        """Note that the server works on a call while the block runs."""
        self.calls.append(call)
        try:
            yield
        finally:
            self.calls.remove(call)

    async def ask(self, method: str, params: Mapping[str, Any], *calls: ToolCall) -> dict[str, Any]:
        """Return an answer to a question that arose in the given calls, or in any of the current.

        If there is none in time, an elicitation is answered with a refusal. Raises Failure for
        other questions.
        """
        answer = None
        seconds = min(self.seconds, _ROOTS_SECONDS) if method == LIST_ROOTS else self.seconds
        with anyio.move_on_after(seconds):
            answer = await self._ask_all(method, params, calls or tuple(self.calls))
            if answer is None:
                return _decline(method, "no participant can answer it")
        if answer is None:
            return _decline(method, f"no participant answered within {seconds:g} s")
        return answer

    async def complete(
        self, result: dict[str, Any], call: ToolCall, retry: Retry
    ) -> dict[str, Any]:
        """Answer the questions that a result consists of, until the result is final.

        `retry` makes the call again with the members that it is given. Raises Failure.
        """
        delay = _FIRST_DELAY_SECONDS
        unanswered = ""
        for _ in range(_MAX_ROUNDS):
            if not rpc.needs_input(result):
                return result
            again: dict[str, Any] = {}
            requests = result.get("inputRequests")
            if isinstance(requests, dict) and requests:
                if unanswered:  # the wait for an answer is long: not ten times
                    raise Failure(rpc.INTERNAL_ERROR, unanswered)
                answers = await self.answer_each(requests, call)
                unanswered = _unanswered(requests, answers)
                again["inputResponses"] = answers
            else:
                await anyio.sleep(delay)
                delay = min(2 * delay, _LAST_DELAY_SECONDS)
            if "requestState" in result:
                again["requestState"] = result["requestState"]
            result = await retry(again)
        raise Failure(rpc.INTERNAL_ERROR, f"the server asked more than {_MAX_ROUNDS} times")

    async def answer_each(self, requests: Mapping[str, Any], call: ToolCall) -> dict[str, Any]:
        answers: dict[str, Any] = {}
        failures: list[Failure] = []

        async def answer(key: str, request: Any) -> None:
            try:
                answers[key] = await self.ask(*_read_question(request), call)
            except Failure as failure:
                failures.append(failure)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for key, request in requests.items():
                tasks.start_soon(answer, key, request)
        if failures:
            raise failures[0]
        return answers

    async def _ask_all(
        self, method: str, params: Mapping[str, Any], calls: Sequence[ToolCall]
    ) -> dict[str, Any] | None:
        pod = self.pod if not calls else calls[0].pod
        if pod is None or method not in _ANSWERS:
            return None
        asked: dict[str, ToolCall | None] = {call.sender: call for call in calls}
        if len(asked) > 1 and self.answerers is not None:
            # An older server does not say for whose call it asks: only those named may answer.
            asked = {name: call for name, call in asked.items() if name in self.answerers}
        claims = {name for name in asked if await _claims(pod, name, method)}
        first = {name: call for name, call in asked.items() if name in claims}
        answer = await self._first_answer(pod, method, params, first)
        if answer is not None:
            return answer
        # A caller that claims nothing may be a program that never answers.
        rest = {name: call for name, call in asked.items() if name not in claims}
        if method != LIST_ROOTS:  # another's folders are of no use
            others = await self._others(pod, method)
            call = calls[0] if calls else None
            rest |= {name: call for name in others if name not in asked}
        return await self._first_answer(pod, method, params, rest)

    async def _others(self, pod: Pod, method: str) -> list[str]:
        """Return whom to ask besides the callers: who claims to answer, then who has no card."""
        if self.answerers is not None:
            return [name for name in self.answerers if name != pod.me]
        claims: dict[str, bool | None] = {}
        for name in list(pod.participants):
            if name != pod.me:
                claims[name] = await _claims(pod, name, method)
        claimed = [name for name, claim in claims.items() if claim]
        unknown = [name for name, claim in claims.items() if claim is None]
        return (claimed + unknown)[:_MAX_ASKED]

    async def _first_answer(
        self,
        pod: Pod,
        method: str,
        params: Mapping[str, Any],
        asked: Mapping[str, ToolCall | None],
    ) -> dict[str, Any] | None:
        """Ask participants at the same time, each because of a call; return the first answer."""
        answers: list[dict[str, Any]] = []

        async def ask_one(name: str, call: ToolCall | None) -> None:
            answer = await self._ask_one(pod, name, method, params, call)
            if answer is not None:
                answers.append(answer)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for name, call in asked.items():
                tasks.start_soon(ask_one, name, call)
        return answers[0] if answers else None

    async def _ask_one(
        self, pod: Pod, name: str, method: str, params: Mapping[str, Any], call: ToolCall | None
    ) -> dict[str, Any] | None:
        context = None if call is None else call.envelope.context
        if call is not None and call.sender == name:
            params = rpc.with_meta(params, {rpc.CALL: call.envelope.id})
        try:
            answer = await pod.request(
                name,
                method,
                params,
                timeout=await self._seconds_for(pod, name, method),
                context=None if context is None else context.id,
            )
            _ANSWERS[method].model_validate(answer, by_name=False)
        except RemoteError as error:
            level = logging.DEBUG if error.code == rpc.METHOD_NOT_FOUND else logging.INFO
            logger.log(level, "%s does not answer %s: %s", name, method, one_line(error.message))
            return None
        except (CallError, ValidationError, McppError) as error:
            logger.info("%s does not answer %s: %s", name, method, one_line(str(error)))
            return None
        return dict(answer)

    async def _seconds_for(self, pod: Pod, name: str, method: str) -> float:
        if name in (self.answerers or ()) or await _claims(pod, name, method) is not None:
            return self.seconds
        return min(self.seconds, self.unknown_seconds)


async def _claims(pod: Pod, name: str, method: str) -> bool | None:
    """Return whether a participant's card says that it answers a question; None without a card."""
    try:
        card = await pod.cards.get(name)
    except McppError:
        return None
    return None if card is None else QUESTIONS[method] in card.answers


def can_answer(params: Mapping[str, Any]) -> bool:
    """Return whether a request says that its sender answers the server's questions itself.

    Requests of the newer revisions of MCP do: their clients get the questions as a result.
    """
    meta = params.get("_meta")
    return isinstance(meta, dict) and (
        meta.get(types.PROTOCOL_VERSION_META_KEY) in MODERN_PROTOCOL_VERSIONS
    )


def _read_question(request: Any) -> tuple[str, dict[str, Any]]:
    """Return the method and the params of a question in a result. Raises Failure."""
    method = request.get("method") if isinstance(request, dict) else None
    params = request.get("params") if isinstance(request, dict) else None
    if not isinstance(method, str) or method not in _ANSWERS:
        raise Failure(rpc.INTERNAL_ERROR, "the server asks for input of an unknown kind")
    return method, params if isinstance(params, dict) else {}


def _unanswered(requests: Mapping[str, Any], answers: Mapping[str, Any]) -> str:
    """Return which question was declined, and why; "" if none was."""
    for key, answer in answers.items():
        meta = answer.get("_meta")
        reason = meta.get(rpc.REASON) if isinstance(meta, dict) else None
        if reason:
            message = one_line(str(_read_question(requests[key])[1].get("message")), 200)
            return f"the server asks again what was declined: {message} ({reason})"
    return ""


def _decline(method: str, reason: str) -> dict[str, Any]:
    logger.warning("%s was declined: %s", method, reason)
    if method == ELICIT:
        return {"action": "decline", "_meta": {rpc.REASON: reason}}
    if method == LIST_ROOTS:
        return {"roots": []}
    raise Failure(rpc.METHOD_NOT_FOUND, f"declined: {reason}")
