"""The tasks of A2A clients in a pod: begun, continued, cancelled, and found again in its log."""

import logging
import re
from collections.abc import AsyncIterator
from typing import Any, Final

import anyio

from mcpp import AbsentError, Gap, McppError, Message, Pod, Refused, ToolCall, filters, kinds
from mcpp.errors import NotInHistoryError
from mcpp.payloads import Conclusion, ContextFailure, LiveText
from mcpp.protocol import rpc
from mcpp.transient import cut
from mcpp_agents.a2a.serving.client_answers import ClientAnswer, ClientQuestion
from mcpp_agents.a2a.serving.served_task import ServedTask
from mcpp_agents.a2a.serving.task_record import CONTEXT_TYPE, METADATA, TaskRecord, is_question

# Tasks that are open at the same time, of all clients.
MAX_OPEN: Final = 256
# A task that has not ended by then has failed.
TASK_SECONDS: Final = 3600.0
_PRESENCE_SECONDS: Final = 10.0  # for a participant to come back
_NEWS_SECONDS: Final = 0.5  # for the news that one has joined
_SETTLE_SECONDS: Final = 10.0
_MAX_ENVELOPES: Final = 5_000  # of the log, to list tasks
_MAX_DEPTH: Final = 64

_is_id = re.compile(r"[A-Za-z0-9._:~-]{1,128}").fullmatch

logger = logging.getLogger("mcpp.a2a")


class TaskError(McppError):
    """A task cannot be begun, continued or cancelled as asked."""


class NoTaskError(TaskError):
    """There is no such task, or it is not this client's."""


