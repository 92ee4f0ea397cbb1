"""The configuration: valid values, invalid values and their messages."""

import re
from pathlib import Path

import pytest

from mcpp_gateway import config
from mcpp_gateway.config import Config, ConfigError

SECRET = "secret-token-0123456789"


def participant(*lines: str) -> str:
    return "\n".join(["[pods.demo.participants.alice]", *lines])


def parse(text: str, **environment: str) -> Config:
    return config.parse(text, environment, name="mcpp.toml")


@pytest.mark.rule("G-45")
def test_a_whole_configuration_is_read() -> None:
    found = parse(
        """
        [gateway]
        port = 0
        allowed_origins = ["https://app.example"]
        [limits]
        burst = 10
        messages_per_second = 5
        """
        + participant(f'token = "{SECRET}"', 'capabilities = [{ kind = "*" }]', "multiple = true")
    )
    assert found.gateway.port == 0
    assert (found.limits.burst, found.limits.messages_per_second) == (10, 5)
    (settings,) = found.pods["demo"]
    assert (settings.id, settings.multiple) == ("alice", True)
    assert found.tokens == {config.digest(SECRET): ("demo", "alice")}
    assert found.warnings == ()


@pytest.mark.rule("G-45")
def test_nothing_at_all_is_a_configuration_with_the_documented_limits() -> None:
    limits = parse("").limits
    assert limits.max_message_bytes == 1_048_576
    assert limits.outbox_bytes == 8_388_608
    assert (limits.burst, limits.context_burst) == (400, 800)


@pytest.mark.rule("G-45")
@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[limits]\nbrust = 1", "mcpp.toml:2: limits.brust"),
        ("[limits]\n\nburst = 'x'", "mcpp.toml:3: limits.burst"),
        ("[limits]\nburst = true", "mcpp.toml:2: limits.burst"),
        ("[limits]\nburst = 0", "mcpp.toml:2: limits.burst"),
        ("[limits]\nmessages_per_second = -1", "mcpp.toml:2: limits.messages_per_second"),
        ("[limits]\nmessages_per_second = nan", "mcpp.toml:2: limits.messages_per_second"),
        ("[limits]\ncontext_idle_seconds = inf", "mcpp.toml:2: limits.context_idle_seconds"),
        ("[limits]\nmax_context_depth = 65", "mcpp.toml:2: limits.max_context_depth"),
        ("[limits]\noutbox_bytes = 4194303", "mcpp.toml:2: limits.outbox_bytes"),
        ("limits.burst = 0", "mcpp.toml:1: limits.burst"),
        ("[gateway]\nport = 65536", "mcpp.toml:2: gateway.port"),
        ("[gateway]\nping_seconds = 0", "mcpp.toml:2: gateway.ping_seconds"),
        ("[gateway]\ntls_cert = 'x'", "mcpp.toml:2: gateway.tls_cert"),
        ("[gateway]\nlog_format = 'xml'", "mcpp.toml:2: gateway.log_format"),
        ("[gateway]\nmetrics_token = 'ä'", "mcpp.toml:2: gateway.metrics_token"),
        *(
            (f"[gateway]\nallowed_origins = ['{origin}']", "mcpp.toml:2: gateway.allowed_origins")
            for origin in (
                "https://x.example/path",
                "https://X.example",
                "https://u@x.example",
                "https://x.example:port",
                "https://x.example:443",
                "ftp://x.example",
            )
        ),
        *(
            (f"[gateway]\ntrusted_proxies = ['{proxy}']", "mcpp.toml:2: gateway.trusted_proxies")
            for proxy in (
                "",
                "proxy",
                "10.0.0.1/8",
                "10.0.0.0/33",
                "10.0.0.1:80",
                "::ffff:10.0.0.1",
            )
        ),
        ("[gateway]\ntrusted_proxies = '10.0.0.1'", "mcpp.toml:2: gateway.trusted_proxies"),
        ("[unknown]", "mcpp.toml:1: unknown"),
        ("[pods.'a b']", "mcpp.toml:1: pods.a b"),
        ("not toml", "mcpp.toml: not valid TOML"),
    ],
)
def test_a_mistake_is_one_line_that_names_its_place(text: str, place: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text)
    assert str(error.value).startswith(place)
    assert "\n" not in str(error.value)


