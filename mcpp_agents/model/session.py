"""A model's work in one pod: it follows the log and answers the questions addressed to it.

An observer adds every envelope to a copy of the log. A separate task answers one question at a
time, and builds its prompts only from that copy: the model sees exactly what is in the log, its own
calls and their results included.
"""

import logging
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread
import msgspec

from mcpp import (
    ConnectionLostError,
    ContextScope,
    Envelope,
    Gap,
    McppError,
    Message,
    Pod,
    Refused,
    kinds,
)
from mcpp.agent.shares import Shares
from mcpp.outcomes import Usage
from mcpp.prompts import EXPAND, ContextSummary, Prompt
from mcpp.protocol import rpc
from mcpp.protocol.rpc import Failure
from mcpp.transient import cut
from mcpp_agents.memory.bus.erasures import PodErasures
from mcpp_agents.memory.serving.agent_memory import AgentMemory
from mcpp_agents.model.limits import ModelLimits
from mcpp_agents.model.log_prompts import LogPrompts
from mcpp_agents.model.progress import ProgressReporter
from mcpp_agents.model.providers import (
    PATIENT_SECONDS,
    RETRIES,
    Provider,
    ProviderError,
    Reply,
)
from mcpp_agents.model.tool_calls import ToolCaller
from mcpp_agents.model.tracing import agent_span
from mcpp_agents.recent_ids import RecentIds
from mcpp_agents.replies import send_reply
from mcpp_agents.toolbox import RemoteTool, Toolbox

# Open questions, shared fairly by those who ask (P-43).
_MAX_QUESTIONS: Final = 65
_MEMORY_TOKENS: Final = 4_000

logger = logging.getLogger("mcpp.model")