class TaskBoard:
    """The tasks in one pod. Owns those that are open; the others are in the log."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._open: dict[str, ServedTask] = {}
        self._questions: dict[str, ClientQuestion] = {}

    # --- following the log ---

    async def recover(self) -> None:
        """Go on with the tasks that were open when an earlier process ended."""
        for record in [each async for each in self.list() if not each.is_over]:
            await self._load(record.id)

    def observe(self, item: Message | Gap) -> None:
        """Take what the pod's log has next."""
        if isinstance(item, Gap):
            self._pod.start_soon(self._reload)
            return
        task = self._task_of(item)
        if task is None:
            return
        if item.kind == kinds.LIVE_TEXT:
            task.observe_live(item.correlation_id, item.payload_as(LiveText), item.sender)
            return
        task.observe(item.envelope)
        if task.record.is_over:
            self._open.pop(task.record.id, None)

    def _task_of(self, message: Message) -> ServedTask | None:
        """Return the task in whose context, or below it, a message is."""
        id = None if message.context is None else message.context.id
        if message.kind == kinds.LIVE_TEXT and id is None:
            return None
        for _ in range(_MAX_DEPTH):
            if id is None or id in self._open:
                break
            known = self._pod.contexts.get(id)
            id = None if known is None else known.parent
        return None if id is None else self._open.get(id)

    async def _reload(self) -> None:
        """Read the open tasks again, since something was missed."""
        for task in list(self._open.values()):
            try:
                async for message in self._pod.history(
                    context=task.record.id, limit=_MAX_ENVELOPES
                ):
                    task.observe(message.envelope)
            except McppError as error:
                logger.warning("cannot read task %s again: %s", task.record.id, error)

    # --- what clients do ---

    async def begin(self, participant: str, text: str, context_id: str) -> ServedTask:
        """Ask a participant, in a context of its own. Raises TaskError and McppError."""
        if len(self._open) >= MAX_OPEN:
            raise TaskError("too many tasks are open")
        try:
            await self._pod.wait_for_presence(participant, _NEWS_SECONDS)
        except AbsentError:
            raise TaskError(f"{participant} is not in the pod") from None
        about: dict[str, Any] = {METADATA: {"participant": participant, "context": context_id}}
        scope = self._pod.context(CONTEXT_TYPE, title=text[:100], **about)
        task = ServedTask(TaskRecord(scope.id, self._pod.me, participant, context_id))
        self._open[scope.id] = task
        try:
            task.observe(await scope.send(kinds.CHAT, text, to=participant))
        except BaseException:
            del self._open[scope.id]
            raise
        self._pod.start_soon(self._attend, task)
        return task

    async def find(self, participant: str, id: str) -> ServedTask:
        """Return a participant's task, from the log if it has ended. Raises NoTaskError."""
        task = self._open.get(id) or await self._load(id)
        if task.record.participant != participant:
            raise NoTaskError(id)
        return task

    async def answer(self, task: ServedTask, given: ClientAnswer) -> None:
        """Decide on the proposal or answer the question that the client was shown last.

        Raises TaskError and Refused.
        """
        record = task.record
        open = record.waiting.get(task.shown or "")
        if open is None and (task.shown is not None or not record.waiting):
            raise TaskError("what the task waited for is settled; get the task to see its state")
        open = open or next(iter(record.waiting.values()))
        if is_question(open):
            question = self._questions.get(open.id)
            if question is None:
                raise TaskError("the question is no longer open")
            question.answer(given)
            await task.wait_for(lambda: open.id not in record.waiting, _SETTLE_SECONDS)
            return
        if given.approves:
            task.observe(await self._pod.approve(open))
        elif (reason := given.rejection) is not None:
            task.observe(await self._pod.reject(open, "rejected", reason or None))
        else:
            raise TaskError('answer "approve", or "reject" with a reason')

    async def cancel(self, task: ServedTask) -> None:
        """Give up a task. Raises TaskError if it has ended."""
        if task.record.is_over:
            raise TaskError("the task has ended")
        asked = next((each.id for each in reversed(task.record.said) if each.is_client), None)
        for id in task.record.waiting:
            if id in self._questions:
                self._questions[id].answer(ClientAnswer("cancel"))
        if asked is not None:
            await self._pod.notify(
                rpc.CANCELLED,
                {"requestId": asked, "reason": "the client cancelled the task"},
                to=[task.record.participant],
                correlation_id=asked,
                context=task.record.id,
            )
        await self._conclude(task, Conclusion(outcome="cancelled"))

    async def list(self) -> AsyncIterator[TaskRecord]:
        """Yield the tasks, those that changed last first; of ended ones only how they ended."""
        ended: dict[str, Any] = {}
        listed: set[str] = set()
        ours = filters.sender(self._pod.me) & filters.with_types(CONTEXT_TYPE) & ~filters.main_only
        past = self._pod.history(ours, order="newest", limit=_MAX_ENVELOPES)
        found: list[TaskRecord] = []
        async for message in past:
            envelope = message.envelope
            if envelope.context is None:
                continue
            if envelope.kind == kinds.CONCLUSION:
                ended.setdefault(envelope.context.id, envelope)
            record = TaskRecord.from_first(envelope, self._pod.me)
            if record is None or record.id in listed or envelope.kind != kinds.CHAT:
                continue
            listed.add(record.id)
            known = self._open.get(record.id)
            if known is not None:
                record = known.record
            else:
                record.observe(envelope)
                if record.id in ended:
                    record.observe(ended[record.id])
            found.append(record)
        for record in sorted(found, key=lambda each: each.updated, reverse=True):
            yield record

    # --- questions of the pod ---

    async def elicit(self, params: dict[str, Any], call: ToolCall) -> dict[str, Any]:
        """Serve `elicitation/create`: the client of the task in whose context it is answers."""
        task = self._task_of(Message(self._pod, call.envelope))
        if task is None:
            raise rpc.Failure(rpc.INVALID_PARAMS, "this question belongs to no task")
        question = self._questions[call.envelope.id] = ClientQuestion(params)
        try:
            return await question.wait()
        finally:
            del self._questions[call.envelope.id]

    # --- inside ---

    async def _load(self, id: str) -> ServedTask:
        """Read a task from the log, and attend to it if it is open. Raises NoTaskError."""
        if not _is_id(id):
            raise NoTaskError(id)
        try:
            found = await self._pod.context_of(id, limit=_MAX_ENVELOPES)
        except (NotInHistoryError, Refused):
            raise NoTaskError(id) from None
        mine = [each for each in found.messages if each.context and each.context.id == id]
        record = TaskRecord.from_first(mine[0].envelope, self._pod.me) if mine else None
        if record is None or found.node.creator != self._pod.me:
            raise NoTaskError(id)
        for message in found.messages:
            record.observe(message.envelope)
        if found.conclusion is not None:
            record.observe(found.conclusion)
        task = ServedTask(record)
        if not record.is_over:
            known = self._open.setdefault(id, task)  # another request may have been faster
            if known is not task:
                return known
            self._pod.start_soon(self._attend, task)
        return task

    async def _attend(self, task: ServedTask) -> None:
        """Conclude a task when it is answered, or when no answer is to be expected any more."""
        record, pod = task.record, self._pod
        problem = f"{record.participant} did not answer within {TASK_SECONDS:g} s"
        try:
            with anyio.move_on_after(TASK_SECONDS):
                await pod.wait_for_presence(record.participant, _PRESENCE_SECONDS)
                with pod.while_present(record.participant) as presence:
                    await task.settled.wait()
                if presence.cancelled_caught:
                    problem = f"{record.participant} left the pod"
        except McppError as error:
            problem = str(error)
        if record.is_over:
            return
        if record.answer is not None:
            await self._conclude(task, Conclusion(text=cut(record.answer.text)))
        else:
            failure = ContextFailure(type="NoAnswer", message=problem)
            await self._conclude(task, Conclusion(outcome="failed", error=failure))

    async def _conclude(self, task: ServedTask, conclusion: Conclusion) -> None:
        scope = self._pod.context(CONTEXT_TYPE, id=task.record.id)
        task.observe(await scope.conclude(conclusion))
        self._open.pop(task.record.id, None)
