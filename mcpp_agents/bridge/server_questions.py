"""The questions and log messages that the SDK's client receives from a server, as callbacks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import mcp_types as types
from mcp.client.session import ClientRequestContext
from pydantic import BaseModel

from mcpp.protocol import rpc
from mcpp.protocol.rpc import Failure
from mcpp_agents.bridge.questions import ELICIT, LIST_ROOTS, SAMPLE, Questions

_LOG: Final = "notifications/message"
_MAX_LOG_CHARS: Final = 10_000


@dataclass(frozen=True, slots=True)
class ServerQuestions:
    """Passes a server's requests on to the pod, and its log messages to those who call it."""

    questions: Questions

    @property
    def callbacks(self) -> Mapping[str, Any]:
        """The callbacks for the SDK's client."""
        return {
            "elicitation_callback": self._elicit,
            "sampling_callback": self._sample,
            "list_roots_callback": self._list_roots,
            "logging_callback": self._log,
        }

    async def _elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        answer = await self._ask(ELICIT, params)
        if isinstance(answer, types.ErrorData):
            return answer
        return types.ElicitResult.model_validate(answer, by_name=False)

    async def _sample(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData:
        answer = await self._ask(SAMPLE, params)
        if isinstance(answer, types.ErrorData):
            return answer
        model = types.CreateMessageResultWithTools if params.tools else types.CreateMessageResult
        return model.model_validate(answer, by_name=False)

    async def _list_roots(
        self, context: ClientRequestContext
    ) -> types.ListRootsResult | types.ErrorData:
        answer = await self._ask(LIST_ROOTS, None)
        if isinstance(answer, types.ErrorData):
            return answer
        return types.ListRootsResult.model_validate(answer, by_name=False)

    async def _ask(self, method: str, params: BaseModel | None) -> dict[str, Any] | types.ErrorData:
        given = {} if params is None else _to_json(params)
        try:
            return await self.questions.ask(method, given)
        except Failure as failure:
            return types.ErrorData(code=failure.code, message=failure.message, data=failure.data)

    async def _log(self, params: types.LoggingMessageNotificationParams) -> None:
        """Pass a log message on to the callers, or to the pod if the server works on no call.

        Like progress, it is left out while other envelopes wait to be sent (P-44).
        """
        pod = self.questions.pod
        given = _to_json(params)
        if pod is None or pod.is_congested or len(str(given)) > _MAX_LOG_CHARS:
            return
        calls = self.questions.calls
        for call in calls:
            context = call.envelope.context
            await pod.notify(
                _LOG,
                rpc.with_meta(given, {rpc.CALL: call.envelope.id}),
                to=[call.sender],
                correlation_id=call.envelope.id,
                context=None if context is None else context.id,
                wait=False,
            )
        if not calls:
            await pod.notify(_LOG, given, wait=False)


def _to_json(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)
