"""The model agent: follows a pod, answers questions addressed to it, and uses the pod's tools.

An observer adds every envelope to the agent's copy of the log. A separate task answers one question
at a time, and builds its prompts only from that copy: the model sees exactly what is in the log,
its own calls and their results included. Messages of others that arrive while it works get a share
of the prompt, and the question is pinned, so that no other participant can push it out.
"""

import logging
import math
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

import anyio
import msgspec

from mcpp import (
    CallError,
    ConnectionLostError,
    ContextScope,
    DecodeError,
    Envelope,
    Gap,
    McppError,
    Message,
    NoAnswerError,
    Options,
    Participant,
    Pod,
    Refused,
    ToolCall,
    ToolResult,
    kinds,
)
from mcpp.errors import TooLargeError
from mcpp.prompts import EXPAND, Prompt, PromptBuilder
from mcpp.protocol import rpc
from mcpp.protocol.rpc import Failure
from mcpp.tokens import estimate
from mcpp.transient import cut
from mcpp_agents.model.progress import ProgressReporter
from mcpp_agents.model.providers import (
    PATIENT_SECONDS,
    RETRIES,
    Provider,
    ProviderError,
    Reply,
    ToolUse,
)
from mcpp_agents.toolbox import (
    GRACE_SECONDS,
    ParticipantAbsentError,
    RemoteTool,
    Toolbox,
    withdraw_proposals,
)

_HISTORY_MESSAGES: Final = 500
_MAX_WAITING_QUESTIONS: Final = 64
_MAX_IDS: Final = 4096
# At twice this many envelopes the older half of the log is dropped, to bound memory.
_MAX_ENVELOPES: Final = 10_000
_CATCH_UP_SECONDS: Final = 5.0
# One part in so many of the prompt is for messages that arrive while a question is answered.
_MEANWHILE_SHARE: Final = 4

logger = logging.getLogger("mcpp.model")


class ModelLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for answering one question."""

    turns: int = 12
    tokens: int = 200_000  # for all turns together, as the API counts them
    reply_tokens: int = 4096
    prompt_tokens: int = 60_000  # beyond that, older messages are collapsed, folded, left out
    call_seconds: float = 120.0
    approval_seconds: float = 300.0
    grace_seconds: float = GRACE_SECONDS  # for newcomers' tools and lost connections
    remind_seconds: float = 15.0  # interval of progress messages while a question waits


class ModelAgent:
    """A model in a pod. Owns its copy of the log and the open questions.

    Run its `participant`, in one pod at a time: `mcpp.run(ModelAgent("model", …).participant)`.
    """

    def __init__(
        self,
        name: str,
        provider: Provider,
        *,
        system: str = "",
        limits: ModelLimits = ModelLimits(),  # noqa: B008  (frozen)
        options: Options = Options(),  # noqa: B008  (frozen)
    ) -> None:
        self.participant = Participant(name, last=_HISTORY_MESSAGES, options=options)
        self.participant.on_join(self._join)
        self.participant.observe(self._observe)
        self.participant.task(self._answer_questions)
        self.participant.task(self._remind)
        self.participant.method(rpc.TOOLS_CALL)(self._expand)
        self._name = name
        self._provider = provider
        self._limits = limits
        self._system = system

    def _join(self, pod: Pod) -> None:
        self._pod = pod
        self._toolbox = Toolbox(pod, grace_seconds=self._limits.grace_seconds)
        self._builder = PromptBuilder(self._name)
        self._room: float = 0
        self._prompt: Prompt | None = None
        self._log: list[Envelope] = []
        # In the order of arrival: the first one is being answered, the others wait.
        self._questions: dict[str, ProgressReporter] = {}
        self._asked = anyio.Event()
        self._observed: dict[str, None] = {}
        self._own: dict[str, None] = {}
        self._moved = anyio.Event()
        self._start = pod.position
        self._toolbox.refresh()

    # --- answering ---

    async def _answer_questions(self, pod: Pod) -> None:
        while True:
            while self._questions:
                await self._answer(next(iter(self._questions.values())))
            self._asked = anyio.Event()
            await self._asked.wait()

    async def _answer(self, progress: ProgressReporter) -> None:
        """Think about a question in its own context, and reply with the conclusion."""
        question = progress.question
        try:
            self._start_prompt(question.envelope)
            text = await self._think(progress.thinking, progress)
        except ConnectionLostError:
            return
        except McppError as error:
            logger.warning("cannot answer %s: %s", question.sender, error)
            text = f"I cannot think about this now: {error}"
        except Exception:
            # One question that fails unexpectedly must not end the answering of all others.
            logger.exception("cannot answer %s", question.sender)
            text = "I cannot think about this now: an internal error"
        finally:
            del self._questions[question.id]
        try:
            with suppress(Refused):  # reply even if there is no room for our context
                await progress.thinking.conclude(cut(text))
            await _send_reply(question, text)
        except McppError as error:
            logger.warning("cannot send the answer to %s: %s", question.sender, error)

    async def _remind(self, pod: Pod) -> None:
        """Send progress for all open questions at intervals."""
        while True:
            await anyio.sleep(self._limits.remind_seconds)
            for position, (id, progress) in enumerate(list(self._questions.items())):
                state = f"waiting, {position} asked before" if position else "still thinking"
                if id in self._questions:  # it may have been answered in the meantime
                    await progress.keep_alive(state)

    async def _decline(self, question: Message) -> None:
        logger.warning("too many questions at once: declined %s", question.id)
        try:
            await question.reply("I have too many questions before me: please ask again later.")
        except McppError as error:
            logger.warning("cannot decline the question of %s: %s", question.sender, error)

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
        tools = await self._toolbox.list_tools()
        await self._catch_up()
        self._prompt = self._builder.build(previous=self._prompt)
        reply = await self._ask_model(self._prompt, tools.values(), progress)
        if reply.calls:
            if reply.text:
                await thinking.send(kinds.REFLECTION, {"thought": reply.text})
            problems: list[McppError] = []
            async with anyio.create_task_group() as tasks:
                for use in reply.calls:
                    tasks.start_soon(self._try, thinking, use, tools.get(use.name), problems)
            if problems:
                raise problems[0]
        return reply

    async def _ask_model(
        self, prompt: Prompt, tools: Iterable[RemoteTool], progress: ProgressReporter
    ) -> Reply:
        """Ask the model, and retry as its API asks; report the waiting as progress."""
        listed = list(tools)
        for _ in range(RETRIES):
            try:
                return await self._provider.reply(
                    prompt, listed, self._limits.reply_tokens, progress.add_text
                )
            except ProviderError as error:
                seconds = error.retry_seconds
                if seconds is None:
                    raise
                if seconds > PATIENT_SECONDS:
                    reason = f"its API asks to be left alone for {seconds:.0f} s ({error})"
                    raise ProviderError(reason) from None
                logger.warning("asking the model again in %.0f s: %s", seconds, error)
                await progress.wait_for_retry(seconds)
        raise ProviderError("its API asks to be left alone again and again")

    async def _try(
        self,
        thinking: ContextScope,
        use: ToolUse,
        found: RemoteTool | None,
        problems: list[McppError],
    ) -> None:
        try:
            await self._use(thinking, use, found)
        except McppError as error:
            problems.append(error)

    async def _use(self, thinking: ContextScope, use: ToolUse, found: RemoteTool | None) -> None:
        """Make a call. Its outcome is in the log, from which the next prompt is built."""
        if use.arguments is None or (found is None and use.name != EXPAND):
            problem = "the arguments are no JSON object" if found else "there is no such tool"
            thought = f"I cannot call {use.name}: {problem}."
            await thinking.send(kinds.REFLECTION, {"thought": thought})
            return
        owner, tool = (self._name, EXPAND) if found is None else (found.participant, found.tool)
        arguments, seconds = use.arguments, self._limits.call_seconds
        try:
            await self._toolbox.call(
                owner,
                tool,
                lambda: self._pod.call(owner, tool, arguments, timeout=seconds, context=thinking),
            )
        except (NoAnswerError, ParticipantAbsentError) as error:
            await thinking.send(kinds.REFLECTION, {"thought": f"{error}."})
        except CallError:
            pass  # the error is in the log, as the call's result
        except (DecodeError, TooLargeError) as error:
            await thinking.send(kinds.REFLECTION, {"thought": f"I cannot call {tool}: {error}."})
        except Refused as error:
            if error.code != "capability_violation":
                raise
            await self._propose(thinking, owner, tool, use.arguments)

    async def _propose(
        self, thinking: ContextScope, owner: str, tool: str, arguments: dict[str, Any]
    ) -> None:
        """Propose a call that this agent has no capability to make."""
        try:
            proposal = await self._pod.propose(owner, tool, arguments, context=thinking)
        except Refused as error:
            if error.code != "capability_violation":
                raise
            thought = f"I may neither call nor propose {tool} of @{owner}."
            await thinking.send(kinds.REFLECTION, {"thought": thought})
            return
        try:
            # Another participant may still overrule a rejection; our questioner need not wait.
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

    # --- following the log ---

    def _observe(self, item: Message | Gap) -> None:
        if isinstance(item, Gap):
            return
        self._add(item)
        if not self._is_asked(item):
            return
        if len(self._questions) > _MAX_WAITING_QUESTIONS:
            self._pod.start_soon(self._decline, item)
            return
        thinking = self._pod.context(
            "reasoning", parent=item.context, trigger=item.id, asked_by=item.sender
        )
        self._questions[item.id] = ProgressReporter(thinking, item)
        self._asked.set()

    def _add(self, message: Message) -> None:
        self._log.append(message.envelope)
        if self._questions:  # otherwise the next question's builder starts with the log
            self._builder.add(message.envelope)
        if len(self._log) >= 2 * _MAX_ENVELOPES:
            del self._log[:_MAX_ENVELOPES]
        if self._toolbox.observe(message) and message.kind == kinds.PRESENCE:
            # Ask newcomers now: otherwise the first question waits for those that never answer,
            # such as people. Changed tools are asked for later: they may change often.
            self._toolbox.refresh()
        _remember(self._observed, message.id)
        if message.sender == self._name and message.kind == kinds.CHAT:
            _remember(self._own, message.id)
        self._moved.set()

    def _start_prompt(self, question: Envelope) -> None:
        """Start the prompts for a question with the log up to now."""
        budget = self._limits.prompt_tokens
        # A question that would fill the prompt is not pinned, so that it is shortened.
        is_short = _tokens(question) <= budget // 2
        self._builder = PromptBuilder(
            self._name,
            filter=self._has_room,
            contexts="fold",
            token_budget=budget,
            pins=[question.id] if is_short else (),
            system=self._system,
        )
        self._room = math.inf
        for envelope in (*self._log, question):  # the log may have dropped it while it waited
            self._builder.add(envelope)
        self._room = budget // _MEANWHILE_SHARE

    def _has_room(self, envelope: Envelope) -> bool:
        if envelope.sender == self._name or self._room == math.inf:
            return True
        tokens = _tokens(envelope)
        has_room = tokens <= self._room
        self._room -= tokens if has_room else 0
        return has_room

    def _is_asked(self, message: Message) -> bool:
        if message.kind != kinds.CHAT or message.replayed or message.sender == self._name:
            return False
        if message.correlation_id in self._own:
            return False  # a reply to our answer: two models would thank each other endlessly
        mention = rf"(?<![\w@])@{re.escape(self._name)}(?![\w@-])"
        return self._name in (message.to or ()) or bool(re.search(mention, message.text))

    async def _catch_up(self) -> None:
        """Wait until everything received so far has been observed."""
        target = self._pod.position
        # After a reconnection the position may be our own join, which only others receive.
        with anyio.move_on_after(_CATCH_UP_SECONDS):
            while target is not None and target != self._start and target not in self._observed:
                self._moved = anyio.Event()
                await self._moved.wait()

    async def _expand(self, params: dict[str, Any], call: ToolCall) -> Any:
        arguments = params.get("arguments")
        handle = arguments.get("handle") if isinstance(arguments, dict) else None
        if call.sender != self._name or params.get("name") != EXPAND or self._prompt is None:
            raise Failure(rpc.INVALID_PARAMS, f"{self._name} offers no tools")
        return self._prompt.expand(handle if isinstance(handle, str) else "")


async def _send_reply(question: Message, text: str) -> None:
    """Reply; a text that is too large for an envelope is cut, and marked as cut."""
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
    if len(ids) > _MAX_IDS:
        del ids[next(iter(ids))]
