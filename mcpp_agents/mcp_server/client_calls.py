"""A client's requests in the pod, and the questions that come back because of them.

A participant that works on a request may ask something: a bridge passes the questions of its server
on. Clients of older revisions of MCP are asked while their request runs. Clients of newer ones get
the questions as the result, and send the request again with the answers; meanwhile the request in
the pod goes on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from secrets import token_urlsafe
from typing import Any, Final

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.shared.message import ServerMessageMetadata
from mcp_types.methods import validate_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from mcpp import Message, Pod, Progress, ToolCall
from mcpp.client.factory import new_id
from mcpp.protocol import rpc
from mcpp.protocol.rpc import Failure

# A model or a person may work behind a tool; an impatient client can cancel.
CALL_SECONDS: Final = 600.0
# How long questions are collected before they are sent to a client as one result.
_COLLECT_SECONDS: Final = 0.02
_MAX_HELD: Final = 256
_STATE: Final = "mcpp:"  # how the states of our own questions begin

QUESTIONS: Final = ("elicitation/create", "sampling/createMessage", "roots/list")
_REQUESTS: Final[TypeAdapter[Any]] = TypeAdapter(types.ServerRequest)
_LEVELS: Final = (
    "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency",
)  # fmt: skip

Context = ServerRequestContext[Any]


@dataclass(frozen=True, kw_only=True)
class ClientCall(ToolCall):
    """A client's call of one of the server's own tools: progress goes to the client."""

    context: Context

    async def progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Report progress to the client, if it asked for it."""
        await self.context.session.report_progress(progress, total, message)


@dataclass(slots=True)
class _Question:
    request: dict[str, Any]
    answered: anyio.Event = field(default_factory=anyio.Event)
    answer: Any = None


@dataclass(slots=True)
class _HeldCall:
    """A request in the pod. Owns the questions that its client has not answered yet."""

    participant: str
    method: str
    context: Context
    questions: dict[str, _Question] = field(default_factory=dict)
    changed: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    outcome: Any = None
    is_over: bool = False


