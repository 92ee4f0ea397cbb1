"""A task as A2A clients see it: its state, and events for those who follow it."""

from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Final, TypeAlias

import anyio
from a2a.types import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from anyio.streams.memory import MemoryObjectSendStream

from mcpp import Envelope
from mcpp.live import GrowingText
from mcpp.payloads import LiveText
from mcpp_agents.a2a.parts import data_part, shallow, text_part
from mcpp_agents.a2a.serving.task_record import Said, TaskRecord, describe_waiting

Event: TypeAlias = Task | TaskStatusUpdateEvent | TaskArtifactUpdateEvent

_ANSWER: Final = "answer"  # the id of a task's only artifact
# Who follows a task, and how many events one that reads slowly may be behind.
_MAX_FOLLOWERS: Final = 32
_MAX_BEHIND: Final = 1000
STATES: Final = {
    "working": TaskState.TASK_STATE_WORKING,
    "waiting": TaskState.TASK_STATE_INPUT_REQUIRED,
    "concluded": TaskState.TASK_STATE_COMPLETED,
    "failed": TaskState.TASK_STATE_FAILED,
    "cancelled": TaskState.TASK_STATE_CANCELED,
}


class ServedTask:
    """A task that is open, or was just read from the log. Owns those who follow it."""

    def __init__(self, record: TaskRecord) -> None:
        self.record = record
        self.settled = anyio.Event()  # it was answered, or has ended
        self.shown: str | None = None  # which proposal or question clients were shown last
        self._live = GrowingText("", record.participant)
        self._written = ""  # of the answer, as clients have received it
        self._state = record.phase
        self._followers: list[MemoryObjectSendStream[Event]] = []
        self._changed = anyio.Event()
        self._note_settled()

    # --- what happens ---

    def observe(self, envelope: Envelope) -> None:
        """Take an envelope of the log, and tell those who follow."""
        asked = self.record.first_waiting
        had_answer = self.record.answer
        if not self.record.observe(envelope):
            return
        answer = self.record.answer
        if answer is not None and answer is not had_answer:
            self._publish_answer(answer)
        if self.record.phase != self._state or self.record.first_waiting is not asked:
            self._state = self.record.phase
            if self._followers:
                self._note_shown()
            self._publish(
                TaskStatusUpdateEvent(
                    task_id=self.record.id,
                    context_id=self.record.context_id,
                    status=self.status(),
                )
            )
        self._note_settled()
        self._changed.set()
        self._changed = anyio.Event()
        if self.record.is_over:
            self._dismiss()

    def observe_live(self, id: str | None, part: LiveText, sender: str) -> None:
        """Take a part of an answer that is being written; `id` is the one of the complete message.

        A participant may begin another text: the first one was a thought, not the answer.
        """
        is_answer = part.in_reply_to is not None and part.in_reply_to == self.record.pending
        if not is_answer or sender != self.record.participant:
            return
        if part.ended and id != self._live.id:
            return  # another text than the one that is shown
        if id != self._live.id or part.ended:
            self._live, self._written = GrowingText(id or "", sender), ""
        piece = "" if part.ended else self._live.add(part)
        if piece:
            self._publish_text(piece, append=bool(self._written))

    def _publish_answer(self, answer: Said) -> None:
        """Send what is missing of the answer, or all of it if what was shown is not its start."""
        if answer.text.startswith(self._written):
            rest, append = answer.text[len(self._written) :], bool(self._written)
        else:
            self._written, rest, append = "", answer.text, False
        self._publish_text(rest, append=append, is_last=True)

    def _publish_text(self, text: str, *, append: bool, is_last: bool = False) -> None:
        self._written += text
        self._publish(
            TaskArtifactUpdateEvent(
                task_id=self.record.id,
                context_id=self.record.context_id,
                artifact=_artifact(text),
                append=append,
                last_chunk=is_last,
            )
        )

    def _note_settled(self) -> None:
        if self.record.answer is not None or self.record.is_over:
            self.settled.set()
        elif self.settled.is_set():
            self.settled = anyio.Event()  # the client has said more

    # --- following ---

    async def wait_for(self, is_so: Callable[[], bool], seconds: float) -> None:
        """Wait until something holds for the task, for so long at most."""
        with anyio.move_on_after(seconds):
            while not is_so():
                await self._changed.wait()

    async def follow(self, *, until_waiting: bool = False) -> AsyncGenerator[Event]:
        """Yield the task as it is, then its events until it ends, or also until it waits.

        A follower that reads too slowly misses the rest: its iteration ends, and it may get the
        task and follow again. Nothing happens between the first event and the others.
        """
        if len(self._followers) >= _MAX_FOLLOWERS:
            self._followers.pop(0).close()
        send, receive = anyio.create_memory_object_stream[Event](_MAX_BEHIND)
        self._followers.append(send)
        try:
            yield self.view()
            while True:
                is_waiting = until_waiting and self.record.phase == "waiting"
                is_last = is_waiting or self.record.is_over
                if is_last and not receive.statistics().current_buffer_used:
                    return
                try:
                    event = await receive.receive()
                except anyio.EndOfStream:
                    return
                yield event
        finally:
            if send in self._followers:
                self._followers.remove(send)
            send.close()
            receive.close()

    def _publish(self, event: Event) -> None:
        for follower in list(self._followers):
            try:
                follower.send_nowait(event)
            except (anyio.WouldBlock, anyio.BrokenResourceError):
                self._followers.remove(follower)
                follower.close()

    def _dismiss(self) -> None:
        for follower in self._followers:
            follower.close()
        self._followers.clear()

    # --- views ---

    def view(self) -> Task:
        """Return the task as A2A describes it."""
        record = self.record
        self._note_shown()
        task = Task(id=record.id, context_id=record.context_id, status=self.status())
        task.history.extend(self._message(said) for said in record.said)
        text = record.answer.text if record.answer is not None else self._written
        if text:
            task.artifacts.append(_artifact(text))
        return task

    def _note_shown(self) -> None:
        """Note what a client is told that the task waits for.

        An answer counts for that only: something else may be waiting by the time it arrives.
        """
        waiting = self.record.first_waiting
        self.shown = self.shown if waiting is None else waiting.id

    def status(self) -> TaskStatus:
        """Return the task's state, with what is asked or why it ended so."""
        record = self.record
        status = TaskStatus(state=STATES[record.phase])
        with suppress(ValueError):
            status.timestamp.FromJsonString(record.updated)
        waiting = record.first_waiting
        if waiting is not None:
            text, data = describe_waiting(waiting)
            parts = [text_part(text), data_part(shallow(data))]
            status.message.CopyFrom(self._agent_message(waiting.id, *parts))
        elif record.phase in ("failed", "cancelled") and record.ending:
            text = record.ending
            status.message.CopyFrom(self._agent_message(f"{record.id}-end", text_part(text)))
        return status

    def _message(self, said: Said) -> Message:
        message = self._agent_message(said.id, text_part(said.text))
        if said.is_client:
            message.role = Role.ROLE_USER
        return message

    def _agent_message(self, id: str, *parts: Part) -> Message:
        return Message(
            message_id=id,
            task_id=self.record.id,
            context_id=self.record.context_id,
            role=Role.ROLE_AGENT,
            parts=parts,
        )


def _artifact(text: str) -> Artifact:
    return Artifact(artifact_id=_ANSWER, name=_ANSWER, parts=[text_part(text)])