class ModelSession:
    """A model in one pod, from joining to leaving. Owns the open questions."""

    def __init__(
        self,
        pod: Pod,
        provider: Provider,
        system: str,
        limits: ModelLimits,
        memory: AgentMemory | None = None,
    ) -> None:
        self._pod = pod
        self._memory = memory
        self._provider = provider
        self._limits = limits
        self._toolbox = Toolbox(pod, grace_seconds=limits.grace_seconds)
        self._caller = ToolCaller(pod, self._toolbox, limits)
        self._prompts = LogPrompts(pod, limits=limits, system=system)
        # The first one is being answered, the others wait. Who was answered last comes last.
        self._questions: dict[str, ProgressReporter] = {}
        self._places = Shares(_MAX_QUESTIONS)
        self._answered = RecentIds()  # askers
        self._asked = anyio.Event()
        self._own_chats = RecentIds()
        self._usage = Usage()  # of the question that is being answered
        self._erasures = PodErasures(pod, None if memory is None else memory.store)
        self._last_erasures: dict[str, float | None] = {}  # when each question was received
        self._toolbox.refresh()

    # --- following the log ---

    async def observe(self, item: Message | Gap) -> None:
        """Add a message to the log, and queue it if it is a question to this agent."""
        erasures = await self._erasures.find(item)
        if isinstance(item, Gap):
            return
        self._add(item)
        if erasures:
            if not item.replayed:  # else what is in the log was read after them
                self._prompts.forget_erased()
            await self._erasures.apply(erasures)
        if self._is_asked(item):
            self._ask(item)

    def _ask(self, message: Message) -> None:
        if not self._places.take(message.sender):
            self._pod.start_soon(self._decline, message)
            return
        thinking = self._pod.context(
            "reasoning", parent=message.context, trigger=message.id, asked_by=message.sender
        )
        self._questions[message.id] = ProgressReporter(thinking, message)
        self._last_erasures[message.id] = self._erasures.last
        self._asked.set()

    def expand(self, params: dict[str, Any], sender: str) -> Any:
        """Serve `tools/call`: the model's own call that expands a part of its prompt.

        Raises Failure for any other call.
        """
        arguments = params.get("arguments")
        handle = arguments.get("handle") if isinstance(arguments, dict) else None
        if sender == self._pod.me and params.get("name") == EXPAND:
            expanded = self._prompts.expand(handle if isinstance(handle, str) else "")
            if expanded is not None:
                return expanded
        raise Failure(rpc.INVALID_PARAMS, f"{self._pod.me} offers no tools")

    def _add(self, message: Message) -> None:
        self._prompts.add(message.envelope, is_answering=bool(self._questions))
        if self._toolbox.observe(message) and message.kind in (kinds.PRESENCE, kinds.UPDATE):
            # Ask newcomers now: otherwise the first question waits for those that never answer,
            # such as people. Changed tools are asked for later: they may change often.
            self._toolbox.refresh()
        if self._memory is not None:
            self._memory.observe(message.envelope, self._pod.contexts)
        if message.sender == self._pod.me and message.kind == kinds.CHAT:
            self._own_chats.add(message.id)

    def _is_asked(self, message: Message) -> bool:
        if message.kind != kinds.CHAT or message.replayed:
            return False
        if message.correlation_id in self._own_chats:
            return False  # a reply to our answer: two models would thank each other endlessly
        return message.is_for_me

    async def _decline(self, question: Message) -> None:
        logger.warning("too many questions at once: declined %s", question.id)
        try:
            await question.reply("I have too many open questions. Please ask again later.")
        except McppError as error:
            logger.warning("cannot decline %s's question: %s", question.sender, error)

    # --- answering ---

    async def answer_questions(self) -> None:
        """Answer the open questions one after another, until cancelled."""
        while True:
            while self._questions:
                await self._answer(self._next_question())
            self._asked = anyio.Event()
            await self._asked.wait()

    def _next_question(self) -> ProgressReporter:
        """Return the oldest unanswered question of the participant that has waited longest."""
        by_asker: dict[str, str] = {}
        for id, progress in self._questions.items():
            by_asker.setdefault(progress.question.sender, id)
        chosen = by_asker[min(by_asker, key=self._answered.place)]
        self._questions = {chosen: self._questions[chosen], **self._questions}
        return self._questions[chosen]

    async def send_reminders(self) -> None:
        """Send progress for all open questions at intervals, until cancelled."""
        while True:
            await anyio.sleep(self._limits.remind_seconds)
            for position, (id, progress) in enumerate(list(self._questions.items())):
                state = f"waiting, {position} asked before" if position else "still thinking"
                if id in self._questions:  # it may have been answered in the meantime
                    await progress.keep_alive(state)

    async def _answer(self, progress: ProgressReporter) -> None:
        """Think about a question in its own context, and reply with the conclusion."""
        question = progress.question
        is_answered = False
        try:
            remembered, summaries = await self._recall(question)
            if self._erasures.last != self._last_erasures[question.id]:
                remembered, summaries = "", []  # it may have been read before the erasure
            self._prompts.start(question.envelope, remembered, summaries)
            self._usage = Usage()
            with agent_span(self._pod, progress.thinking.id):
                text = await self._think(progress.thinking, progress)
            is_answered = True
        except ConnectionLostError:
            return
        except McppError as error:
            logger.warning("cannot answer %s: %s", question.sender, error)
            text = f"I cannot answer this now: {error}"
        except Exception:
            # One question that fails unexpectedly must not end the answering of all others.
            logger.exception("cannot answer %s", question.sender)
            text = "I cannot answer this now: an internal error"
        finally:
            del self._questions[question.id]
            last_erasure = self._last_erasures.pop(question.id)
            self._places.release(question.sender)
            self._answered.add(question.sender)
        try:
            conclusion = None
            with suppress(Refused):  # reply even if there is no room for our context
                conclusion = await progress.thinking.conclude(
                    self._conclusion(text), **self._prompts.metadata
                )
            # The answer may be about something that was erased since the question.
            if is_answered and last_erasure == self._erasures.last:
                await self._remember(progress, text, conclusion)
            await send_reply(progress.out, text)
        except McppError as error:
            logger.warning("cannot send the answer to %s: %s", question.sender, error)

    def _conclusion(self, text: str) -> dict[str, Any]:
        """Return the conclusion, with the tokens that the API has counted."""
        usage = self._usage
        if not (usage.input_tokens or usage.output_tokens):
            return {"text": cut(text)}
        return {"text": cut(text), "usage": msgspec.to_builtins(usage)}

    async def _recall(self, question: Message) -> tuple[str, list[ContextSummary]]:
        """Return a pack for the question, and summaries of open contexts; none if it takes long."""
        remembered, summaries = "", list[ContextSummary]()
        if self._memory is None:
            return remembered, summaries
        # A quarter of the prompt at most.
        tokens = min(_MEMORY_TOKENS, self._limits.prompt_tokens // 4)
        recall = partial(self._memory.recall, question.text, max_tokens=tokens)
        read = partial(anyio.to_thread.run_sync, abandon_on_cancel=True)
        with anyio.move_on_after(self._limits.memory_seconds) as reading:
            remembered = await read(recall)
            summaries = await read(self._memory.open_contexts)
        if reading.cancelled_caught:
            logger.warning("answering without memory, which takes long")
        return remembered, summaries

    async def _remember(
        self, progress: ProgressReporter, answer: str, conclusion: Envelope | None
    ) -> None:
        """Store an answer; return before that if memory takes long, as while it is locked."""
        if self._memory is None:
            return
        place = self._erasures.place(progress.thinking.id)
        remember = partial(
            self._memory.remember,
            progress.question.envelope,
            answer,
            conclusion=conclusion,
            place=place,
        )
        stored = anyio.Event()

        async def store() -> None:
            await self._erasures.store(remember, after=place.last_erasure)
            stored.set()

        self._pod.start_soon(store)
        with anyio.move_on_after(self._limits.memory_seconds):
            await stored.wait()

    async def _think(self, thinking: ContextScope, progress: ProgressReporter) -> str:
        await progress.start()
        spent = 0
        for _ in range(self._limits.turns):
            reply = await self._take_turn(thinking, progress)
            spent += reply.tokens
            self._usage = self._usage.plus(reply.usage)
            if not reply.calls:
                if not reply.incomplete_reason:
                    return reply.text or "I have no answer to this."
                said = f"{reply.text} …" if reply.text else "I have no answer"
                return f"{said} ({reply.incomplete_reason})"
            if spent >= self._limits.tokens:
                return f"I stopped: this question has used {spent} tokens."
        return f"I stopped: {self._limits.turns} turns were not enough."

    async def _take_turn(self, thinking: ContextScope, progress: ProgressReporter) -> Reply:
        tools = await self._toolbox.list_tools()
        reply = await self._ask_model(await self._prompts.next(), tools.values(), progress)
        if reply.calls:
            await progress.restart()  # what was shown is a thought, and not the reply
            if reply.text:
                await thinking.send(kinds.REFLECTION, {"thought": reply.text})
            await self._caller.make_calls(thinking, reply.calls, tools)
        return reply

    async def _ask_model(
        self, prompt: Prompt, tools: Iterable[RemoteTool], progress: ProgressReporter
    ) -> Reply:
        """Ask the model, and retry when its API asks for it; report the waiting as progress."""
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
                    reason = f"the model's API is unavailable for {seconds:.0f} s ({error})"
                    raise ProviderError(reason) from None
                logger.warning("asking the model again in %.0f s: %s", seconds, error)
                await progress.restart()
                await progress.wait_for_retry(seconds)
        raise ProviderError("the model's API is still unavailable after several attempts")
