"""Access control: projects, private items, diaries, pods."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpp_agents.memory import (
    AccessDenied,
    InvalidMemory,
    MemoryStore,
    OrganizationRequired,
    Principal,
    ProjectDenied,
    QuotaExceeded,
    UnknownMemory,
)
from mcpp_agents.memory.access import scope_for, view_of
from tests.agents.memory.conftest import ManualClock, rows

ALICE = Principal("alice", frozenset({"web", "api"}))
BOB = Principal("bob", frozenset({"api"}))
DEMO = Principal.for_pod("demo", granted=frozenset({"api"}))


def names(store: MemoryStore, **fields: str) -> set[str]:
    return {item.name for item in store.context("apple", **fields).items}  # type: ignore[arg-type]


@pytest.fixture
def filled(store: MemoryStore) -> MemoryStore:
    alice, bob = store.acting_as(ALICE), store.acting_as(BOB)
    alice.remember("alice private", "apple", "note")
    alice.remember("web", "apple", "note", project="web")
    alice.remember("api", "apple", "note", project="api")
    alice.remember("alice diary", "apple", "note", agent_id="runner")
    alice.remember("alice diary of web", "apple", "note", agent_id="runner", project="web")
    bob.remember("bob private", "apple", "note")
    bob.remember("bob diary", "apple", "note", agent_id="runner")
    store.acting_as(DEMO).remember("pod", "apple", "note")
    return store


@pytest.mark.rule("M-10")
def test_a_principal_sees_its_own_items_and_projects(filled: MemoryStore) -> None:
    assert names(filled.acting_as(ALICE)) == {"alice private", "web", "api"}
    assert names(filled.acting_as(BOB)) == {"bob private", "api"}


def test_a_project_narrows_a_pack_to_itself_and_private_items(filled: MemoryStore) -> None:
    assert names(filled.acting_as(ALICE), project="web") == {"alice private", "web"}


@pytest.mark.rule("M-10")
def test_a_diary_is_read_only_on_request_and_only_by_its_principal(filled: MemoryStore) -> None:
    diary = {"alice diary", "alice diary of web"}
    assert names(filled.acting_as(ALICE), agent_id="runner") == {
        "alice private",
        "web",
        "api",
        *diary,
    }
    assert names(filled.acting_as(ALICE), agent_id="runner", project="api") == {
        "alice private",
        "api",
        "alice diary",
    }
    assert "bob diary" not in names(filled.acting_as(ALICE), agent_id="runner")


def test_the_owner_sees_every_project_but_no_private_items_of_others(filled: MemoryStore) -> None:
    assert names(filled) == {"web", "api", "pod"}


@pytest.mark.rule("M-13")
def test_a_pod_sees_its_project_and_granted_ones_never_private_items(filled: MemoryStore) -> None:
    assert names(filled.acting_as(DEMO)) == {"pod", "api"}
    with pytest.raises(AccessDenied):
        filled.acting_as(DEMO).context("apple", agent_id="runner")
    with pytest.raises(AccessDenied):
        filled.acting_as(DEMO).remember("T", "c", "note", agent_id="runner")


@pytest.mark.rule("M-11")
def test_another_project_is_denied_with_the_specified_text(
    filled: MemoryStore, location: str
) -> None:
    bob = filled.acting_as(BOB)
    with pytest.raises(ProjectDenied) as refused:
        bob.context("apple", project="web")
    assert str(refused.value) == "Project access denied: web"
    with pytest.raises(ProjectDenied):
        bob.remember("T", "c", "note", project="web")
    details, _ = rows(location, "SELECT details FROM audit WHERE details LIKE '%refused%'")
    assert json.loads(details[0])["refused"] == "ProjectDenied"


@pytest.mark.rule("M-11")
def test_a_credential_without_an_organization_is_refused(store: MemoryStore) -> None:
    outsider = store.acting_as(Principal("outsider", organization=None))
    with pytest.raises(OrganizationRequired, match=r"^Organization context required$"):
        outsider.context("apple")
    with pytest.raises(OrganizationRequired):
        outsider.remember("T", "c", "note")


def test_organizations_in_one_file_do_not_see_each_other(store: MemoryStore) -> None:
    one = store.acting_as(Principal("alice", frozenset({"p"}), organization="one"))
    two = store.acting_as(Principal("alice", frozenset({"p"}), organization="two"))
    one.remember("one", "apple", "note", project="p")
    one.remember("one private", "apple", "note")
    assert names(two) == set()


@pytest.mark.rule("M-02", "M-14", "M-33", "M-35")
def test_principals_of_one_name_in_two_organizations_are_two(
    location: str, clock: ManualClock
) -> None:
    principals = (
        Principal("alice", organization="one"),
        Principal("alice", organization="two"),
        Principal("alice"),
        Principal("alice@one"),  # of local
    )
    with MemoryStore.open(location, embedder=None, clock=clock, bus_hourly_cap=1) as store:
        for principal in principals:
            caller = store.acting_as(principal, author="ann", origin="bus")
            assert caller.stored_under("k") is None
            assert caller.remember("T", principal.account, idempotency_key="k").created
            with pytest.raises(QuotaExceeded):
                caller.remember("T", "more")
            assert caller.opted_out() == frozenset()
            caller.opt_out({"c1"})
        audited = {entry.principal for entry in store.audit_entries()}
    assert audited == {"alice@one", "alice@two", "alice", "alice@one@local"}


def test_an_organization_has_no_at_sign() -> None:
    with pytest.raises(ValueError, match="must not contain @"):
        Principal("alice", organization="one@two")


@pytest.mark.rule("M-12")
def test_related_items_are_filtered_for_access_before_they_are_limited(store: MemoryStore) -> None:
    alice = store.acting_as(ALICE)
    hub = alice.remember("hub", "apple", "note", project="api")
    alice.remember("visible", "pear", "note", project="api", related_to=[hub.id])
    for number in range(5):  # newer, so they would come first
        alice.remember(f"hidden {number}", "pear", "note", project="web", related_to=[hub.id])
    [item] = store.acting_as(BOB).context("apple", related_limit=1).items
    assert [related.name for related in item.related] == ["visible"]


def test_an_invisible_contradiction_is_not_revealed(store: MemoryStore) -> None:
    alice = store.acting_as(ALICE)
    fact = alice.remember("fact", "apple", "fact", project="api")
    alice.remember("doubt", "pear", "fact", related_to=[f"contradicts:{fact.id}"])
    [item] = store.acting_as(BOB).context("apple").items
    assert "contradicted" not in item.reason
    assert "contradicted_by" not in item.metadata


def test_an_invisible_item_looks_absent(store: MemoryStore) -> None:
    secret = store.acting_as(ALICE).remember("secret", "apple", "note")
    bob = store.acting_as(BOB)
    with pytest.raises(UnknownMemory):
        bob.remember("T", "c", "note", related_to=[secret.id])
    with pytest.raises(UnknownMemory):
        bob.forget(secret.id)


@pytest.mark.rule("M-07")
def test_the_owner_may_forget_every_item_but_reads_only_its_own(
    store: MemoryStore,
) -> None:
    stranger = store.acting_as(Principal("zoe", None, organization="elsewhere"))
    secrets = [
        store.acting_as(ALICE).remember("private", "apple", "note"),
        store.acting_as(ALICE).remember("diary", "apple", "note", agent_id="runner"),
        stranger.remember("foreign", "apple", "note", project="api"),
    ]
    assert store.context("apple", agent_id="runner").items == []
    for secret in secrets:
        store.forget(secret.id)
    assert stranger.context("apple").items == []


def test_own_diary_entries_can_be_forgotten(store: MemoryStore) -> None:
    entry = store.remember("entry", "apple", "note", agent_id="runner")
    store.forget(entry.id)
    assert names(store, agent_id="runner") == set()


@pytest.mark.rule("M-35")
def test_a_participant_has_an_hourly_quota(location: str, clock: ManualClock) -> None:
    with MemoryStore.open(location, embedder=None, clock=clock, bus_hourly_cap=2) as store:
        eve = store.acting_as(DEMO, author="eve", origin="bus")
        eve.remember("1", "apple", "note")
        eve.remember("2", "apple", "note")
        with pytest.raises(QuotaExceeded):
            eve.remember("3", "apple", "note")
        store.acting_as(DEMO, author="ann", origin="bus").remember("4", "apple", "note")
        clock.now += 3601
        eve.remember("5", "apple", "note")


@pytest.mark.rule("M-35")
def test_forgetting_does_not_restore_the_quota_and_pods_count_separately(location: str) -> None:
    with MemoryStore.open(location, embedder=None, bus_hourly_cap=1) as store:
        eve = store.acting_as(DEMO, author="eve", origin="bus")
        eve.forget(eve.remember("1", "apple", "note").id)
        with pytest.raises(QuotaExceeded):
            eve.remember("2", "apple", "note")
        elsewhere = Principal.for_pod("elsewhere")
        store.acting_as(elsewhere, author="eve", origin="bus").remember("3", "apple", "note")


@pytest.mark.rule("M-34")
@pytest.mark.parametrize("source", ["mcpp://demo/c1#e1", " MCPP://demo/c1"])
def test_a_caller_cannot_claim_a_source_on_the_bus(store: MemoryStore, source: str) -> None:
    for caller in (store, store.acting_as(DEMO, author="eve", origin="bus")):
        with pytest.raises(InvalidMemory, match="source must not begin with mcpp://"):
            caller.remember("Forged", "apple", "note", source=source)


@pytest.mark.rule("M-35")
def test_a_participant_never_supersedes_or_forgets_anothers_item(store: MemoryStore) -> None:
    ann = store.acting_as(DEMO, author="ann", origin="bus")
    eve = store.acting_as(DEMO, author="eve", origin="bus")
    owned = ann.remember("ann", "apple", "note")
    with pytest.raises(AccessDenied, match="Only its author"):
        eve.remember("eve", "apple", "note", related_to=[f"supersedes:{owned.id}"])
    with pytest.raises(AccessDenied):
        eve.forget(owned.id)
    ann.remember("ann, better", "apple", "note", related_to=[f"supersedes:{owned.id}"])
    assert names(ann) == {"ann, better"}


@pytest.mark.rule("M-35")
def test_the_same_name_in_another_pod_is_another_author(store: MemoryStore) -> None:
    granted = frozenset({"api"})
    here, there = (
        store.acting_as(Principal.for_pod(pod, granted=granted), author="ann", origin="bus")
        for pod in ("red", "blue")
    )
    owned = here.remember("red", "apple", "note", project="api")
    with pytest.raises(AccessDenied, match="Only its author"):
        there.remember(
            "blue", "apple", "note", project="api", related_to=[f"supersedes:{owned.id}"]
        )
    with pytest.raises(AccessDenied):
        there.forget(owned.id)
    assert names(here) == {"red"}


IDS = st.text("abc/:*%_\\'\" ", min_size=1, max_size=4)
PRINCIPALS = st.builds(
    Principal, id=IDS, projects=st.none() | st.frozensets(IDS, max_size=3), organization=IDS
)


@given(PRINCIPALS, PRINCIPALS, st.none() | IDS, st.none() | IDS)
def test_private_scopes_are_in_no_other_view(
    writer: Principal, reader: Principal, agent: str | None, project: str | None
) -> None:
    """A view never reaches the private items of another principal, whatever the ids contain."""
    if (writer.organization, writer.id) == (reader.organization, reader.id):
        return
    scope = scope_for(writer, project=None, agent=agent)
    if project is not None and reader.projects is not None:
        reader = Principal(reader.id, reader.projects | {project}, reader.organization)
    view = view_of(reader, project=project, agent=agent)
    assert scope not in view.scopes
    assert not any(scope.startswith(prefix) for prefix in view.prefixes)


@pytest.mark.rule("M-12")
@pytest.mark.parametrize("words", ["salary", "chartreuse", "salary chartreuse"])
def test_private_items_of_others_do_not_influence_scores(store: MemoryStore, words: str) -> None:
    bob = store.acting_as(Principal("bob"))
    ann = store.acting_as(Principal("ann"))
    bob.remember("Probe", "salary review notes", "note")
    bob.remember("Other", "chartreuse salary", "note")
    bob.remember("Third", "nothing of that", "note")

    def scores_beside(private: str) -> list[tuple[str, float]]:
        kept = ann.remember("Mine", private, "note")
        found = bob.context("salary chartreuse acquisition").items
        ann.forget(kept.id)
        return [(item.name, item.score) for item in found]

    # Of equal length: the mean text length is counted over the file, and reveals no word.
    assert scores_beside(words) == scores_beside(" ".join("quartz" for _ in words.split()))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["remember", "elsewhere", "forget", "forget elsewhere", "supersede elsewhere", "ask"]
        ),
        st.sampled_from([ALICE, BOB]),
        st.sampled_from([None, "api"]),
        st.sampled_from([None, "fruit"]),
    ),
    max_size=12,
)


@pytest.mark.rule("M-12")
@given(STEPS)
@settings(deadline=None, max_examples=40)
def test_a_cached_view_equals_a_fresh_one(
    steps: list[tuple[str, Principal, str | None, str | None]],
) -> None:
    """After writes and removals, here and in other stores, a store sees what a fresh one sees."""

    def seen(store: MemoryStore, who: Principal, domain: str | None) -> list[tuple[str, float]]:
        items = store.acting_as(who).context("apple pie", domain=domain).items
        return [(item.id, item.score) for item in items]

    with tempfile.TemporaryDirectory() as folder:
        path, clock = Path(folder) / "memory.db", ManualClock()
        with (
            MemoryStore.open(path, embedder=None, clock=clock) as here,
            MemoryStore.open(path, embedder=None, clock=clock) as elsewhere,
        ):
            own: list[tuple[Principal, str, str | None]] = []
            for what, who, project, domain in steps:
                if what.startswith("forget") and own:
                    author, id, _ = own.pop()
                    (here if what == "forget" else elsewhere).acting_as(author).forget(id)
                elif what == "ask":
                    seen(here, who, domain)
                elif what == "supersede elsewhere" and own:
                    author, id, place = own[-1]
                    answer = elsewhere.acting_as(author).remember(
                        "T", "apple", "note", project=place, related_to=[f"supersedes:{id}"]
                    )
                    own.append((author, answer.id, place))
                else:
                    store = (here if what == "remember" else elsewhere).acting_as(who)
                    text = "apple" + " pie" * (len(own) % 3)
                    answer = store.remember("T", text, "note", project=project, domain=domain)
                    own.append((who, answer.id, project))
            for who, domain in ((ALICE, None), (BOB, None), (BOB, "fruit")):
                with MemoryStore.open(path, embedder=None, clock=clock) as fresh:
                    assert seen(here, who, domain) == seen(fresh, who, domain)


@pytest.mark.rule("M-14")
def test_only_the_owner_reads_the_audit(store: MemoryStore) -> None:
    pod = Principal.for_pod("demo")
    store.acting_as(pod).context("zebra")
    [entry] = store.audit_entries()
    assert (entry.principal, entry.tool) == ("pod:demo", "context")
    for other in (pod, Principal("ann", None), Principal("owner", None, "elsewhere")):
        with pytest.raises(AccessDenied):
            store.acting_as(other).audit_entries()