@pytest.mark.rule("G-45", "G-04", "G-46")
@pytest.mark.parametrize(
    "lines",
    [
        [],
        [f'token = "{SECRET}"', f'token_env = "{SECRET}"'],
        [f'token = "{SECRET} with space"'],
        ['token = ""'],
        [f'token = ["{SECRET}"]'],
        ['token_sha256 = "abc"'],
        ['token_env = "NOT_SET"'],
        ['token_file = "not-there"'],
        [f'tokn = "{SECRET}"'],
        [f'token = "{SECRET}"', 'capabilities = [{ kind = "*", payload = [] }]'],
        [f'token = "{SECRET}"', 'capabilities = [{ to = "x" }]'],
        [f'token = "{SECRET}"', "capabilities = [{ kind = 2025-01-01 }]"],
    ],
)
def test_a_bad_participant_is_refused_without_repeating_its_token(lines: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"pods\.demo\.participants\.alice") as error:
        parse(participant(*lines))
    assert SECRET not in str(error.value)


def test_the_defaults_in_the_documentation_are_those_in_use() -> None:
    text = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text()
    [shown] = re.findall(r"has a default:\n\n```toml\n(.*?)```", text, re.DOTALL)
    alice = participant(f'token = "{SECRET}"')
    stated, default = parse(shown + alice), parse(alice)
    assert (stated.gateway, stated.limits) == (default.gateway, default.limits)


@pytest.mark.rule("G-46")
def test_a_token_file_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the file: No such file"):
        config.parse(participant('token_file = "token"'), {}, folder=tmp_path)
    (tmp_path / "token").write_bytes(SECRET.encode() + b"\xff")
    with pytest.raises(ConfigError, match=r"cannot read the file: it is not text$"):
        config.parse(participant('token_file = "token"'), {}, folder=tmp_path)


@pytest.mark.rule("G-46")
def test_a_token_comes_from_the_text_a_digest_a_file_or_the_environment(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"  {SECRET}\n")
    digest = config.digest(SECRET)
    for line in (
        f'token = "{SECRET}"',
        f'token_sha256 = "{digest.hex().upper()}"',
        'token_file = "token"',
        'token_env = "ALICE"',
    ):
        found = config.parse(participant(line), {"ALICE": SECRET}, folder=tmp_path)
        assert list(found.tokens) == [digest]


@pytest.mark.rule("G-45")
def test_a_token_used_twice_is_an_error_however_it_is_stated() -> None:
    text = participant(f'token = "{SECRET}"') + (
        f'\n[pods.other.participants.bob]\ntoken_sha256 = "{config.digest(SECRET).hex()}"'
    )
    with pytest.raises(ConfigError, match=r"bob.*same token as pods\.demo\.participants\.alice"):
        parse(text)


@pytest.mark.rule("G-45")
def test_the_metrics_token_must_not_be_a_participant_token() -> None:
    text = f'[gateway]\nmetrics_token = "{SECRET}"\n' + participant(f'token = "{SECRET}"')
    with pytest.raises(ConfigError, match=r"2: gateway.metrics_token: is also the token") as error:
        parse(text)
    assert SECRET not in str(error.value)


@pytest.mark.rule("O-01")
@pytest.mark.parametrize("other", ["metrics_token", "participant"])
def test_the_admins_token_is_its_own(other: str) -> None:
    text = participant(f'token = "{SECRET if other == "participant" else "another"}"')
    if other == "metrics_token":
        text += f'\n[gateway]\nmetrics_token = "{SECRET}"'
    with pytest.raises(ConfigError, match=r"admin.token: is also .*(metrics_token|participant)"):
        parse(f'{text}\n[admin]\ntoken_sha256 = "{config.digest(SECRET).hex()}"')


