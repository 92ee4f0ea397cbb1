"""The configuration of a cluster: mistakes are reported with their key."""

import pytest

from mcpp_gateway import config
from mcpp_gateway.config import ConfigError
from mcpp_gateway.edge.server import without_restart
from mcpp_gateway.report import describe

SERVERS = 'servers = ["nats://a:4222", "nats://b:4222"]'


def parse(*cluster: str, log: str = "") -> config.Config:
    lines = ["[log]", 'kind = "jetstream"', log, "[cluster]", *cluster]
    return config.parse("\n".join(lines), {})


@pytest.mark.parametrize(
    ("key", "lines"),
    [
        ("cluster.servers", []),
        ("cluster.servers", ['servers = ["http://a:80"]']),
        ("cluster.servers", ['servers = ["nats://a:port"]']),
        ("cluster.name", [SERVERS, 'name = "a.b"']),
        ("cluster.replicas", [SERVERS, "replicas = 2"]),
        ("cluster.unreachable_seconds", [SERVERS, "unreachable_seconds = 0.1"]),
        ("cluster.tls_cert", [SERVERS, 'tls_cert = "cert.pem"']),
    ],
)
def test_a_mistake_in_the_cluster_names_its_key(key: str, lines: list[str]) -> None:
    with pytest.raises(ConfigError, match=key):
        parse(*lines)


def test_retention_must_leave_room_between_two_states() -> None:
    with pytest.raises(ConfigError, match="at least 256 MiB"):
        parse(SERVERS, log="retention = { max_bytes = 10_000_000 }")
    with pytest.raises(ConfigError, match=r"at least 0\.1 with jetstream"):
        parse(SERVERS, log="retention = { max_age_days = 0.01 }")


def test_passwords_of_the_servers_are_not_shown() -> None:
    found = parse('servers = ["nats://gateway:pass@word@a:4222", "tls://b:4222"]')
    (line,) = [line for line in describe(found) if line.startswith("log")]
    assert line == "log        jetstream: nats://a:4222, tls://b:4222"
    for mistaken in ("http://gateway:pass@word@a:80", "gateway:pass@word@a:4222", "a:p://word@b"):
        with pytest.raises(ConfigError) as error:
            parse(f'servers = ["{mistaken}"]')
        assert "word" not in str(error.value)


def test_the_environment_sets_the_servers() -> None:
    environment = {"MCPP_LOG__KIND": "jetstream", "MCPP_CLUSTER__SERVERS": '["nats://c:4222"]'}
    assert config.parse("", environment).cluster.servers == ["nats://c:4222"]


def test_a_reload_does_not_change_the_cluster() -> None:
    old, new = parse(SERVERS), parse(SERVERS, "replicas = 1")
    assert without_restart(old, new).cluster == old.cluster


def test_own_tokens_of_a_cluster_are_kept_there_and_not_in_a_folder() -> None:
    found = parse(SERVERS, '[tokens]\npath = "tokens"')
    assert (found.admits_signed, found.shares_tokens, found.token_folder) == (True, True, None)
    assert not parse(SERVERS).admits_signed
