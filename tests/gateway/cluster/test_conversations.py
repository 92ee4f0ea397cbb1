"""Live text, loops and cards over two gateways with a real NATS server."""

import anyio
import pytest

import mcpp
from mcpp import Options, Refused
from mcpp_gateway import config
from mcpp_gateway.cluster.nats_servers import NatsServers
from mcpp_gateway.config import Config
from tests.gateway.cluster.test_gateways import gateways, url
from tests.gateway.sockets import token

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
QUICK = Options(backoff=lambda attempt: 0.02, keep_trying=True)


def configure(nats: NatsServers) -> Config:
    lines = ["[gateway]", "port = 0", "drain_seconds = 1.0", "[limits]", "max_hops = 3"]
    lines += ["[log]", 'kind = "jetstream"', f'path = "{nats.folder}"', "[cluster]"]
    lines += [f'servers = ["{nats.addresses[0]}"]', "replicas = 1"]
    for name in ("anna", "bot"):
        lines += [f"[pods.demo.participants.{name}]", f'token = "{token(name)}"']
        lines += ['capabilities = [{ kind = "*" }]', f"person = {str(name == 'anna').lower()}"]
    return config.parse("\n".join(lines), {})


@pytest.mark.rule("G-83", "G-84", "G-86")
async def test_live_text_cards_and_loops_hold_over_two_gateways(nats: NatsServers) -> None:
    async with (
        gateways(configure(nats)) as (first, second),
        mcpp.connect(
            f"{url(first)},{url(second)}", token=token("anna"), live=True, options=QUICK
        ) as anna,
        mcpp.connect(f"{url(second)},{url(first)}", token=token("bot"), options=QUICK) as bot,
    ):
        with anyio.fail_after(20):
            await bot.cards.announce({"description": "A bot.", "tools": []})
            card = await anna.cards.get("bot", wait_seconds=5)
            assert card is not None
            assert card.description == "A bot."
            async with bot.stream() as out:
                await out.write("across")
                message = await anext(anna)
                while message.kind != "live/text":
                    message = await anext(anna)
                assert message.payload == {"offset": 0, "text": "across"}
            assert (await anext(anna)).id == out.id
            await bot.send("chat", "two")
            await bot.send("chat", "three")
            with pytest.raises(Refused, match="without a person"):
                await bot.send("chat", "four")
            # Another gateway decides, and reads the hops and the cards from the log.
            pods = {gateway: gateway.pods["demo"] for gateway in (first, second)}
            (leader,) = [each for each, pod in pods.items() if getattr(pod, "is_leader", False)]
            await leader.drain()
            with pytest.raises(Refused, match="without a person"):
                await bot.send("chat", "five")
            await anna.send("chat", "go on")
            await bot.send("chat", "six")
            assert anna.participants["bot"].card == bot.participants["bot"].card is not None