def test_files_are_found_beside_the_configuration(tmp_path: Path) -> None:
    text = "[gateway]\ntls_cert = 'c.pem'\ntls_key = '/k.pem'\n" + participant('token = "x"')
    found = config.parse(text, {}, folder=tmp_path).gateway
    assert (found.tls_cert, found.tls_key) == (str(tmp_path / "c.pem"), "/k.pem")


@pytest.mark.rule("G-04")
def test_a_short_token_gets_a_warning_that_does_not_repeat_it() -> None:
    (warning,) = parse(participant('token = "hunter2"')).warnings
    assert "alice.token" in warning
    assert "hunter2" not in warning


@pytest.mark.rule("G-09")
@pytest.mark.parametrize("id", ["system:gateway", "system:x", "a b", "", "é", "x" * 65])
def test_ids_that_are_the_gateways_or_none_cannot_be_configured(id: str) -> None:
    with pytest.raises(ConfigError):
        parse(f'[pods.demo.participants."{id}"]\ntoken = "{SECRET}"')


@pytest.mark.rule("G-45")
def test_the_environment_overrides_the_file() -> None:
    found = parse(
        "[limits]\nburst = 1\n",
        MCPP_LIMITS__BURST="10",
        MCPP_GATEWAY__HOST="127.0.0.2",
        MCPP_GATEWAY__METRICS_TOKEN="12345678901234567890",
        MCPP_GATEWAY__ALLOWED_ORIGINS='["https://a.example"]',
        MCPP_URL="ws://unrelated",
        OTHER__THING="unrelated",
    )
    assert found.limits.burst == 10
    assert found.gateway.host == "127.0.0.2"
    assert found.gateway.metrics_token == "12345678901234567890"
    assert found.gateway.allowed_origins == ["https://a.example"]


@pytest.mark.rule("G-45")
@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MCPP_LIMITS__BRUST", "1"),
        ("MCPP_LIMITS__BURST", "many"),
        ("MCPP_LIMITS__BURST", "0"),
        ("MCPP_PODS__DEMO", "x"),
        ("MCPP_GATEWAY__PORT", "99999"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(variable: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^{variable}: "):
        parse("", **{variable: value})


@pytest.mark.rule("G-45")
def test_a_file_that_cannot_be_read_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the file"):
        config.load(tmp_path / "missing.toml", {})
    (tmp_path / "latin1.toml").write_bytes(b"# \xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        config.load(tmp_path / "latin1.toml", {})


@pytest.mark.rule("F-19", "G-45")
def test_hears_is_a_filter_and_a_mistake_names_its_key() -> None:
    token = f'token = "{SECRET}"'
    found = parse(participant(token, 'hears = { not = { type = "reasoning" } }'))
    (settings,) = found.pods["demo"]
    assert settings.hears.to_json() == {"not": {"type": "reasoning"}}
    assert parse(participant(token)).pods["demo"][0].hears.to_json() == {"all": []}
    for line, reason in {
        'hears = { sort = "x" }': "has no key",
        'hears = { any = [{ from = "a b" }] }': "is not a text that could match",
        'hears = "main"': "Expected `object",
    }.items():
        with pytest.raises(ConfigError, match=r"mcpp.toml:3: pods.demo.participants.alice.hears"):
            parse(participant(token, line))
        with pytest.raises(ConfigError, match=reason):
            parse(participant(token, line))


@pytest.mark.rule("G-68")
def test_a_pod_has_room_for_at_least_one_outbox() -> None:
    with pytest.raises(ConfigError, match=r"limits.pod_outbox_bytes: must be at least"):
        parse("[limits]\npod_outbox_bytes = 1000")
    with pytest.raises(ConfigError, match=r"gateway.max_outbox_bytes"):
        parse("[gateway]\nmax_outbox_bytes = 1000")
