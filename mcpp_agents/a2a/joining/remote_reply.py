"""What a remote agent answers: the events of a task, put together and checked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from a2a.types import Artifact, Part, StreamResponse, Task, TaskState, TaskStatus

from mcpp import McppError
from mcpp_agents.a2a.parts import content_of_part, data_of, text_of_parts

# Bounds on what one answer may have, whatever the agent sends.
_MAX_CHARACTERS: Final = 1024 * 1024
_MAX_ARTIFACTS: Final = 100
_MAX_PARTS: Final = 10_000
_MAX_ID_CHARACTERS: Final = 512

_WORKING: Final = (TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING)
_UNSUCCESSFUL: Final = (
    TaskState.TASK_STATE_FAILED,
    TaskState.TASK_STATE_REJECTED,
    TaskState.TASK_STATE_UNSPECIFIED,
)


class RemoteAgentError(McppError):
    """A remote agent cannot be reached, or answered in a way that the protocol does not allow."""


@dataclass(frozen=True, slots=True)
class ReplyUpdate:
    """What one event adds: a piece of the answer, or a remark about the work."""

    text: str = ""
    remark: str = ""


@dataclass(slots=True)
class RemoteReply:
    """The answer to one message, as far as it has arrived. Owns its artifacts.

    `task_id` and `context_id` are those that the message names; the agent's answer must have the
    same, and otherwise sets them.
    """

    task_id: str = ""
    context_id: str = ""
    state: TaskState | None = None  # None: no task, only a message
    message: str = ""  # what the agent said last, about the task or instead of one
    artifacts: dict[str, list[Part]] = field(default_factory=dict)
    is_answered: bool = False
    _text: str = ""
    _characters: int = 0
    _parts: int = 0

    @property
    def is_working(self) -> bool:
        """Whether the agent still works on it."""
        return self.state in _WORKING

    @property
    def needs_input(self) -> bool:
        """Whether the agent waits for an answer to a question."""
        return self.state == TaskState.TASK_STATE_INPUT_REQUIRED

    @property
    def needs_login(self) -> bool:
        """Whether the agent waits for an authorization."""
        return self.state == TaskState.TASK_STATE_AUTH_REQUIRED

    @property
    def outcome(self) -> str:
        """How the task ended, as a context ends: concluded, failed, cancelled."""
        if self.state == TaskState.TASK_STATE_CANCELED:
            return "cancelled"
        return "failed" if self.state in _UNSUCCESSFUL else "concluded"

    @property
    def text(self) -> str:
        """The answer: the artifacts, or what the agent said."""
        return self._text or self.message

    @property
    def content(self) -> list[dict[str, Any]]:
        """The answer as content of a tool result; adjacent texts are joined."""
        found: list[dict[str, Any]] = []
        for parts in self.artifacts.values():
            is_new = True
            for part in parts:
                each = content_of_part(part)
                if each["type"] == "text" and not is_new and found[-1]["type"] == "text":
                    found[-1]["text"] += each["text"]
                else:
                    found.append(each)
                is_new = False
        return found or [{"type": "text", "text": self.message}]

    @property
    def data(self) -> Mapping[str, Any] | None:
        """The JSON object that the answer consists of, if it is a single one."""
        parts = [part for some in self.artifacts.values() for part in some]
        if len(parts) != 1 or not parts[0].HasField("data"):
            return None
        value = data_of(parts[0])
        return value if isinstance(value, dict) else None

    def take(self, event: StreamResponse) -> ReplyUpdate:
        """Add an event and return what is new. Raises RemoteAgentError."""
        self.is_answered = True
        match event.WhichOneof("payload"):
            case "message":
                self._check_ids(event.message.task_id, event.message.context_id)
                self._say(event.message.parts)
                return ReplyUpdate(self.message)
            case "task":
                return self._take_task(event.task)
            case "status_update":
                update = event.status_update
                self._check_ids(update.task_id, update.context_id)
                return ReplyUpdate(remark=self._take_status(update.status))
            case "artifact_update":
                changed = event.artifact_update
                self._check_ids(changed.task_id, changed.context_id)
                self.state = self.state or TaskState.TASK_STATE_WORKING
                return ReplyUpdate(self._take_artifact(changed.artifact, changed.append))
            case _:
                raise RemoteAgentError("the agent sent an event of an unknown kind")

    def _take_task(self, task: Task) -> ReplyUpdate:
        self._check_ids(task.id, task.context_id)
        if not task.id:
            raise RemoteAgentError("the agent sent a task without an id")
        before = self._text
        for artifact in task.artifacts:
            if self.artifacts.get(artifact.artifact_id) != list(artifact.parts):
                self._take_artifact(artifact, False)
        new = self._text[len(before) :] if self._text.startswith(before) else ""
        return ReplyUpdate(new, self._take_status(task.status))

    def _take_status(self, status: TaskStatus) -> str:
        self.state = status.state
        said = self.message
        if status.HasField("message"):
            self._say(status.message.parts)
        else:
            self.message = ""
        return self.message if self.message != said else ""

    def _say(self, parts: Any) -> None:
        self._count(parts)
        self.message = text_of_parts(parts)[:_MAX_CHARACTERS]

    def _take_artifact(self, artifact: Artifact, append: bool) -> str:
        self._count(artifact.parts)
        known = self.artifacts.get(artifact.artifact_id)
        if known is not None and append:
            known.extend(artifact.parts)
            piece = text_of_parts(artifact.parts, "")
        else:
            if known is None and len(self.artifacts) >= _MAX_ARTIFACTS:
                raise RemoteAgentError(f"the agent sent more than {_MAX_ARTIFACTS} artifacts")
            self.artifacts[artifact.artifact_id] = list(artifact.parts)
            text = text_of_parts(artifact.parts, "")
            piece = f"\n\n{text}" if self._text and text else text
            if known is not None:  # replaced: what was shown is replaced by the complete reply
                texts = (text_of_parts(parts, "") for parts in self.artifacts.values())
                self._text = "\n\n".join(filter(None, texts))
                return ""
        self._text += piece
        return piece

    def _count(self, parts: Any) -> None:
        self._parts += len(parts)
        self._characters += sum(part.ByteSize() for part in parts)
        if self._characters > _MAX_CHARACTERS or self._parts > _MAX_PARTS:
            raise RemoteAgentError(f"the agent's answer has more than {_MAX_CHARACTERS} bytes")

    def _check_ids(self, task: str, context: str) -> None:
        """Set or compare the ids. Raises RemoteAgentError for those of another task."""
        if max(len(task), len(context)) > _MAX_ID_CHARACTERS:
            raise RemoteAgentError("the agent sent an id that is too long")
        if task and self.task_id and task != self.task_id:
            raise RemoteAgentError("the agent answered about another task")
        if context and self.context_id and context != self.context_id:
            raise RemoteAgentError("the agent answered in another context")
        self.task_id = self.task_id or task
        self.context_id = self.context_id or context
