"""What an envelope becomes in another pod."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mcpp
from mcpp import Context, Envelope, filters
from mcpp.testing.strategies import envelopes
from mcpp_agents.link.mirror import LinkedPod, Mirror
from mcpp_agents.link.origin import MirrorOrigin, Reference, mirrored_id

SALES = LinkedPod("sales", "link-s")
OPS = LinkedPod("ops", "link-o")


def mirror(**options: object) -> Mirror:
    return Mirror(SALES, OPS, **({"filter": filters.everything} | options))  # type: ignore[arg-type]


def chat(text: str = "hello", **members: object) -> Envelope:
    return mcpp.new_envelope("chat", {"text": text}, sender="ada", **members)  # type: ignore[arg-type]


@pytest.mark.rule("P-90", "E-30")
def test_an_envelope_keeps_its_time_payload_and_origin() -> None:
    context = mcpp.new_context("task", id="t1", metadata={"title": "Book"})
    sent = chat(context=context)
    found = mirror().translate(sent)
    assert found is not None
    assert (found.id, found.sender, found.ts) == (f"sales~{sent.id}", "link-o", sent.ts)
    assert found.raw_payload == sent.raw_payload
    assert found.extra["origin"] == {"from": "ada", "path": [f"mcpp://sales/{sent.id}"]}
    assert found.context == mcpp.new_context("task", id="sales~t1", metadata={"title": "Book"})


@pytest.mark.rule("P-91")
@given(st.lists(envelopes(), max_size=6))
def test_nothing_goes_round(sent: list[Envelope]) -> None:
    """Two links beside each other, and each continues the other."""
    there = mirror(through=frozenset(["link-s"]))
    back = Mirror(OPS, SALES, filters.everything, through=frozenset(["link-o"]))
    for envelope in sent:
        found = there.translate(envelope)
        if found is not None:
            assert back.translate(found) is None


@pytest.mark.rule("P-91")
def test_a_link_continues_another_one_once() -> None:
    first = chat()
    second = mirror().translate(first)
    assert second is not None
    on = Mirror(OPS, LinkedPod("law", "link-l"), filters.everything, through=frozenset(["link-o"]))
    on.source = LinkedPod("ops", "another-link")
    third = on.translate(second)
    assert third is not None
    assert third.id == second.id
    origin = MirrorOrigin.of(third)
    assert origin is not None
    assert origin.path == (Reference("sales", first.id), Reference("ops", second.id))
    home = Mirror(LinkedPod("law", "x"), SALES, filters.everything, through=frozenset(["link-l"]))
    assert home.translate(third) is None


@pytest.mark.rule("P-91")
@pytest.mark.parametrize("origin", [{}, {"from": "x", "path": []}, {"path": ["mcpp://a/b"]}, 7])
def test_an_origin_that_a_participant_made_up_is_not_mirrored(origin: object) -> None:
    assert mirror().translate(chat(extra={"origin": origin})) is None


@pytest.mark.rule("P-92")
def test_what_would_make_participants_act_is_only_read() -> None:
    call = mcpp.new_envelope("mcp/request:tools/call:pay", {}, sender="ada", to="bank")
    found = mirror().translate(call)
    assert found is not None
    assert (found.kind, found.to) == ("link/mcp/request:tools/call:pay", ("link-o",))
    as_is = mirror(as_is=("mcp/request:*",)).translate(call)
    assert as_is is not None
    assert as_is.kind == call.kind


@pytest.mark.rule("P-92")
def test_only_the_creators_conclusion_counts_in_the_target() -> None:
    tested = mirror()
    context = mcpp.new_context("task", id="t1")
    tested.translate(chat(context=context))
    for sender, kind in (("eve", "link/conclusion"), ("ada", "conclusion")):
        end = mcpp.new_envelope("conclusion", {"text": "done"}, sender=sender, context=context)
        found = tested.translate(end)
        assert found is not None
        assert found.kind == kind


@pytest.mark.rule("P-93")
def test_an_answer_returns_to_who_asked_in_the_context_that_it_came_from() -> None:
    there, back = mirror(), Mirror(OPS, SALES)
    back.reverse = there
    asked = chat(context=mcpp.new_context("task", id="t1"))
    mirrored = there.translate(asked)
    assert mirrored is not None
    assert mirrored.context is not None
    back.translate(mirrored)  # the link's own envelopes are observed, too
    answer = mcpp.new_envelope(
        "chat",
        {"text": "yes"},
        sender="bob",
        to="link-o",
        correlation_id=mirrored.id,
        context=mirrored.context.id,
    )
    found = back.translate(answer)
    assert found is not None
    assert (found.to, found.correlation_id) == (("ada",), asked.id)
    assert found.context == Context(id="t1")
    below = mcpp.new_envelope(
        "chat", {}, sender="bob", context=mcpp.new_context("task", id="t2", parent="sales~t1")
    )
    found = back.translate(below)
    assert found is not None
    assert found.context == Context(id="ops~t2", type="task", parent="t1")
    assert back.translate(mcpp.new_envelope("chat", {}, sender="bob")) is None


@pytest.mark.rule("P-93")
def test_only_answers_to_what_was_mirrored_pass_without_a_filter() -> None:
    there, back = mirror(filter=filters.parse({"type": "task"})), Mirror(OPS, SALES)
    back.reverse, there.reverse = there, back
    for id in ("sales~unknown", "mcpp://sales/unknown"):
        for forged in (
            mcpp.new_envelope("chat", {}, sender="eve", correlation_id=id, to="ada@sales"),
            mcpp.new_envelope("chat", {}, sender="eve", context=mcpp.new_context(parent=id)),
        ):
            assert back.translate(forged) is None
    there.translate(chat(id="ops~bait"))
    assert there.translate(chat(correlation_id="ops~bait")) is None


@pytest.mark.rule("P-93", "P-90")
def test_answers_to_long_ids_come_back_to_the_original() -> None:
    there, back = mirror(), Mirror(OPS, SALES)
    back.reverse = there
    asked = chat(id="m" * 128, context=mcpp.new_context("task", id="c" * 128))
    mirrored = there.translate(asked)
    assert mirrored is not None
    assert mirrored.context is not None
    back.translate(mirrored)
    answer = mcpp.new_envelope(
        "chat", {}, sender="bob", correlation_id=mirrored.id, context=mirrored.context.id
    )
    found = back.translate(answer)
    assert found is not None
    assert found.context is not None
    assert (found.correlation_id, found.context.id) == (asked.id, "c" * 128)


@pytest.mark.rule("P-93")
def test_a_context_that_only_looks_mirrored_leads_nowhere() -> None:
    back = Mirror(OPS, SALES)
    forged = mcpp.new_envelope("chat", {}, sender="eve", context=mcpp.new_context(id="sales~t1"))
    assert back.translate(forged) is None
    found = Mirror(OPS, SALES, filters.everything).translate(forged)
    assert found is not None
    assert found.context == Context(id="ops~sales~t1")


@pytest.mark.rule("P-93", "E-30")
def test_references_to_the_target_become_its_ids_and_others_stay() -> None:
    tested = Mirror(OPS, SALES, filters.everything)
    for given_parent, given_id, parent, id in (
        ("mcpp://sales/t1", "mcpp://sales/m1", "t1", "m1"),
        ("mcpp://law/t1", "mcpp://law/m1", "mcpp://law/t1", "mcpp://law/m1"),
        ("t9", "m9", "ops~t9", "mcpp://ops/m9"),
    ):
        context = mcpp.new_context("task", parent=given_parent)
        found = tested.translate(
            mcpp.new_envelope("chat", {}, sender="bob", context=context, correlation_id=given_id)
        )
        assert found is not None
        assert found.context is not None
        assert (found.context.parent, found.correlation_id) == (parent, id)


@pytest.mark.rule("P-90")
@given(envelopes())
def test_the_same_envelope_always_becomes_the_same_bytes(envelope: Envelope) -> None:
    def results() -> Iterator[bytes | None]:
        for _ in range(2):
            found = mirror().translate(envelope)
            yield None if found is None else mcpp.encode(found)

    first, second = results()
    assert first == second
    assert first is None or mcpp.decode(first).payload == envelope.payload


@pytest.mark.rule("P-90", "A-13")
@given(envelopes(), st.booleans())
def test_what_is_attached_in_one_pod_is_not_named_in_the_other(
    envelope: Envelope, is_as_is: bool
) -> None:
    private = mcpp.Attachment("a" * 64, 5, "text/plain", private=True)
    named = chat(to=["bob"], attachments=[private])
    for sent in (envelope, named):
        found = mirror(as_is=("*",) if is_as_is else ()).translate(sent)
        assert found is None or (found.attachments, "attachments" in found.extra) == ((), False)


def test_long_ids_stay_within_the_bound() -> None:
    reference = Reference("p" * 64, "i" * 128)
    assert len(mirrored_id(reference)) <= 128
    assert mirrored_id(reference) != mirrored_id(Reference("p" * 64, "j" * 128))
