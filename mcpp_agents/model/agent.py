"""The model agent: hears the pod, thinks when it is spoken to, and says what it concludes.

One task hears: every envelope goes into the log. Another thinks, one question at a time, and sees
nothing but what was heard: what the model is shown is always what stands in the log, its own calls
and their results too. What others say meanwhile gets a part of the prompt, and the question is
pinned: nobody can talk it out of the model's sight.
"""

import logging
import math
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import TaskGroup

from mcpp import Envelope, McppError, Message, Pod, Refused, kinds
from mcpp.agent.request_server import RequestServer
from mcpp.agent.tools import ToolCall
from mcpp.client.context_scope import ContextScope
from mcpp.client.tasks import background
from mcpp.errors import CallError, ConnectionLostError, DecodeError, NoAnswerError, TooLargeError
from mcpp.prompts import EXPAND, Prompt, PromptBuilder
from mcpp.protocol import rpc
from mcpp.protocol.rpc import Failure, ToolResult
from mcpp.tokens import estimate
from mcpp.transient.marks import cut
from mcpp_agents.model.progress import ProgressReporter
from mcpp_agents.model.providers import (
    PATIENT_SECONDS,
    RETRIES,
    Provider,
    ProviderError,
    Reply,
    ToolUse,
)
from mcpp_agents.toolbox import GRACE_SECONDS, AbsentError, RemoteTool, Toolbox, withdraw_proposals

_QUEUED_QUESTIONS: Final = 64
_REMEMBERED_IDS: Final = 4096
# Of the log, at most twice as much: then the older half is forgotten, or a long life would fill us.
_KEPT_ENVELOPES: Final = 10_000
_CATCH_UP_SECONDS: Final = 5.0
# A part of the prompt: for what others say while a question is answered.
_MEANWHILE_SHARE: Final = 4

log = logging.getLogger("mcpp")


class ModelLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How far the model may go with one question."""

    turns: int = 12
    tokens: int = 200_000  # for all turns together, as the API counts them
    reply_tokens: int = 4096
    prompt_tokens: int = 60_000  # the rest is collapsed, folded, and at last left out
    call_seconds: float = 120.0
    approval_seconds: float = 300.0
    grace_seconds: float = GRACE_SECONDS  # with newcomers' offers, and lines that were lost
    remind_seconds: float = 15.0  # those who wait are told so


class ModelAgent:
    """A model in a pod. Owns its view of the log; run it with `await agent.run()`."""

    def __init__(
        self,
        pod: Pod,
        provider: Provider,
        tasks: TaskGroup,
        *,
        system: str = "",
        limits: ModelLimits = ModelLimits(),  # noqa: B008  (frozen)
    ) -> None:
        self._pod = pod
        self._tasks = tasks
        self._provider = provider
        self._limits = limits
        self._toolbox = Toolbox(pod, tasks, grace_seconds=limits.grace_seconds)
        self._system = system
        self._builder = PromptBuilder(pod.me)
        self._room: float = 0
        self._prompt: Prompt | None = None
        self._log: list[Envelope] = []
        self._open: dict[str, ProgressReporter] = {}  # the first is thought about, the others wait
        self._heard: dict[str, None] = {}
        self._own: dict[str, None] = {}
        self._moved = anyio.Event()
        self._start = pod.position

    async def run(self) -> None:
        """Take part until the connection ends for good. The pod must be opened with `own=True`."""
        sending, receiving = anyio.create_memory_object_stream[Message](_QUEUED_QUESTIONS)
        methods = {"ping": _pong, "tools/list": _no_tools, rpc.TOOLS_CALL: self._expand}
        # Whoever thinks ends first, or it would find its questions closed.
        async with sending, receiving, background() as thinking:
            server = RequestServer(methods, self._tasks)

            async def think() -> None:
                async for question in receiving:
                    await self.answer(question)

            thinking.start_soon(think)
            thinking.start_soon(self._remind)
            self._toolbox.refresh()
            async for message in self._pod:
                self._hear(message)
                server.receive(message)
                if self._is_asked(message):
                    try:
                        sending.send_nowait(message)
                    except anyio.WouldBlock:
                        thinking.start_soon(self._decline, message)
                    else:
                        self._open[message.id] = ProgressReporter(self._place_for(message), message)

    async def answer(self, question: Message) -> None:
        """Think about a question in a context of its own, and reply with the conclusion."""
        progress = self._open[question.id]
        try:
            self._take_up(question.envelope)
            text = await self._think(progress.thinking, progress)
        except ConnectionLostError:
            return
        except McppError as error:
            log.warning("no answer for %s: %s", question.sender, error)
            text = f"I cannot think about this now: {error}"
        finally:
            del self._open[question.id]
        try:
            with suppress(Refused):  # no room for our context is no reason not to answer
                await progress.thinking.conclude(cut(text))
            await _say(question, text)
        except McppError as error:
            log.warning("the answer for %s was lost: %s", question.sender, error)

    def _place_for(self, question: Message) -> ContextScope:
        return self._pod.context(
            "reasoning", parent=question.context, trigger=question.id, asked_by=question.sender
        )

    async def _remind(self) -> None:
        """Tell everybody who waits for an answer that it will come."""
        with suppress(ConnectionLostError):
            while True:
                await anyio.sleep(self._limits.remind_seconds)
                for place, (id, progress) in enumerate(list(self._open.items())):
                    waits = f"waiting, {place} asked before" if place else "still thinking"
                    if id in self._open:  # it may have been answered while others were told
                        await progress.keep_alive(waits)

    async def _decline(self, question: Message) -> None:
        log.warning("too many questions at once: %s is not answered", question.id)
        try:
            await question.reply("I have too many questions before me: please ask again later.")
        except McppError as error:
            log.warning("%s could not be told so: %s", question.sender, error)

    async def _think(self, thinking: ContextScope, progress: ProgressReporter) -> str:
        await progress.start()
        spent = 0
        for _ in range(self._limits.turns):
            reply = await self._next(thinking, progress)
            spent += reply.tokens
            if not reply.calls:
                if not reply.incomplete_reason:
                    return reply.text or "I have nothing to say to this."
                said = f"{reply.text} …" if reply.text else "I have no answer"
                return f"{said} ({reply.incomplete_reason})"
            if spent >= self._limits.tokens:
                return f"I stop here: {spent} tokens are spent on this."
        return f"I stop here: {self._limits.turns} turns were not enough."

    async def _next(self, thinking: ContextScope, progress: ProgressReporter) -> Reply:
        offers = await self._toolbox.list_tools()
        await self._catch_up()
        self._prompt = self._builder.build(previous=self._prompt)
        reply = await self._reply(self._prompt, offers.values(), progress)
        if reply.calls:
            if reply.text:
                await thinking.send(kinds.REFLECTION, {"thought": reply.text})
            problems: list[McppError] = []
            async with anyio.create_task_group() as tasks:
                for use in reply.calls:
                    tasks.start_soon(self._try, thinking, use, offers.get(use.name), problems)
            if problems:
                raise problems[0]
        return reply

    async def _reply(
        self, prompt: Prompt, offers: Iterable[RemoteTool], progress: ProgressReporter
    ) -> Reply:
        """Ask the model, and again when its API says so: then those who wait know."""
        tools = list(offers)
        for _ in range(RETRIES):
            try:
                return await self._provider.reply(
                    prompt, tools, self._limits.reply_tokens, progress.add_text
                )
            except ProviderError as error:
                seconds = error.retry_seconds
                if seconds is None:
                    raise
                if seconds > PATIENT_SECONDS:
                    reason = f"its API asks to be left alone for {seconds:.0f} s ({error})"
                    raise ProviderError(reason) from None
                log.warning("asking the model again in %.0f s: %s", seconds, error)
                await progress.wait_for_retry(seconds)
        raise ProviderError("its API asks to be left alone again and again")

    async def _try(
        self,
        thinking: ContextScope,
        use: ToolUse,
        offer: RemoteTool | None,
        problems: list[McppError],
    ) -> None:
        try:
            await self._use(thinking, use, offer)
        except McppError as error:
            problems.append(error)

    async def _use(self, thinking: ContextScope, use: ToolUse, offer: RemoteTool | None) -> None:
        """Make a call; whatever comes of it stands in the log, where the next prompt finds it."""
        if use.arguments is None or (offer is None and use.name != EXPAND):
            problem = "the arguments are no JSON object" if offer else "there is no such tool"
            thought = f"I cannot call {use.name}: {problem}."
            await thinking.send(kinds.REFLECTION, {"thought": thought})
            return
        owner, tool = (self._pod.me, EXPAND) if offer is None else (offer.participant, offer.tool)
        arguments, seconds = use.arguments, self._limits.call_seconds
        try:
            await self._toolbox.call(
                owner,
                tool,
                lambda: self._pod.call(owner, tool, arguments, timeout=seconds, context=thinking),
            )
        except (NoAnswerError, AbsentError) as error:
            await thinking.send(kinds.REFLECTION, {"thought": f"{error}."})
        except CallError:
            pass  # the error is the call's result in the log
        except (DecodeError, TooLargeError) as error:
            await thinking.send(kinds.REFLECTION, {"thought": f"I cannot call {tool}: {error}."})
        except Refused as error:
            if error.code != "capability_violation":
                raise
            await self._propose(thinking, owner, tool, use.arguments)

    async def _propose(
        self, thinking: ContextScope, owner: str, tool: str, arguments: dict[str, Any]
    ) -> None:
        """Ask for what we may not do; somebody who may decides."""
        try:
            proposal = await self._pod.propose(owner, tool, arguments, context=thinking)
        except Refused as error:
            if error.code != "capability_violation":
                raise
            thought = f"I may neither call nor propose {tool} of @{owner}."
            await thinking.send(kinds.REFLECTION, {"thought": thought})
            return
        try:
            # Somebody may still overrule a rejection, but whoever asked us should not wait for it.
            result: ToolResult = await proposal.result(
                self._limits.approval_seconds, until_rejected=True
            )
            outcome = f"was fulfilled by @{proposal.fulfilled_by}: {cut(result.text)}"
        except NoAnswerError:
            by = proposal.fulfilled_by
            outcome = (
                "was not decided"
                if by is None
                else f"was approved by @{by}, and is not answered yet"
            )
        except CallError as error:
            outcome = f"failed: {error.problem}"
        finally:
            await withdraw_proposals(proposal)
        thought = f"My proposal to call {tool} of @{owner} {outcome}"
        await thinking.send(kinds.REFLECTION, {"thought": thought})

    # --- hearing ---

    def _hear(self, message: Message) -> None:
        self._log.append(message.envelope)
        if self._open:  # the next question's builder begins with the log
            self._builder.add(message.envelope)
        if len(self._log) >= 2 * _KEPT_ENVELOPES:
            del self._log[:_KEPT_ENVELOPES]
        if self._toolbox.observe(message) and message.kind == kinds.PRESENCE:
            # Now, or the first question would wait for people, who never say what they offer. Not
            # when somebody's tools have changed: that may be said a hundred times a second.
            self._toolbox.refresh()
        _remember(self._heard, message.id)
        if message.sender == self._pod.me and message.kind == kinds.CHAT:
            _remember(self._own, message.id)
        self._moved.set()

    def _take_up(self, question: Envelope) -> None:
        """Begin the prompts for a question with all that was heard until now."""
        budget = self._limits.prompt_tokens
        # One that would fill the prompt by itself is shown in part, like all that is long.
        is_short = _tokens(question) <= budget // 2
        self._builder = PromptBuilder(
            self._pod.me,
            filter=self._has_room,
            contexts="fold",
            token_budget=budget,
            pins=[question.id] if is_short else (),
            system=self._system,
        )
        self._room = math.inf
        for envelope in (*self._log, question):  # the log may have lost it while it waited
            self._builder.add(envelope)
        self._room = budget // _MEANWHILE_SHARE

    def _has_room(self, envelope: Envelope) -> bool:
        if envelope.sender == self._pod.me or self._room == math.inf:
            return True
        tokens = _tokens(envelope)
        has_room = tokens <= self._room
        self._room -= tokens if has_room else 0
        return has_room

    def _is_asked(self, message: Message) -> bool:
        if message.kind != kinds.CHAT or message.replayed or message.sender == self._pod.me:
            return False
        if message.correlation_id in self._own:
            return False  # an answer to our answer: two models would thank each other for ever
        mention = rf"(?<![\w@])@{re.escape(self._pod.me)}(?![\w@-])"
        return self._pod.me in (message.to or ()) or bool(re.search(mention, message.text))

    async def _catch_up(self) -> None:
        """Wait until everything that had reached us by now has been heard."""
        target = self._pod.position
        # After a line was lost that may be our own return, which the gateway tells only to others.
        with anyio.move_on_after(_CATCH_UP_SECONDS):
            while target is not None and target != self._start and target not in self._heard:
                self._moved = anyio.Event()
                await self._moved.wait()

    async def _expand(self, params: dict[str, Any], call: ToolCall) -> Any:
        arguments = params.get("arguments")
        handle = arguments.get("handle") if isinstance(arguments, dict) else None
        if call.sender != self._pod.me or params.get("name") != EXPAND or self._prompt is None:
            raise Failure(rpc.INVALID_PARAMS, f"{self._pod.me} offers no tools")
        return self._prompt.expand(handle if isinstance(handle, str) else "")


async def _say(question: Message, text: str) -> None:
    """Answer; what no envelope holds is cut until one does, and says so."""
    shown = text
    while True:
        try:
            await question.reply(shown)
        except TooLargeError:
            if not text:
                raise
            text = text[: len(text) // 2]
            shown = f"{text} … (cut at the limit of an envelope)"
        else:
            return


def _tokens(envelope: Envelope) -> int:
    return estimate(bytes(envelope.raw_payload).decode())


def _remember(ids: dict[str, None], id: str) -> None:
    ids[id] = None
    if len(ids) > _REMEMBERED_IDS:
        del ids[next(iter(ids))]


async def _pong(params: dict[str, Any], call: ToolCall) -> Any:
    return {}


async def _no_tools(params: dict[str, Any], call: ToolCall) -> Any:
    return {"tools": []}
