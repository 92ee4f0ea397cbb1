"""Requests of A2A clients about one participant."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Final
from uuid import uuid4

from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.request_handler import RequestHandler, validate_request_params
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    ContentTypeNotSupportedError,
    GetTaskRequest,
    InternalError,
    InvalidParamsError,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    PushNotificationNotSupportedError,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskNotCancelableError,
    TaskNotFoundError,
    TaskState,
    UnsupportedOperationError,
)
from a2a.utils.task import apply_history_length, decode_page_token, encode_page_token

from mcpp import McppError
from mcpp_agents.a2a.parts import data_of, text_of_parts
from mcpp_agents.a2a.serving.board import NoTaskError, TaskBoard, TaskError
from mcpp_agents.a2a.serving.client_answers import ClientAnswer
from mcpp_agents.a2a.serving.served_task import STATES, Event, ServedTask

# How long a request that is not streamed waits for the end of its task.
BLOCKING_SECONDS: Final = 600.0
_MAX_ID_CHARACTERS: Final = 200
_MAX_PAGE: Final = 100
_PAGE: Final = 50


class ParticipantHandler(RequestHandler):
    """Serves one participant. The tasks are the board's."""

    def __init__(self, participant: str, board: TaskBoard) -> None:
        self._participant = participant
        self._board = board

    # --- messages ---

    @validate_request_params
    async def on_message_send(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> Task | Message:
        """Begin or continue a task; return it when it has ended or waits for the client."""
        with _translated():
            task = await self._take(params)
            if not params.configuration.return_immediately:
                await task.wait_for(lambda: task.record.phase != "working", BLOCKING_SECONDS)
        return apply_history_length(task.view(), params.configuration)

    @validate_request_params
    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        """Begin or continue a task; yield its events until it has ended or waits."""
        with _translated():
            task = await self._take(params)
        async with aclosing(task.follow(until_waiting=True)) as events:
            async for event in events:
                yield event

    async def _take(self, params: SendMessageRequest) -> ServedTask:
        if params.configuration.HasField("task_push_notification_config"):
            raise PushNotificationNotSupportedError
        message = params.message
        text, data = _read(message)
        if not message.task_id:
            if len(message.context_id) > _MAX_ID_CHARACTERS:
                raise InvalidParamsError("the context's id is too long")
            if not text.strip():
                raise InvalidParamsError("the message has no text")
            return await self._board.begin(
                self._participant, text, message.context_id or str(uuid4())
            )
        task = await self._board.find(self._participant, message.task_id)
        if message.context_id not in ("", task.record.context_id):
            raise InvalidParamsError("the task belongs to another context")
        if task.record.is_over:
            raise UnsupportedOperationError("the task has ended; begin another one")
        if task.record.phase != "waiting":
            raise UnsupportedOperationError("the task is being worked on and waits for nothing")
        await self._board.answer(task, ClientAnswer(text, data))
        return task

    # --- tasks ---

    @validate_request_params
    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task:
        """Return a task."""
        with _translated():
            task = await self._board.find(self._participant, params.id)
        return apply_history_length(task.view(), params)

    @validate_request_params
    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task:
        """Cancel a task."""
        with _translated():
            task = await self._board.find(self._participant, params.id)
            if task.record.is_over:
                raise TaskNotCancelableError
            await self._board.cancel(task)
        return task.view()

    @validate_request_params
    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        """Yield a task as it is, then its events until it has ended."""
        with _translated():
            task = await self._board.find(self._participant, params.id)
        if task.record.is_over:
            raise UnsupportedOperationError("the task has ended; get it instead")
        async with aclosing(task.follow()) as events:
            async for event in events:
                yield event

    @validate_request_params
    async def on_list_tasks(
        self, params: ListTasksRequest, context: ServerCallContext
    ) -> ListTasksResponse:
        """Return a page of tasks, those that changed last first."""
        size = params.page_size if params.HasField("page_size") else _PAGE
        if not 1 <= size <= _MAX_PAGE:
            raise InvalidParamsError(f"a page has 1 to {_MAX_PAGE} tasks")
        after = decode_page_token(params.page_token) if params.page_token else ""
        with _translated():
            ids = [each.id async for each in self._board.list() if self._is_listed(each, params)]
            start = ids.index(after) + 1 if after in ids else 0
            chosen = ids[start : start + size]
            tasks = [(await self._board.find(self._participant, id)).view() for id in chosen]
        if not params.include_artifacts:
            for task in tasks:
                task.ClearField("artifacts")
        more = start + size < len(ids)
        return ListTasksResponse(
            tasks=[apply_history_length(task, params) for task in tasks],
            next_page_token=encode_page_token(chosen[-1]) if more else "",
            page_size=size,
            total_size=len(ids),
        )

    def _is_listed(self, record: Any, params: ListTasksRequest) -> bool:
        wanted = params.status != TaskState.TASK_STATE_UNSPECIFIED
        return (
            record.participant == self._participant
            and params.context_id in ("", record.context_id)
            and (not wanted or STATES[record.phase] == params.status)
            and (
                not params.HasField("status_timestamp_after")
                or record.updated >= params.status_timestamp_after.ToJsonString()
            )
        )

    # --- what is not offered ---

    async def on_get_extended_agent_card(
        self, params: Any, context: ServerCallContext
    ) -> AgentCard:
        """Refuse: there is only the public card."""
        raise UnsupportedOperationError

    async def on_create_task_push_notification_config(
        self, params: Any, context: ServerCallContext
    ) -> Any:
        """Refuse: a client must not make this process send requests to addresses it chooses."""
        raise PushNotificationNotSupportedError

    async def on_get_task_push_notification_config(
        self, params: Any, context: ServerCallContext
    ) -> Any:
        """Refuse: there are none."""
        raise PushNotificationNotSupportedError

    async def on_list_task_push_notification_configs(
        self, params: Any, context: ServerCallContext
    ) -> Any:
        """Refuse: there are none."""
        raise PushNotificationNotSupportedError

    async def on_delete_task_push_notification_config(
        self, params: Any, context: ServerCallContext
    ) -> None:
        """Refuse: there are none."""
        raise PushNotificationNotSupportedError


def _read(message: Message) -> tuple[str, dict[str, Any] | None]:
    """Return a client's message as text, and its JSON object. Raises for files with bytes."""
    data: dict[str, Any] | None = None
    for part in message.parts:
        kind = part.WhichOneof("content")
        if kind == "raw" and not part.media_type.startswith("text/"):
            raise ContentTypeNotSupportedError("send text or JSON; files only by their address")
        if kind == "data":
            value = data_of(part)
            data = value if isinstance(value, dict) else None
    return text_of_parts(message.parts), data


@contextmanager
def _translated() -> Iterator[None]:
    """Raise errors of ours as the protocol's."""
    try:
        yield
    except NoTaskError:
        raise TaskNotFoundError from None
    except TaskError as error:
        raise UnsupportedOperationError(str(error)) from None
    except McppError as error:
        raise InternalError(str(error)) from None
