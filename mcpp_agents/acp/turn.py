"""One question to an agent: its work becomes a reasoning context, its last text the reply.

What the agent writes is shown live as the reply. If a tool call follows, it was not the reply yet:
it becomes a thought.
"""

import logging
from contextlib import suppress
from typing import Any, Final

import anyio
from acp.schema import (
    AgentMessageChunk,
    AgentPlanUpdate,
    AgentThoughtChunk,
    PromptResponse,
    ToolCallProgress,
    ToolCallStart,
)

from mcpp import Message, Refused, TextStream, kinds
from mcpp.errors import TooLargeError
from mcpp.transient import cut
from mcpp_agents.acp.descriptions import (
    ToolCallState,
    ToolUpdate,
    one_line,
    plan_text,
    shorten,
    text_of,
)
from mcpp_agents.acp.limits import AcpLimits

_MAX_CALLS: Final = 32  # kept at once; an update of an older one begins it again
_ENDED: Final = ("completed", "failed")
_INCOMPLETE: Final = {
    "max_tokens": "stopped: the model's limit of tokens",
    "max_turn_requests": "stopped: the agent's limit of requests",
    "refusal": "the agent refuses to go on",
}

logger = logging.getLogger("mcpp.acp")


class Turn:
    """An agent's work on one question. Owns the reasoning context and what was said so far."""

    def __init__(self, question: Message, limits: AcpLimits, folder: str) -> None:
        self.question = question
        self.scope = anyio.CancelScope()  # of all work on the question
        self.thinking = question.child(
            "reasoning",
            title=one_line(question.text),
            trigger=question.id,
            asked_by=question.sender,
        )
        self.waits_for_person = 0  # decisions that are open
        self.active_at = anyio.current_time()
        self.folder = folder
        self._limits = limits
        self._reply = question.stream()
        self._thought: TextStream | None = None
        self._calls: dict[str, ToolCallState] = {}
        self._plan = ""
        self._message_id: str | None = None
        self._last_text = ""  # written before the last tool call
        self._rejection = ""  # of the last tool call
        self._characters = 0  # of the text that is being written
        self._entries = 0
        self._left_out = 0

    @property
    def is_rejected(self) -> bool:
        """Whether the last tool call that was decided on was rejected. Codex stops then."""
        return bool(self._rejection)

    async def start(self) -> None:
        """Begin the context, so that others see that the agent is at work."""
        self.active_at = anyio.current_time()
        params = {"progressToken": self.question.id, "progress": 0, "message": "working"}
        with suppress(Refused):
            await self.thinking.notify(
                "notifications/progress",
                params,
                to=[self.question.sender],
                correlation_id=self.question.id,
            )

    async def update(self, update: Any) -> None:
        """Process an update of the agent. Unknown ones are ignored."""
        self.active_at = anyio.current_time()
        match update:
            case AgentMessageChunk():
                await self._write(text_of(update.content), update.message_id)
            case AgentThoughtChunk():
                await self._think(text_of(update.content))
            case ToolCallStart() | ToolCallProgress():
                await self.report_call(update)
            case AgentPlanUpdate():
                plan = plan_text(update.entries)
                if plan != self._plan:
                    self._plan = plan
                    await self._set_aside()
                    await self.note(plan)
            case _:
                pass

    async def report_call(self, update: ToolUpdate) -> ToolCallState:
        """Record what an update says of a tool call; log its beginning and its end."""
        id = update.tool_call_id
        call = self._calls.pop(id, None) or ToolCallState(id, self.folder)
        self._calls[id] = call
        if len(self._calls) > _MAX_CALLS:
            del self._calls[next(iter(self._calls))]
        call.update(update)
        await self._set_aside()
        if call.status != "pending" and "begun" not in call.reported:
            call.reported.add("begun")
            if call.status not in _ENDED:
                await self._log_call(f"Begins: {call.name}", call)
        if call.status in _ENDED and "ended" not in call.reported:
            call.reported.add("ended")
            result = call.result(self._limits.shown_chars)
            verb = "Done" if call.status == "completed" else "Failed"
            await self._log_call("\n".join(filter(None, (f"{verb}: {call.name}", result))), call)
            call.forget_content()
        return call

    async def note(self, thought: str, **more: Any) -> None:
        """Add a thought to the context, unless it has too many entries."""
        self._entries += 1
        if self._entries > self._limits.entries:
            self._left_out += 1
            return
        with suppress(Refused):
            await self.thinking.send(kinds.REFLECTION, {"thought": thought, **more})

    async def note_decision(self, decision: str, call: ToolCallState, *, is_allowed: bool) -> None:
        """Add what was decided on a tool call. An agent that stops then has this as its reply."""
        thought = f"{decision}: {call.name}"
        self._rejection = "" if is_allowed else f"I stopped. {thought}"
        await self._log_call(thought, call)

    async def finish(self, response: PromptResponse) -> None:
        """Conclude the context and reply."""
        await self._end_thought()
        text = self._reply.text or self._rejection or self._last_text or "I have no answer to this."
        problem = _INCOMPLETE.get(response.stop_reason)
        if problem is not None:
            text = f"{text} ({problem})"
        if self._left_out:
            more = {"thought": f"… and {self._left_out} more updates, left out"}
            with suppress(Refused):
                await self.thinking.send(kinds.REFLECTION, more)
        conclusion: dict[str, Any] = {"text": cut(text)}
        if response.usage is not None:
            conclusion["usage"] = {
                "input_tokens": response.usage.input_tokens,
                "output_tokens": response.usage.output_tokens,
                "cached_tokens": response.usage.cached_read_tokens or 0,
            }
        with suppress(Refused):  # reply even if there is no room for our context
            await self.thinking.conclude(conclusion)
        await self.reply(text)

    async def reply(self, text: str) -> None:
        """Send the reply; a text that is too large for an envelope is cut, and marked as cut."""
        limit = len(text)
        while True:
            try:
                await self._reply.finish(shorten(text, limit))
            except TooLargeError:
                if limit < 100:
                    raise
                limit //= 2
            else:
                return

    async def end(self) -> None:
        """Take back what was shown of a reply or thought that will not be completed."""
        for stream in (self._reply, self._thought):
            if stream is not None and stream.envelope is None:
                await stream.end()

    async def _write(self, text: str, message_id: str | None) -> None:
        await self._end_thought()
        if message_id != self._message_id and self._reply.text:
            text = f"\n\n{text}"  # another message, although no tool call was between them
        self._message_id = message_id
        await self._reply.write(self._bounded(text))

    async def _think(self, text: str) -> None:
        if self._thought is None:
            await self._set_aside()
            if self._entries >= self._limits.entries:
                self._left_out += 1
                return
            self._entries += 1
            self._characters = 0
            self._thought = self.thinking.stream(kinds.REFLECTION)
        await self._thought.write(self._bounded(text))

    def _bounded(self, text: str) -> str:
        """Return the part of a text that is still within the limit."""
        room = self._limits.text_chars - self._characters
        self._characters += len(text)
        return text if len(text) <= room else text[: max(0, room)]

    async def _end_thought(self) -> None:
        thought, self._thought = self._thought, None
        if thought is not None:
            self._characters = len(self._reply.text)
            if thought.text:
                with suppress(Refused, TooLargeError):
                    await thought.finish()

    async def _set_aside(self) -> None:
        """Make a thought of the text so far: it was not the reply, since work goes on."""
        await self._end_thought()
        text = self._reply.text
        if text:
            self._last_text = text
            await self._reply.end()
            self._reply, self._characters = self.question.stream(), 0
            await self.note(shorten(text, self._limits.shown_chars))

    async def _log_call(self, thought: str, call: ToolCallState) -> None:
        await self.note(thought, tool_call=call.described(self._limits.shown_chars))
