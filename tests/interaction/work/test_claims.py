"""Claims: one participant at a time holds a name; groups that share tasks by them."""

import random
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack

import anyio
import anyio.lowlevel
import pytest

import mcpp
from mcpp import filters
from mcpp.errors import ClaimHeldError, ClaimLostError
from mcpp.testing import MemoryPod
from tests.interaction.conftest import AnyPod

pytestmark = pytest.mark.anyio

WAIT = 20
UNLIMITED = {"messages_per_second": 1_000_000, "burst": 10_000}


@pytest.mark.rule("P-55")
async def test_a_claim_is_held_by_one_until_it_is_released(harness: AnyPod) -> None:
    async with harness.connect("ada") as ada, harness.connect("bob") as bob:
        async with ada.claim("task-42") as first:
            assert (first.holder, first.was_done) == ("ada", False)
            with pytest.raises(ClaimHeldError) as held:
                await bob.claim("task-42", wait=0).__aenter__()
            assert (held.value.name, held.value.holder) == ("task-42", "ada")
            assert bob.claims["task-42"].holder == "ada"
            async with bob.claim("task-43"):
                pass
        async with bob.claim("task-42") as second:
            assert second.token > first.token
        entries = [message async for message in ada.history(filters.kind("claim:task-42"))]
        assert [first.token, second.token] == [entries[0].position, entries[-1].position]
    with pytest.raises(mcpp.EncodeError):
        ada.claim("not a name")


@pytest.mark.rule("P-55")
async def test_a_claim_passes_on_to_those_who_wait(harness: AnyPod) -> None:
    order: list[tuple[str, int]] = []
    async with AsyncExitStack() as stack:
        pods = [await stack.enter_async_context(harness.connect(name)) for name in "abcd"]

        async def take(pod: mcpp.Pod) -> None:
            async with pod.claim("lock") as claim:
                order.append((pod.me, claim.token))
                await anyio.lowlevel.checkpoint()
                assert order[-1] == (pod.me, claim.token)

        with anyio.fail_after(WAIT):
            async with anyio.create_task_group() as tasks:
                for pod in (*pods, *pods):
                    tasks.start_soon(take, pod)
    assert Counter(name for name, _ in order) == dict.fromkeys("abcd", 2)
    tokens = [token for _, token in order]
    assert tokens == sorted(tokens)


@pytest.mark.rule("P-55")
async def test_the_leave_of_a_holder_ends_its_claim(harness: AnyPod) -> None:
    async with harness.connect("bob") as bob:
        taken = anyio.Event()

        async def hold() -> None:
            async with harness.connect("ada") as ada, ada.claim("task"):
                taken.set()
                await anyio.sleep_forever()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold)
            with anyio.fail_after(WAIT):
                await taken.wait()
            with pytest.raises(ClaimHeldError):
                await bob.claim("task", wait=0.05).__aenter__()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(WAIT):
            async with bob.claim("task"):
                pass


@pytest.mark.rule("P-55")
async def test_a_holder_whose_line_was_cut_loses_its_claim(harness: AnyPod) -> None:
    # Long enough away that its leave is logged; a line that is only cut is no leave.
    slowly = mcpp.Options(backoff=lambda attempt: 0.5)
    async with harness.connect("ada", options=slowly) as ada, harness.connect("bob") as bob:
        with anyio.fail_after(WAIT), pytest.raises(ClaimLostError):  # noqa: PT012
            async with ada.claim("task"):
                harness.cut("ada")
                async with bob.claim("task"):
                    await anyio.sleep_forever()


@pytest.mark.rule("P-55")
async def test_void_claims_do_not_hide_the_holder_however_many_there_are() -> None:
    """A program tries a held name once a minute, or a participant floods it, and leaves."""
    pod = MemoryPod(limits=UNLIMITED)
    async with pod.connect("ada") as ada, ada.claim("nightly"):
        async with pod.connect("mallory") as mallory:
            for _ in range(450):
                await mallory.send("claim:nightly", {}, wait=False)
        async with pod.connect("bob") as bob:
            with pytest.raises(ClaimHeldError) as held:
                await bob.claim("nightly", wait=0).__aenter__()
            assert held.value.holder == "ada"


