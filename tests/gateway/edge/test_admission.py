"""Admission: tokens, origins, wrong tokens, queries."""

from functools import partial

import pytest

from mcpp import filters
from mcpp_gateway import config
from mcpp_gateway.edge.admission import Admission, AdmissionControl, Denial, Headers, Waiting

TOKEN = "alice-token-0123456789"
METRICS = "metrics-token-0123456789"
CONFIG = f"""
[gateway]
allowed_origins = ["https://app.example"]
metrics_token = "{METRICS}"

[pods.demo.participants.alice]
token = "{TOKEN}"
capabilities = [{{ kind = "*" }}]
"""


def new_admission(text: str = CONFIG, port: int = 8787) -> AdmissionControl:
    return AdmissionControl(config.parse(text, {}), port)


def request(token: str | None = TOKEN, **headers: str | list[str]) -> Headers:
    found = {"host": ["localhost:8787"]}
    if token is not None:
        found["authorization"] = [f"Bearer {token}"]
    for name, value in headers.items():
        found[name.replace("_", "-")] = value if isinstance(value, list) else [value]
    return found


def status(decision: Admission | Denial | Waiting | None) -> int | None:
    return decision.status if isinstance(decision, Denial) else None


def admit(
    headers: Headers,
    query: str = "",
    address: str = "192.0.2.1",
    at: AdmissionControl | None = None,
) -> Admission | Denial | Waiting:
    return (at or new_admission()).admit(query, headers, address, 0.0)


@pytest.mark.rule("G-01", "G-03")
def test_a_right_token_is_admitted_to_its_own_pod_alone() -> None:
    assert admit(request()) == Admission("demo", "alice")
    assert admit(request(), "pod=demo") == Admission("demo", "alice")
    assert status(admit(request(), "pod=other")) == 403


@pytest.mark.rule("G-03")
@pytest.mark.parametrize("token", [None, "wrong", "", "with space", "\udcff", "x" * 10_000])
def test_no_wrong_or_malformed_token_is_401(token: str | None) -> None:
    assert status(admit(request(token))) == 401
    assert status(admit(request(token), "pod=other")) == 401


@pytest.mark.rule("G-02")
@pytest.mark.parametrize(
    ("offered", "admitted"),
    [
        ([f"mcpp.v0.1, mcpp.bearer.{TOKEN}"], True),
        (["mcpp.v0.1", f"mcpp.bearer.{TOKEN}"], True),
        ([f"mcpp.bearer.{TOKEN}, mcpp.v0.1"], False),
        ([f"mcpp.v0.1, chat, mcpp.bearer.{TOKEN}"], False),
        ([f"mcpp.bearer.{TOKEN}"], False),
        (["mcpp.v0.1"], False),
        (["mcpp.v0.1, mcpp.bearer."], False),
    ],
)
def test_a_browser_sends_its_token_as_the_second_of_two_subprotocols(
    offered: list[str], admitted: bool
) -> None:
    decision = admit(request(None, sec_websocket_protocol=offered))
    assert isinstance(decision, Admission) is admitted


@pytest.mark.rule("G-02")
def test_where_there_is_an_authorization_only_it_counts() -> None:
    both = request("wrong", sec_websocket_protocol=f"mcpp.v0.1, mcpp.bearer.{TOKEN}")
    assert status(admit(both)) == 401
    twice = request(None, authorization=[f"Bearer {TOKEN}", f"Bearer {TOKEN}"])
    assert status(admit(twice)) == 401
    assert status(admit(request(None, authorization=f"Basic {TOKEN}"))) == 401
    assert isinstance(admit(request(None, authorization=f"bearer {TOKEN}")), Admission)


@pytest.mark.rule("G-02")
def test_a_token_in_the_url_is_none() -> None:
    assert status(admit(request(None), f"token={TOKEN}&access_token={TOKEN}")) == 401


@pytest.mark.rule("G-04")
def test_admission_keeps_digests_and_repeats_no_token() -> None:
    assert TOKEN not in repr(vars(new_admission()))
    denial = admit(request("a-wrong-token-that-is-secret"))
    assert isinstance(denial, Denial)
    assert "secret" not in denial.reason


@pytest.mark.rule("G-05")
@pytest.mark.parametrize(
    "host", ["localhost:8787", "LOCALHOST", "127.0.0.1:8787", "[::1]:1", "app.example", "10.0.0.9"]
)
def test_own_names_and_addresses_are_no_foreign_hosts(host: str) -> None:
    assert isinstance(admit(request(host=host)), Admission)


