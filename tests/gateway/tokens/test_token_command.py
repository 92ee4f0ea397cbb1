"""`mcpp token` with a gateway's configuration: sign, list and revoke."""

import time
from pathlib import Path

import jwt
import pytest

from mcpp.cli.main import main
from mcpp.client import local_pod
from mcpp_gateway.tokens.store import TokenStore

CONFIG = """
[tokens]
path = "tokens"
[pods.demo.participants.alice]
token = "0123456789abcdef"
[pods.lab]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.toml"
    path.write_text(CONFIG)
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert main(["token", *map(str, arguments)]) == 0
    return capsys.readouterr().out.strip()


@pytest.mark.rule("S-10")
def test_tokens_are_signed_listed_and_revoked(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rights = ["--can", "chat", "--can", '{"kind": "mcp/*", "to": "files"}']
    options = ["--config", str(config), "--pod", "demo", "--hears", "not type:reasoning"]
    limits = ["--limit", "messages_per_second=0.5", "--limit", "burst=3"]
    token = run(capsys, "ada", *options, *rights, *limits, "--expires", "30d")
    claims = jwt.decode(token, options={"verify_signature": False})
    assert claims["mcpp"] == {
        "capabilities": [{"kind": "chat"}, {"kind": "mcp/*", "to": "files"}],
        "hears": {"not": {"type": "reasoning"}},
        "limits": {"messages_per_second": 0.5, "burst": 3},
    }
    assert (claims["sub"], claims["pod"]) == ("ada", "demo")
    assert abs(claims["exp"] - time.time() - 30 * 86_400) < 60
    listed = run(capsys, "--list", "--config", config)
    assert token not in listed
    assert claims["jti"] in listed
    assert "(configured)" in listed
    run(capsys, claims["jti"], "--revoke", "--config", config)
    assert "revoked" in run(capsys, "--list", "--config", config)
    key = run(capsys, "--new-key", "--config", config).split()[-1]
    newer = run(capsys, "ada", "--config", config, "--expires", "1h")
    assert jwt.get_unverified_header(newer)["kid"] == key
    assert len(TokenStore(config.parent / "tokens").public_keys()) == 2
    for path in (config.parent / "tokens").iterdir():
        assert path.stat().st_mode & 0o077 == 0


def test_revoking_says_that_a_configured_token_stays_valid(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, is_told in (("ada", False), ("alice", True)):
        assert main(["token", name, "--revoke", "--config", str(config)]) == 1
        assert ("which stays valid" in capsys.readouterr().err) == is_told


ISSUER = """
[issuers.company]
jwks_url = "https://login.example.org/keys"
audience = "mcpp"
"""


def test_revoking_an_unknown_name_in_a_local_pod_says_that_there_is_no_such_participant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    local_pod.create()
    assert main(["token", "adda", "--revoke"]) == 1
    assert "nothing is revoked: no participant 'adda' is known" in capsys.readouterr().err


@pytest.mark.rule("S-10")
def test_revoking_a_name_that_is_not_known_fails_unless_another_issuer_may_have_used_it(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "ada", "--config", config, "--expires", "1h")
    store = TokenStore(config.parent / "tokens")
    assert main(["token", "adda", "--revoke", "--config", str(config)]) == 1
    output = capsys.readouterr()
    assert (output.out, "no signed token of 'adda' is known" in output.err) == ("", True)
    assert store.revocations() == []
    config.write_text(CONFIG + ISSUER)
    assert main(["token", "adda", "--revoke", "--config", str(config)]) == 0
    output = capsys.readouterr()
    assert "revoked until" in output.out
    assert "no token of 'adda' is known" in output.err
    assert {each.value for each in store.revocations()} == {"adda"}
    assert main(["token", "ada", "--revoke", "--config", str(config)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["ada"], "--expires"),
        (["ada", "--link"], "--link is for the pod of `mcpp up`"),
        (["system:x", "--expires", "1d"], "reserved"),
        (["alice", "--expires", "1d"], "is configured in pod 'demo'"),
        (["ada", "--pod", "nowhere", "--expires", "1d"], "no pod 'nowhere'"),
        (["ada", "--hears", "nonsense:1", "--expires", "1d"], "nonsense"),
        (["ada", "--hears", " ", "--expires", "1d"], "--hears must not be empty"),
        ([], "name a participant"),
        (["", "--revoke"], "name a participant"),
        (["ada", "--pod", "demo", "--revoke"], "--revoke does not go with --pod"),
        (["ada", "--revoke", "--expires", "1h"], "--revoke does not go with --expires"),
        (["ada", "--revoke", "--multiple"], "--revoke does not go with --multiple"),
        (["ada", "--link", "--expires", "1h"], "--link does not go with --expires"),
        (["--list", "--pod", "demo"], "--list does not go with --pod"),
        (["--new-key", "--can", "chat"], "--new-key does not go with --can"),
        (["--delete-key", "1", "--admin"], "--delete-key does not go with --admin"),
        (["ada", "--list"], "leave out 'ada'"),
    ],
)
def test_mistakes_are_explained_in_a_line(
    config: Path, arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["token", *arguments, "--config", str(config)]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("time", ["0d", "367d", "soon", "1y", "-1d"])
def test_a_token_lives_a_year_at_most(
    config: Path, time: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["token", "ada", "--config", str(config), f"--expires={time}"])


@pytest.mark.parametrize("kind", ["", " "])
def test_a_token_that_could_send_nothing_is_not_signed(
    config: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["token", "ada", "--config", str(config), "--expires=1d", "--can", kind])
    assert "argument --can: must not be empty" in capsys.readouterr().err


@pytest.mark.parametrize("limit", ["burst", "burst=0", "burst=x", "burst=1.5", "max_hops=1", "=1"])
def test_limits_that_no_gateway_would_accept_are_not_signed(
    config: Path, limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["token", "ada", "--config", str(config), "--expires=1d", "--limit", limit])
    assert "argument --limit: " in capsys.readouterr().err


@pytest.mark.rule("G-04")
def test_a_token_that_is_too_long_for_a_gateway_is_not_signed(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = [f"--can=mcp/request:tools/call:tool-{number}" for number in range(300)]
    arguments = ["token", "ada", "--config", str(config), "--expires=1d"]
    assert main([*arguments, *kinds]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "more than the 8192 that a gateway accepts" in output.err
    assert main(["token", "--list", "--config", str(config)]) == 0
    assert "ada" not in capsys.readouterr().out