@pytest.mark.rule("P-55")
async def test_a_name_is_read_from_the_participants_last_claim_on() -> None:
    pod = MemoryPod()
    async with pod.connect("ada") as ada, pod.connect("bob") as bob:
        async with ada.claim("lock") as first:
            first.done()
        for _ in range(2):  # bob's claim lies between two of ada's
            async with bob.claim("lock") as claim:
                assert claim.was_done
                with pytest.raises(ClaimHeldError):
                    await ada.claim("lock", wait=0).__aenter__()
            async with ada.claim("lock") as later:
                assert later.was_done
                assert later.token > claim.token > first.token
        pod.restart()  # the log no longer has the claim
        async with ada.claim("lock") as anew:
            assert not anew.was_done


@pytest.mark.rule("P-55")
async def test_a_lost_log_ends_claims(harness: AnyPod) -> None:
    async with harness.connect("ada") as ada:
        with anyio.fail_after(WAIT), pytest.raises(ClaimLostError):  # noqa: PT012
            async with ada.claim("task"):
                harness.restart()
                await anyio.sleep_forever()


@pytest.mark.rule("P-55")
async def test_a_filter_does_not_hide_the_claims_of_others(harness: AnyPod) -> None:
    async with (
        harness.connect("ada") as ada,
        harness.connect("bob", filter=filters.kind("chat")) as bob,
    ):
        released = anyio.Event()

        async def wait() -> None:
            async with bob.claim("task"):
                assert released.is_set()

        with anyio.fail_after(WAIT):
            async with anyio.create_task_group() as tasks, ada.claim("task"):
                tasks.start_soon(wait)
                while "claim:task" not in {message.kind async for message in bob.history(limit=9)}:
                    pass
                released.set()


async def test_tasks_of_one_participant_wait_for_each_other(harness: AnyPod) -> None:
    inside = 0

    async def take(pod: mcpp.Pod) -> None:
        nonlocal inside
        async with pod.claim("lock"):
            inside += 1
            assert inside == 1
            await anyio.lowlevel.checkpoint()
            inside -= 1

    async with harness.connect("ada") as ada:
        with anyio.fail_after(WAIT):
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(take, ada)
        assert dict(ada.claims) == {}


class Board:
    """Tasks that workers run: how often, and that never two run one at a time."""

    def __init__(self, tasks: int) -> None:
        self.runs: Counter[str] = Counter()
        self.done: set[str] = set()
        self.finished = anyio.Event()
        self._tasks = tasks
        self._active: set[str] = set()

    def worker(self, name: str, pause: Callable[[], float] = lambda: 0.0) -> mcpp.Participant:
        agent = mcpp.Participant(name)

        @agent.on("task", claim=lambda message: message.id)
        async def work(message: mcpp.Message) -> None:
            assert message.id not in self._active
            self._active.add(message.id)
            try:
                self.runs[message.text] += 1
                await anyio.sleep(pause())
            finally:
                self._active.remove(message.id)
            self.done.add(message.text)
            if len(self.done) == self._tasks:
                self.finished.set()

        return agent


@pytest.mark.rule("P-56")
async def test_a_group_runs_each_task_once(harness: AnyPod) -> None:
    board = Board(tasks=12)
    async with AsyncExitStack() as stack:
        for name in ("w1", "w2", "w3"):
            await stack.enter_async_context(harness.run(board.worker(name)))
        ada = await stack.enter_async_context(harness.connect("ada"))
        for number in range(12):
            await ada.send("task", {"text": str(number)})
        with anyio.fail_after(WAIT):
            await board.finished.wait()
    assert board.runs == {str(number): 1 for number in range(12)}


@pytest.mark.rule("P-56")
@pytest.mark.parametrize("seed", range(4))
async def test_workers_that_come_and_go_lose_no_task_and_run_none_twice_at_a_time(
    seed: int,
) -> None:
    choice = random.Random(seed)
    pod, board = MemoryPod(), Board(tasks=20)
    names = ("w1", "w2", "w3")
    scopes: dict[str, anyio.CancelScope] = {}

    async def run(name: str) -> None:
        while not board.finished.is_set():
            with anyio.CancelScope() as scopes[name]:
                async with pod.run(board.worker(name, lambda: choice.uniform(0, 0.02))):
                    await board.finished.wait()

    async with pod.connect("ada") as ada:
        with anyio.fail_after(WAIT):
            async with anyio.create_task_group() as tasks:
                for name in names:
                    tasks.start_soon(run, name)
                await ada.wait_for_presence("w1", WAIT)
                for number in range(20):
                    await ada.send("task", {"text": str(number)})
                    await anyio.sleep(choice.uniform(0, 0.01))
                    if choice.random() < 0.4:
                        scopes[choice.choice(names)].cancel()
                await board.finished.wait()
    assert board.done == {str(number) for number in range(20)}