@pytest.mark.rule("G-05")
@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "", "127.0.0.1.evil.example", "evil.example:8787"],
)
def test_a_foreign_host_is_403_whatever_the_token(host: str) -> None:
    assert status(admit(request(host=host))) == 403
    assert status(admit(request("wrong", host=host))) == 403


@pytest.mark.rule("G-05")
def test_a_missing_or_repeated_host_is_403() -> None:
    assert status(admit(request(host=[]))) == 403
    assert status(admit(request(host=["localhost", "localhost"]))) == 403


@pytest.mark.rule("G-05")
@pytest.mark.parametrize(
    ("origin", "admitted"),
    [
        ("http://localhost:8787", True),
        ("http://127.0.0.1:8787", True),
        ("https://app.example", True),
        ("http://app.example", False),
        ("https://app.example:444", False),
        ("https://localhost:8787", False),
        ("http://localhost:9999", False),
        ("http://evil.example:8787", False),
        ("http://10.0.0.9:8787", False),
        ("null", False),
        ("", False),
    ],
)
def test_an_origin_is_ours_or_allowed_or_403(origin: str, admitted: bool) -> None:
    assert isinstance(admit(request(origin=origin)), Admission) is admitted


@pytest.mark.rule("G-05")
def test_an_origin_is_never_derived_from_the_host() -> None:
    headers = request(host="10.0.0.9:8787", origin="http://10.0.0.9:8787")
    assert status(admit(headers)) == 403


@pytest.mark.rule("G-06")
def test_wrong_tokens_are_answered_ever_more_slowly_and_then_not() -> None:
    admission = new_admission()
    denials = [admission.admit("", request("wrong"), "127.0.0.1", 0.0) for _ in range(12)]
    assert all(isinstance(denial, Denial) for denial in denials)
    found = [(d.status, d.delay_seconds) for d in denials if isinstance(d, Denial)]
    assert found == [
        *[(401, 0.0)] * 3,
        *[(401, delay) for delay in (0.25, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0)],
        (429, 0.0),
        (429, 0.0),
    ]


@pytest.mark.rule("G-06")
def test_from_an_attackers_address_only_some_tokens_are_looked_at() -> None:
    """Of a hundred thousand guesses in a second a few are evaluated, and a right one gets in."""
    admission = new_admission()
    evaluated = 0
    for number in range(100_000):
        decision = admission.admit("", request("wrong"), "127.0.0.1", number / 100_000)
        assert isinstance(decision, Denial)
        evaluated += decision.reason != "too many wrong tokens; try again"
    assert evaluated <= 10 + 10 + 5
    refused = admission.admit("", request(), "127.0.0.1", 1.0)
    assert isinstance(refused, Denial)
    assert refused.retry_after_seconds == 1.0
    assert isinstance(admission.admit("", request(), "127.0.0.1", 1.3), Admission)
    assert status(admission.admit("", request("wrong"), "192.0.2.1", 1.0)) == 401


@pytest.mark.rule("G-06")
@pytest.mark.parametrize("path", ["admit", "sign_in", "recognise", "recognise_owner"])
def test_tokens_are_looked_at_as_rarely_on_every_path(path: str) -> None:
    admission = new_admission()
    decide = partial(admission.admit, "") if path == "admit" else getattr(admission, path)
    for _ in range(100):
        assert isinstance(decide(request("wrong"), "192.0.2.1", 0.0), Denial)
    assert status(decide(request(), "192.0.2.1", 0.0)) == 429
    assert not isinstance(decide(request(), "192.0.2.1", 2.0), Denial)


@pytest.mark.rule("G-06")
def test_many_addresses_that_guess_leave_those_alone_from_which_a_right_token_came() -> None:
    admission = new_admission()
    assert isinstance(admission.admit("", request(), "198.51.100.1", 0.0), Admission)
    found = [
        status(admission.admit("", request("wrong"), f"10.{i >> 8}.{i & 255}.1", i / 20_000))
        for i in range(20_000)
    ]
    assert found.count(401) <= 500 + 100 + 1
    assert status(admission.admit("", request(), "203.0.113.1", 1.0)) == 429
    assert isinstance(admission.admit("", request(), "198.51.100.1", 1.0), Admission)
    assert isinstance(admission.admit("", request(), "203.0.113.1", 2.0), Admission)


@pytest.mark.rule("G-06")
def test_a_minute_without_a_wrong_token_ends_the_429_however_many_there_were() -> None:
    admission = new_admission()
    for _ in range(1000):
        admission.admit("", request("wrong"), "192.0.2.1", 0.0)
    assert status(admission.admit("", request("wrong"), "192.0.2.1", 59.0)) == 429
    assert status(admission.admit("", request("wrong"), "192.0.2.1", 119.0)) == 401