class ClientCalls:
    """The requests of all clients of a participant. Owns those that are in progress.

    `place` returns the context of a request that is made now, None for the main stream.
    """

    def __init__(self, pod: Pod, place: Callable[[], str | None]) -> None:
        self._pod = pod
        self._place = place
        self._calls: dict[str, _HeldCall] = {}  # by the ids of their requests
        self._held: dict[str, _HeldCall] = {}  # by the states that their clients know
        self.log_levels: dict[str | None, str] = {}  # by session

    async def request(
        self, context: Context, participant: str, method: str, params: Mapping[str, Any]
    ) -> Any:
        """Make a client's request and return the result, which may consist of questions.

        Raises what `Pod.request` raises, and MCPError for a state that is not known.
        """
        state = params.get("requestState")
        if isinstance(state, str) and state.startswith(_STATE):
            call = self._continue(context, state, method, params)
        else:
            call = _HeldCall(participant, method, context)
            self._pod.start_soon(self._run, call, params)
        try:
            while not call.is_over and not call.questions:
                await call.changed.wait()
                call.changed = anyio.Event()
        except anyio.get_cancelled_exc_class():
            call.scope.cancel()
            raise
        if not call.is_over:
            await anyio.sleep(_COLLECT_SECONDS)
        if not call.is_over:
            return self._hold(call)
        if isinstance(call.outcome, Exception):
            raise call.outcome
        return call.outcome

    def _continue(
        self, context: Context, state: str, method: str, params: Mapping[str, Any]
    ) -> _HeldCall:
        call = self._held.pop(state, None)
        if call is None or call.method != method:
            raise MCPError(rpc.INVALID_PARAMS, "the requestState is unknown or was used before")
        call.context = context
        answers = params.get("inputResponses")
        for key, question in list(call.questions.items()):
            if isinstance(answers, dict) and key in answers:
                question.answer = answers[key]
                question.answered.set()
                del call.questions[key]
        return call

    def _hold(self, call: _HeldCall) -> dict[str, Any]:
        """Return the result that consists of a call's questions."""
        if len(self._held) >= _MAX_HELD:
            self._held.pop(next(iter(self._held))).scope.cancel()
        state = _STATE + token_urlsafe()
        self._held[state] = call
        requests = {key: question.request for key, question in call.questions.items()}
        return {"resultType": "input_required", "inputRequests": requests, "requestState": state}

    async def _run(self, call: _HeldCall, params: Mapping[str, Any]) -> None:
        async def report(progress: Progress) -> None:
            await call.context.session.report_progress(
                progress.progress, progress.total, progress.message
            )

        meta = params.get("_meta") or {}
        kept = {name: value for name, value in meta.items() if name != "progressToken"}
        given = {name: value for name, value in params.items() if name != "_meta"}
        id = new_id()
        self._calls[id] = call
        try:
            with call.scope:
                call.outcome = await self._pod.request(
                    call.participant,
                    call.method,
                    given | ({"_meta": kept} if kept else {}),
                    timeout=CALL_SECONDS,
                    context=self._place(),
                    on_progress=report if "progressToken" in meta else None,
                    id=id,
                )
        except Exception as error:  # raised again where the client waits
            call.outcome = error
        finally:
            del self._calls[id]
            call.is_over = True
            call.changed.set()

    # --- what participants send because of a request ---

    async def answer(self, method: str, params: dict[str, Any], asked: ToolCall) -> dict[str, Any]:
        """Put a question of a participant to the client because of whose request it arose.

        Raises Failure if there is none, or if it cannot answer.
        """
        meta = params.get("_meta")
        id = meta.get(rpc.CALL) if isinstance(meta, dict) else None
        call = self._calls.get(id) if isinstance(id, str) else None
        if call is None or call.participant != asked.sender:
            raise Failure(rpc.METHOD_NOT_FOUND, "no client's request led to this question")
        if not _can_answer(call.context, method):
            raise Failure(rpc.METHOD_NOT_FOUND, "the client cannot answer")
        kept = {name: value for name, value in params.items() if name != "_meta"}
        rest = {name: value for name, value in (meta or {}).items() if name != rpc.CALL}
        request = {"method": method, "params": kept | ({"_meta": rest} if rest else {})}
        if call.context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            _check(request, call.context.protocol_version)
            question = _Question(request)
            key = f"question-{token_urlsafe(6)}"
            call.questions[key] = question
            call.changed.set()
            try:
                await question.answered.wait()
            finally:
                call.questions.pop(key, None)
            return dict(question.answer) if isinstance(question.answer, dict) else {}
        return await self._ask_session(call.context, request)

    async def _ask_session(self, context: Context, request: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = await context.session.send_request(
                _REQUESTS.validate_python(request, by_name=False),
                _AnyResult,
                metadata=ServerMessageMetadata(related_request_id=context.request_id),
            )
        except MCPError as error:
            raise Failure(error.code, error.message, error.data) from None
        except ValidationError:
            raise Failure(rpc.INVALID_PARAMS, "the question or the answer is invalid") from None
        return answer.model_dump(by_alias=True, mode="json", exclude_none=True)

    async def log(self, message: Message) -> None:
        """Pass a log message on to the client whose request it belongs to."""
        call = self._calls.get(message.correlation_id or "")
        if call is None or call.participant != message.sender:
            return
        params = message.payload.get("params") if isinstance(message.payload, dict) else None
        try:
            given = types.LoggingMessageNotificationParams.model_validate(params, by_name=False)
        except ValidationError:
            return
        if self._is_logged(call.context, given.level):
            plain = types.LoggingMessageNotificationParams(
                level=given.level, data=given.data, logger=given.logger
            )
            await call.context.session.send_notification(
                types.LoggingMessageNotification(params=plain), call.context.request_id
            )

    def _is_logged(self, context: Context, level: str) -> bool:
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            least = ((context.params or {}).get("_meta") or {}).get(types.LOG_LEVEL_META_KEY)
        else:
            least = self.log_levels.get(session_of(context), "debug")
        return least in _LEVELS and _LEVELS.index(level) >= _LEVELS.index(least)


def _check(question: dict[str, Any], version: str) -> None:
    """Raise Failure for a question that cannot be sent to a client as a result."""
    try:
        result = {"resultType": "input_required", "inputRequests": {"question": question}}
        validate_server_result(rpc.TOOLS_CALL, version, result)
    except ValidationError:
        raise Failure(rpc.INVALID_PARAMS, f"the question is invalid in MCP {version}") from None


class _AnyResult(types.Result):
    """A client's answer, of whatever shape."""

    model_config = types.Result.model_config | {"extra": "allow"}


def session_of(context: Context) -> str | None:
    """Return the id of a client's session over HTTP; None over standard input and output."""
    headers = getattr(context.request, "headers", None)
    id: str | None = None if headers is None else headers.get("mcp-session-id")
    return id


def _can_answer(context: Context, method: str) -> bool:
    capabilities = context.session.client_capabilities
    if capabilities is None:
        return False
    known = {
        "elicitation/create": capabilities.elicitation,
        "sampling/createMessage": capabilities.sampling,
        "roots/list": capabilities.roots,
    }
    return known[method] is not None
