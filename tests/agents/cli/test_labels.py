"""Short names of contexts cannot be forged."""

from hypothesis import given
from hypothesis import strategies as st

from mcpp_agents.cli.labels import ContextLabels

# Ids that end alike, as a participant would choose them.
IDS = st.text("ab~2#", min_size=1, max_size=12)
TYPES = st.sampled_from(["", "a", "b#a"])


def test_a_context_that_ends_like_another_one_gets_a_longer_name() -> None:
    labels = ContextLabels()
    assert labels("0190-8d2f-abc123", "task") == "task#abc123"
    assert labels("mallory-abc123", "reasoning") == "reasoning#-abc123"
    assert labels("abc123", "task") == "task#abc123~2"
    assert labels("0190-8d2f-abc123", "task") == "task#abc123"
    assert labels("t") == "#t"


def test_a_title_that_another_context_has_is_shown_with_its_id() -> None:
    labels = ContextLabels()
    assert labels("0190-8d2f-abc123", "task", "Refund 17") == "Refund 17"
    assert labels("mallory-1", "task", "Refund 17") == "Refund 17 #lory-1"
    assert labels("0190-8d2f-def456", "task") == "task#def456"
    assert labels("mallory-2", "task", "task#def456") == "task#def456 #lory-2"
    assert labels("0190-8d2f-abc123", "task", "Refund 17") == "Refund 17"


@given(st.lists(st.tuples(IDS, TYPES, st.none() | IDS), max_size=30))
def test_two_contexts_never_have_the_same_name(contexts: list[tuple[str, str, str | None]]) -> None:
    labels = ContextLabels()
    owners: dict[str, str] = {}
    for id, type, title in contexts:
        assert owners.setdefault(labels(id, type, title), id) == id
    for id, type, title in contexts:
        assert owners[labels(id, type, title)] == id