@pytest.mark.rule("G-06")
def test_a_64_of_ipv6_is_one_address() -> None:
    admission = new_admission()
    for i in range(11):
        decision = admission.admit("", request("wrong"), f"2001:db8::{i:x}", 0.0)
    assert status(decision) == 429
    assert status(admission.admit("", request("wrong"), "2001:db8:0:1::1", 0.0)) == 401


@pytest.mark.rule("G-06", "G-47")
def test_the_number_of_remembered_addresses_is_bounded() -> None:
    admission = new_admission()
    for i in range(10_000):
        admission.admit("", request("wrong"), f"10.0.{i // 256}.{i % 256}", 0.0)
    throttle = getattr(admission, "_throttle")  # noqa: B009
    assert len(getattr(throttle, "_guessers")) <= 4096  # noqa: B009
    assert len(getattr(throttle, "_trusted")) <= 4096  # noqa: B009


@pytest.mark.rule("G-08")
def test_the_query_sets_where_the_stream_starts() -> None:
    decision = admit(request(), "pod=demo&after=m-1&last=20&filter=%7B%22main%22%3Atrue%7D&new=1")
    assert decision == Admission("demo", "alice", filters.main_only, "m-1", 20)


@pytest.mark.rule("G-08", "F-10")
@pytest.mark.parametrize(
    "query",
    [
        "last=x",
        "last=-1",
        "last=",
        "last=9999999999",
        "last=٣",
        "filter=",
        "filter=x",
        "filter=%7B%7D",
        "filter=%7B%22main%22:false%7D",
        "last=1&last=1",
        "\udcff=1&\udcff=2",
        "&".join(f"k{i}=1" for i in range(20)),
    ],
)
def test_a_bad_query_is_400_with_a_reason(query: str) -> None:
    decision = admit(request(), query)
    assert isinstance(decision, Denial)
    assert decision.status == 400
    assert decision.reason.encode()


@pytest.mark.rule("G-08")
def test_a_position_that_cannot_be_an_id_is_just_unknown() -> None:
    decision = admit(request(), "after=%00%ff")
    assert isinstance(decision, Admission)
    assert decision.after is not None


@pytest.mark.rule("G-44")
def test_metrics_are_for_loopback_or_for_their_token() -> None:
    admission = new_admission()

    def decision(token: str | None, address: str, **headers: str) -> int | None:
        return status(admission.check_metrics(request(token, **headers), address, 0.0))

    assert decision(None, "127.0.0.1") is None
    assert decision(None, "::1") is None
    assert decision(METRICS, "192.0.2.1", host="anything") is None
    assert decision(None, "192.0.2.1") == 401
    assert decision(TOKEN, "192.0.2.1") == 401
    assert decision("wrong", "127.0.0.1") == 401
    assert decision("\udcff", "127.0.0.1") == 401
    assert decision(None, "127.0.0.1", host="evil.example") == 403
    for _ in range(20):
        decision("wrong", "192.0.2.7")
    assert decision("wrong", "192.0.2.7") == 429


@pytest.mark.rule("G-44")
def test_without_a_metrics_token_none_is_right() -> None:
    admission = new_admission("[gateway]\n")
    assert status(admission.check_metrics(request(METRICS), "127.0.0.1", 0.0)) == 401
    assert status(admission.check_metrics(request(None), "127.0.0.1", 0.0)) is None


@pytest.mark.rule("G-37")
def test_new_tokens_hold_at_once_and_old_ones_no_longer() -> None:
    admission = new_admission()
    admission.reconfigure(config.parse(CONFIG.replace(TOKEN, "another-token-0123456789"), {}))
    assert status(admission.admit("", request(), "192.0.2.1", 0.0)) == 401
    again = admission.admit("", request("another-token-0123456789"), "192.0.2.1", 0.0)
    assert isinstance(again, Admission)


@pytest.mark.rule("G-05")
@pytest.mark.parametrize(
    ("section", "origin"),
    [
        ('host = "0.0.0.0"', "http://localhost:8787"),
        ('host = "::"', "http://[::1]:8787"),
        ('host = "gw.example"', "http://gw.example:8787"),
    ],
)
def test_the_gateways_own_origin_is_its_configured_host(section: str, origin: str) -> None:
    admission = new_admission(CONFIG.replace("[gateway]\n", f"[gateway]\n{section}\n"))
    headers = request(host=origin.removeprefix("http://"), origin=origin)
    assert isinstance(admit(headers, at=admission), Admission)
