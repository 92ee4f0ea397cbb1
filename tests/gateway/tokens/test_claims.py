"""Claims of verified tokens: what they admit, within what their issuer may grant."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mcpp
from mcpp.filters import parse as parse_filter
from mcpp.protocol.capabilities import Capabilities
from mcpp.testing.strategies import envelopes
from mcpp_gateway.core.limits import ParticipantLimits, PodLimits
from mcpp_gateway.tokens.claims import ClaimError, Grant, RightsReader, Template, read_grant

NOW = 1_000_000.0


def grant(
    template: Template = Template(),  # noqa: B008  (frozen)
    *,
    mcpp: Any = None,
    pods: tuple[str, ...] = ("demo", "lab"),
    reader: RightsReader | None = None,
    is_own: bool = False,
    **claims: Any,
) -> Grant:
    stated = {"sub": "ada", "exp": NOW + 60, "iat": NOW, **claims}
    return read_grant(
        {**stated, **({} if mcpp is None else {"mcpp": mcpp})},
        reader or RightsReader("company", template, "mcpp"),
        subject="sub",
        leeway_seconds=30.0,
        is_own=is_own,
        pods=pods,
        now=NOW,
    )


def refusal(template: Template = Template(), **claims: Any) -> str:  # noqa: B008  (frozen)
    with pytest.raises(ClaimError) as raised:
        grant(template, **claims)
    return str(raised.value)


@pytest.mark.rule("S-04")
@pytest.mark.parametrize("sub", ["", "system:x", "a b", "x" * 65, None, 7, ["ada"], "auth0|7"])
def test_a_subject_that_is_no_participant_id_is_refused(sub: Any) -> None:
    assert "is not a participant id" in refusal(sub=sub)


@pytest.mark.rule("S-05")
@given(
    envelopes(kinds=st.sampled_from(["chat", "mcp/request:tools/call:x", "note", "task"])),
    st.lists(st.sampled_from(["chat", "mcp/*", "no*", "*", "!chat"]), min_size=1, max_size=3),
    st.lists(st.sampled_from(["chat", "mcp/*", "t*", "*"]), min_size=1, max_size=3),
)
def test_an_envelope_has_to_match_the_patterns_of_token_and_issuer(
    envelope: mcpp.Envelope, token: list[str], issuer: list[str]
) -> None:
    stated = [{"kind": kind} for kind in token]
    allowed = tuple({"kind": kind} for kind in issuer)
    found = grant(Template(capabilities=allowed), mcpp={"capabilities": stated})
    both = all(Capabilities(each).allow(envelope, None) for each in (stated, allowed))
    assert found.settings.capabilities.allow(envelope, None) is both


@pytest.mark.rule("S-05")
def test_without_capabilities_a_token_has_those_of_its_issuer() -> None:
    found = grant(Template(capabilities=({"kind": "chat"},)))
    assert found.settings.capabilities.patterns == ({"kind": "chat"},)


@pytest.mark.rule("S-05")
@pytest.mark.parametrize(
    ("stated", "shown"),
    [(["*"], ["chat", "note"]), (["x", "*"], ["chat", "note"]), (["c*"], ["c*"])],
)
def test_a_token_for_everything_shows_the_patterns_of_its_issuer(
    stated: list[str], shown: list[str]
) -> None:
    template = Template(capabilities=({"kind": "chat"}, {"kind": "note"}))
    found = grant(template, mcpp={"capabilities": [{"kind": kind} for kind in stated]})
    assert found.settings.capabilities.patterns == tuple({"kind": kind} for kind in shown)


@pytest.mark.rule("S-05")
@given(
    *[
        st.builds(
            ParticipantLimits,
            messages_per_second=st.none() | st.integers(0, 500),
            burst=st.none() | st.integers(1, 900),
            max_message_bytes=st.none() | st.integers(1, 2_000_000),
        )
    ]
    * 2
)
def test_limits_take_the_minimum(token: ParticipantLimits, issuer: ParticipantLimits) -> None:
    pod = PodLimits()
    stated = {name: getattr(token, name) for name in token.__struct_fields__}
    stated = {name: value for name, value in stated.items() if value is not None}
    found = grant(Template(limits=issuer), mcpp={"limits": stated}).settings.limits_in(pod)
    for name in ("messages_per_second", "burst", "max_message_bytes"):
        allowed = getattr(issuer, name)
        allowed = getattr(pod, name) if allowed is None else allowed
        wanted = getattr(token, name)
        values = [allowed] if wanted is None else [allowed, wanted]
        unlimited = name == "messages_per_second"  # a rate of 0 is no limit
        least = min(math.inf if unlimited and value == 0 else value for value in values)
        assert getattr(found, name) == (0 if least == math.inf else least)


@pytest.mark.rule("S-05")
def test_what_may_be_heard_combines_by_and() -> None:
    not_reasoning = {"not": {"type": "reasoning"}}
    found = grant(Template(hears=parse_filter(not_reasoning)), mcpp={"hears": {"kind": "chat"}})
    assert found.settings.hears == parse_filter(not_reasoning) & parse_filter({"kind": "chat"})


@pytest.mark.rule("S-05")
@pytest.mark.parametrize("right", ["multiple", "person", "admin"])
def test_some_rights_need_to_be_allowed_explicitly(right: str) -> None:
    assert f"may not grant {right!r}" in refusal(mcpp={right: True})
    found = grant(Template(**{right: True}), mcpp={right: True})  # type: ignore[arg-type]
    assert getattr(found if right == "admin" else found.settings, right) is True


@pytest.mark.rule("S-06")
@pytest.mark.parametrize(
    ("pod", "allowed", "found"),
    [
        ("demo", ("*",), ("demo",)),
        (["demo", "lab"], ("*",), ("demo", "lab")),
        (["demo", "lab"], ("d*",), ("demo",)),
        (None, ("lab",), ("lab",)),
        ("elsewhere", ("*",), ()),
        ("", ("*",), ()),
        ([], ("*",), ()),
        ({"demo": 1}, ("*",), ()),
    ],
)
def test_a_token_is_for_the_pods_that_it_and_its_issuer_name(
    pod: Any, allowed: tuple[str, ...], found: tuple[str, ...]
) -> None:
    assert grant(Template(pods=allowed), **({} if pod is None else {"pod": pod})).pods == found


@pytest.mark.rule("S-06")
def test_a_pod_of_null_is_none_at_all() -> None:
    assert grant(pod=None, mcpp={"pod": "lab"}).pods == ("lab",)


@pytest.mark.rule("S-06")
def test_a_token_with_both_claims_is_for_the_pods_that_both_name() -> None:
    assert grant(pod=["demo", "lab"], mcpp={"pod": "lab"}).pods == ("lab",)
    assert grant(pod="demo", mcpp={"pod": "lab"}).pods == ()


@pytest.mark.rule("S-07")
@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": None}, "no expiry"),
        ({"exp": NOW - 30}, "expired"),
        ({"exp": NOW + 367 * 86_400}, "more than 366 days"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"iat": NOW + 31}, "not valid yet"),
        ({"exp": "soon"}, "not a time"),
        ({"exp": float("nan")}, "not a time"),
        ({"exp": True}, "not a time"),
        ({"exp": 10**400}, "not a time"),
    ],
)
def test_a_token_has_to_be_valid_now_and_to_expire(claims: dict[str, Any], reason: str) -> None:
    assert reason in refusal(**claims)


@pytest.mark.rule("S-07")
def test_own_tokens_begin_with_clocks_that_differ_and_end_exactly() -> None:
    found = grant(iat=NOW + 29, nbf=NOW + 29, exp=NOW + 60, is_own=True)
    assert (found.issued, found.until) == (NOW + 29, NOW + 60)
    refused: list[dict[str, Any]] = [{"iat": NOW + 31}, {"nbf": NOW + 31}, {"exp": NOW - 1}]
    for claims in refused:
        assert refusal(is_own=True, **claims)


@pytest.mark.rule("S-07")
def test_clocks_may_differ_a_little() -> None:
    assert grant(exp=NOW - 29, nbf=NOW + 29).until == NOW + 1


@pytest.mark.rule("S-04")
def test_an_issuer_names_only_the_participants_that_it_may() -> None:
    template = Template(participants=("corp-*",))
    assert "may not name" in refusal(template)
    assert grant(template, sub="corp-ada").settings.id == "corp-ada"


@pytest.mark.rule("S-05")
@pytest.mark.parametrize(
    "rights",
    [
        {"capabilities": "*"},
        {"capabilities": [{"knid": "*"}]},
        {"hears": {"nonsense": 1}},
        {"limits": {"burst": "many"}},
        {"limits": {"history_bytes": 1}},
        {"limits": {"messages_per_second": -1}},
        {"limits": {"messages_per_second": 1e-320}},
        {"limits": {"messages_per_second": math.nan}},
        {"limits": {"messages_per_second": 10**400}},
        {"limits": {"burst": 0}},
        {"capabilites": [{"kind": "chat"}]},
        {"multiple": "yes"},
        "everything",
        [],
    ],
)
def test_rights_that_are_not_understood_are_refused(rights: Any) -> None:
    assert refusal(Template(multiple=True), mcpp=rights)


@pytest.mark.rule("S-05")
@pytest.mark.parametrize(
    "claims",
    [
        {"mcpp": {"capabilities": [{"kind": "chat", "to": "\ud800"}]}},
        {"mcpp": {"capabilities": [{"kind": "chat", "payload": {"\ud800": 1}}]}},
        {"mcpp": {"capabilities": [{"kind": "chat", "payload": {"n": 2**64}}]}},
        {"mcpp": {"capabilities": [{"kind": "chat", "payload": {"n": -(2**64)}}]}},
        {"mcpp": {"hears": {"kind": "\ud800"}}},
        {"mcpp": {"\ud800": True}},
        {"jti": "\ud800"},
        {"jti": 2**64},
    ],
)
def test_what_no_envelope_can_hold_is_refused(claims: dict[str, Any]) -> None:
    name = next(iter(claims))
    assert f"the claim {name!r} has half of a surrogate pair" in refusal(**claims)


@pytest.mark.rule("S-15")
def test_equal_rights_are_compiled_once_for_all_tokens_of_an_issuer() -> None:
    reader = RightsReader("company", Template(capabilities=({"kind": "c*"},)), "mcpp")

    def capabilities(kind: str, **claims: Any) -> Capabilities:
        stated = {"capabilities": [{"kind": kind}]}
        return grant(mcpp=stated, reader=reader, **claims).settings.capabilities

    first = capabilities("chat", sub="ada", jti="1")
    assert capabilities("chat", sub="eve", jti="2") is first
    assert capabilities("call", sub="ada") is not first
    assert capabilities("chat") is first
    for number in range(200):  # more than is kept
        capabilities(f"{number:01000d}")
    assert capabilities("chat") is not first


@pytest.mark.rule("S-15")
def test_rights_that_are_refused_are_refused_again() -> None:
    reader = RightsReader("company", Template(), "mcpp")
    for _ in range(2):
        with pytest.raises(ClaimError, match="has no kind"):
            grant(mcpp={"capabilities": [{"to": "x"}]}, reader=reader)
