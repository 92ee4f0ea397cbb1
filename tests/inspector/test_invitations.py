"""One-time codes and the sessions for which they are exchanged. Pure: the tests pass the time."""

import pytest

from mcpp_gateway import config
from mcpp_gateway.edge.admission import CODE_HEADER, Admission, AdmissionControl, Denial, SignIn
from mcpp_gateway.edge.admission.sign_in import (
    CODE_SECONDS,
    SESSION_SECONDS,
    Invitations,
    SessionTokens,
)
from tests.gateway.sockets import config_text, token

ADA = ("demo", "ada")
SECRETS = {ADA: b"digest of ada's token"}


@pytest.mark.rule("G-60")
def test_a_code_admits_once() -> None:
    invitations = Invitations()
    invitations.add("code", ADA, 0.0)
    assert invitations.redeem("code", 1.0) == ADA
    assert invitations.redeem("code", 1.0) is None


@pytest.mark.rule("G-60")
def test_a_code_is_good_for_two_minutes() -> None:
    invitations = Invitations()
    invitations.add("early", ADA, 0.0)
    invitations.add("late", ADA, 0.0)
    assert invitations.redeem("early", CODE_SECONDS - 0.1) == ADA
    assert invitations.redeem("late", CODE_SECONDS) is None


def test_the_number_of_open_codes_is_limited() -> None:
    invitations = Invitations()
    for number in range(1000):
        invitations.add(str(number), ADA, 0.0)
    assert invitations.redeem("0", 1.0) is None
    assert invitations.redeem("999", 1.0) == ADA
    assert len(invitations._open) <= 256


@pytest.mark.rule("G-63")
def test_a_participant_that_asks_for_many_codes_does_not_displace_those_of_others() -> None:
    invitations = Invitations()
    invitations.add("code", ("demo", "eve"), 0.0)
    for number in range(1000):
        invitations.add(str(number), ADA, 0.0)
    assert invitations.redeem("code", 1.0) == ("demo", "eve")


@pytest.mark.rule("G-61")
def test_a_session_survives_a_restart_with_the_same_key_and_no_other() -> None:
    session = SessionTokens(b"key").issue(ADA, SECRETS[ADA], 0.0)
    assert SessionTokens(b"key").recognise(session, SECRETS, 1.0) == (ADA, SESSION_SECONDS)
    assert SessionTokens(b"another").recognise(session, SECRETS, 1.0) is None


@pytest.mark.rule("G-61")
def test_a_session_ends_after_its_time_and_with_its_participants_token() -> None:
    sessions = SessionTokens(b"key")
    session = sessions.issue(ADA, SECRETS[ADA], 0.0)
    assert sessions.recognise(session, SECRETS, SESSION_SECONDS) is None
    assert sessions.recognise(session, {ADA: b"another"}, 1.0) is None
    assert sessions.recognise(session, {}, 1.0) is None


@pytest.mark.parametrize(
    "forged",
    ["", "session~", "session~.", "session~a.b.c", "session~!!.!!", "session~bnVsbA.AA", "x"],
)
def test_an_invalid_session_token_is_refused(forged: str) -> None:
    assert SessionTokens(b"key").recognise(forged, SECRETS, 0.0) is None


def test_a_modified_session_token_is_refused() -> None:
    session = SessionTokens(b"key").issue(ADA, SECRETS[ADA], 0.0)
    for at in range(len("session~"), len(session) - 1):
        changed = session[:at] + ("A" if session[at] != "A" else "B") + session[at + 1 :]
        assert SessionTokens(b"key").recognise(changed, SECRETS, 0.0) is None


@pytest.fixture
def control() -> AdmissionControl:
    return AdmissionControl(config.parse(config_text({"ada": ""}), {}), 8787, SessionTokens(b"key"))


def headers(**more: str) -> dict[str, list[str]]:
    return {"host": ["localhost:8787"], **{name: [value] for name, value in more.items()}}


@pytest.mark.rule("G-60", "G-61")
def test_a_code_is_exchanged_for_a_token_that_joins_as_the_participant(
    control: AdmissionControl,
) -> None:
    control.invitations.add("code", ADA, 0.0)
    found = control.sign_in(headers() | {CODE_HEADER: ["code"]}, "127.0.0.1", 1.0)
    assert isinstance(found, SignIn)
    assert found.identity == ADA
    again = control.sign_in(headers(authorization=f"Bearer {found.token}"), "127.0.0.1", 1.0)
    assert again == SignIn(ADA)
    admission = control.admit("", headers(authorization=f"Bearer {found.token}"), "127.0.0.1", 1.0)
    assert isinstance(admission, Admission)
    assert (admission.pod, admission.participant) == ADA


@pytest.mark.rule("G-63")
def test_a_participants_own_token_may_request_a_link_and_a_session_token_may_not(
    control: AdmissionControl,
) -> None:
    def ask(bearer: str, **more: str) -> object:
        asked = headers(authorization=f"Bearer {bearer}", **more)
        return control.recognise_owner(asked, "127.0.0.1", 1.0)

    control.invitations.add("code", ADA, 0.0)
    found = control.sign_in(headers() | {CODE_HEADER: ["code"]}, "127.0.0.1", 1.0)
    assert isinstance(found, SignIn)
    assert found.token is not None
    assert ask(token("ada")) == ADA
    assert isinstance(ask(found.token), Denial)
    assert isinstance(ask("wrong"), Denial)
    assert isinstance(ask(token("ada"), origin="https://example.org"), Denial)


@pytest.mark.rule("G-60")
def test_wrong_codes_count_as_failed_authentications(control: AdmissionControl) -> None:
    verdicts = [
        control.sign_in(headers() | {CODE_HEADER: [str(number)]}, "192.0.2.1", 0.0)
        for number in range(12)
    ]
    assert all(isinstance(verdict, Denial) for verdict in verdicts)
    assert isinstance(verdicts[-1], Denial)
    assert verdicts[-1].status == 429


@pytest.mark.rule("G-60")
def test_a_foreign_page_cannot_sign_in(control: AdmissionControl) -> None:
    control.invitations.add("code", ADA, 0.0)
    foreign = headers(origin="https://example.org") | {CODE_HEADER: ["code"]}
    verdict = control.sign_in(foreign, "127.0.0.1", 1.0)
    assert isinstance(verdict, Denial)
    assert verdict.status == 403
    assert control.invitations.redeem("code", 1.0) == ADA


def test_a_participants_own_token_signs_in_too(control: AdmissionControl) -> None:
    found = control.sign_in(headers(authorization=f"Bearer {token('ada')}"), "127.0.0.1", 0.0)
    assert found == SignIn(ADA)
