"""Sampling by a model agent, for participants that ask for it."""

import json
from typing import Any

import anyio
import pytest

from mcpp.errors import RemoteError
from mcpp.testing import MemoryPod
from mcpp_agents.model import ModelAgent, ModelLimits
from mcpp_agents.model.apis.openai_chat import OpenAI
from tests.agents.model.model_server import Scripted, model_server
from tests.agents.processes import BOUND

pytestmark = pytest.mark.anyio
REQUEST: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": {"type": "text", "text": "Which city?"}},
        {"role": "assistant", "content": {"type": "text", "text": "Of which country?"}},
        {"role": "user", "content": [{"type": "text", "text": "Norway"}]},
    ],
    "systemPrompt": "Answer in one word.",
    "maxTokens": 50,
}


@pytest.mark.rule("P-61")
async def test_a_model_answers_a_server_only_if_its_operator_allows_it(pod: MemoryPod) -> None:
    with model_server([Scripted("Oslo")]) as server, anyio.fail_after(BOUND):
        provider = OpenAI("m", api_key="k", base_url=f"{server.url}/v1")
        willing = ModelAgent("mind", provider, samples=True, limits=ModelLimits(reply_tokens=20))
        closed = ModelAgent("closed", provider)
        async with (
            pod.run(willing.participant),
            pod.run(closed.participant),
            pod.connect("bridge") as bridge,
        ):
            with pytest.raises(RemoteError) as refused:
                await bridge.request("closed", "sampling/createMessage", REQUEST)
            assert refused.value.code == -32601
            answer = await bridge.request("mind", "sampling/createMessage", REQUEST)
            invalid = [
                REQUEST | {"messages": []},
                REQUEST | {"messages": [{"role": "system", "content": "?"}]},
                REQUEST | {"maxTokens": 0},
            ]
            for params in invalid:
                with pytest.raises(RemoteError, match=r"-32602"):
                    await bridge.request("mind", "sampling/createMessage", params)
    assert answer["content"] == {"type": "text", "text": "Oslo"}
    assert answer["stopReason"] == "endTurn"
    [request] = server.requests
    assert request["max_completion_tokens"] == 20
    shown = json.dumps(request["messages"])
    assert all(text in shown for text in ("Which city?", "Of which country?", "Norway", "one word"))
    assert server.problems == []
