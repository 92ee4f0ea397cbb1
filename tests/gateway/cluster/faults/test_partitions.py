"""A real cluster under load while its network is partitioned, both ways and one way."""

from pathlib import Path
from random import Random

import anyio
import pytest

from tests.gateway.cluster.faults.namespaces import NamespacedCluster, Namespaces, are_available
from tests.gateway.cluster.faults.test_faults import cluster_under_load, progress
from tests.gateway.durability.workload import Witness

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(not are_available(), reason="needs root and `ip netns`"),
]


async def partition(namespaces: Namespaces, witnesses: list[Witness], random: Random) -> None:
    """Cut some pairs for a while, then heal."""
    pairs = [
        (one, other)
        for one in range(namespaces.size)
        for other in range(namespaces.size)
        if one != other and max(one, other) >= 3  # gateways do not talk to each other directly
    ]
    style = random.choice(("pair", "one way", "isolated"))
    one, other = random.choice(pairs)
    cuts = [(one, other)]
    if style == "pair":
        cuts.append((other, one))
    elif style == "isolated":
        cuts = [pair for pair in pairs if one in pair]
    for cut in cuts:
        namespaces.cut(*cut)
    await anyio.sleep(random.uniform(1.0, 6.0))  # the fault itself
    for cut in cuts:
        namespaces.join(*cut)
    await progress(witnesses)


async def run(folder: Path, seed: int, faults: int) -> None:
    random = Random(seed)
    namespaces = Namespaces()
    with namespaces.existing():
        cluster = NamespacedCluster(folder, 4, namespaces)
        async with cluster_under_load(cluster) as witnesses:
            for _ in range(faults):
                await partition(namespaces, witnesses, random)


@pytest.mark.rule("G-52", "N-01", "N-05")
async def test_partitions_under_load_lose_and_repeat_nothing(tmp_path: Path) -> None:
    await run(tmp_path, 1, 3)


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(5))
async def test_fifty_partitions_under_load_lose_and_repeat_nothing(
    tmp_path: Path, seed: int
) -> None:
    await run(tmp_path, seed, 10)