@pytest.mark.rule("P-56")
async def test_tasks_that_were_sent_while_no_worker_was_there_are_done_later(
    harness: AnyPod,
) -> None:
    board = Board(tasks=3)
    async with harness.connect("ada") as ada:
        await ada.send("task", {"text": "older than the group"})
        async with harness.run(board.worker("w1")):
            await ada.wait_for_presence("w1", WAIT)
            await ada.send("task", {"text": "first"})
            with anyio.fail_after(WAIT):
                while not (await anext(ada)).kind.startswith("release:"):
                    pass
        await ada.send("task", {"text": "second"})
        await ada.send("task", {"text": "third"})
        async with harness.run(board.worker("w2")):
            with anyio.fail_after(WAIT):
                await board.finished.wait()
    assert board.runs == {"first": 1, "second": 1, "third": 1}


@pytest.mark.rule("P-56")
async def test_a_long_queue_of_tasks_is_done_by_workers_that_come_back() -> None:
    pod = MemoryPod(limits=UNLIMITED)
    done = {text: anyio.Event() for text in ("known", "oldest", "later")}

    def worker() -> mcpp.Participant:
        agent = mcpp.Participant("w1")

        @agent.on("task", claim=lambda message: message.text)
        async def work(message: mcpp.Message) -> None:
            done[message.text].set()

        return agent

    with anyio.fail_after(2 * WAIT):
        async with pod.connect("ada") as ada:
            async with pod.run(worker()):
                await ada.wait_for_presence("w1", WAIT)
                await ada.send("task", {"text": "known"})
                await done["known"].wait()
            await ada.send("task", {"text": "oldest"})
            for _ in range(2_500):  # the same task again and again is one
                await ada.send("task", {"text": "later"}, wait=False)
            async with pod.run(worker()):
                await done["oldest"].wait()


@pytest.mark.rule("P-56")
async def test_a_handler_that_raises_has_handled_its_task(harness: AnyPod) -> None:
    agent, calls = mcpp.Participant("worker"), 0

    @agent.on("task", claim=lambda message: message.id)
    async def work(message: mcpp.Message) -> None:
        nonlocal calls
        calls += 1
        raise ValueError("broken")

    async with harness.connect("ada") as ada:
        with pytest.raises(ValueError, match="broken"):  # noqa: PT012
            async with harness.run(agent):
                await ada.wait_for_presence("worker", WAIT)
                await ada.send("task", {})
                with anyio.fail_after(WAIT):
                    await anyio.sleep_forever()
    assert calls == 1


@pytest.mark.parametrize("wait", [0, 0.02])
async def test_a_task_of_the_same_participant_does_not_wait_longer_than_it_says(
    harness: AnyPod, wait: float
) -> None:
    async with harness.connect("ada") as ada, ada.claim("lock"):
        with pytest.raises(ClaimHeldError):
            await ada.claim("lock", wait=wait).__aenter__()


@pytest.mark.parametrize("name", [None, "no name", 5, KeyError])
async def test_a_task_without_a_name_is_skipped(name: object) -> None:
    pod, board, agent = MemoryPod(), Board(tasks=1), mcpp.Participant("worker")

    def named(message: mcpp.Message) -> str:
        if message.text == "good":
            return message.id
        if name is KeyError:
            raise KeyError("name")
        return name  # type: ignore[return-value]

    @agent.on("task", claim=named)
    async def work(message: mcpp.Message) -> None:
        board.done.add(message.text)
        board.finished.set()

    async with pod.run(agent), pod.connect("ada") as ada:
        await ada.send("task", {"text": "bad"})
        await ada.send("task", {"text": "good"})
        with anyio.fail_after(WAIT):
            await board.finished.wait()
    assert board.done == {"good"}
