"""Metrics, dashboard, alert rules, `--check` and warnings."""

import asyncio
import json
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mcpp.cli.main import main
from mcpp_gateway import config
from mcpp_gateway.tokens.store import TokenStore
from tests.gateway.sockets import (
    BOUND,
    chat,
    config_text,
    id_of,
    joined,
    receive_until,
    running,
    token,
    upgrade_request,
)

pytestmark = pytest.mark.anyio
DEPLOY = Path(__file__).parents[3] / "deploy"
PROMTOOL = shutil.which("promtool")
NODE = shutil.which("node")
NODE_MODULES = Path(__file__).parents[3] / ".mcp-servers" / "node_modules"
TSC = NODE_MODULES / "typescript" / "bin" / "tsc"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def metrics(port: int) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer.partition(b"\r\n\r\n")[2].decode()


async def observed(tmp_path: Path, kind: str) -> str:
    log = f'[log]\nkind = "{kind}"\npath = "{tmp_path}"\n'
    async with (
        asyncio.timeout(3 * BOUND),
        running(f"{config_text()}\n[pods.lab]\n{log}") as gateway,
        joined(gateway, "alice") as alice,
    ):
        for _ in range(20):
            await alice.send(last := chat("alice"))
            await receive_until(alice, id_of(last))
        return await metrics(gateway.port)


@pytest.mark.rule("G-44")
@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_metrics_tell_latency_lag_bytes_and_builds(tmp_path: Path, kind: str) -> None:
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(await observed(tmp_path, kind))
        for sample in family.samples
    }
    assert found["mcpp_delivery_seconds_count",] >= 20
    assert found["mcpp_delivery_seconds_bucket", "+Inf"] == found["mcpp_delivery_seconds_count",]
    assert found["mcpp_participants", "demo"] == 1
    assert found["mcpp_lag_entries", "demo"] == 0
    assert found["mcpp_log_entries_total", "demo"] >= 21
    assert found["mcpp_received_total", "demo"] == 20
    assert found["mcpp_delivered_total", "demo"] >= 20
    for name in ("received", "delivered", "received_bytes", "sent_bytes"):
        assert found[f"mcpp_{name}_total", "lab"] == 0
    assert found["mcpp_received_bytes_total", "demo"] > 1000
    assert found["mcpp_sent_bytes_total", "demo"] > 1000
    assert found["mcpp_logins_failed_total", "401"] == 0
    assert found["process_resident_memory_bytes",] > 1_000_000
    assert any(name == "mcpp_build_info" for name, *_ in found)
    if kind == "file":
        assert found["mcpp_log_sync_seconds_count",] >= 1
        assert found["mcpp_log_sync_seconds_sum",] > 0


@pytest.mark.rule("G-44")
async def test_a_reader_that_does_not_read_has_a_lag() -> None:
    text = config_text(history_bytes=50_000_000, messages_per_second=0)
    async with (
        asyncio.timeout(3 * BOUND),
        running(text) as gateway,
        joined(gateway, "alice") as alice,
    ):
        with socket.create_connection(("127.0.0.1", gateway.port)) as bob:
            bob.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            bob.sendall(upgrade_request(gateway.port, f"Authorization: Bearer {token('bob')}"))
            size = 40_000
            while gateway.outbox_bytes() < 20 * size:  # the system's buffers are full
                await alice.send(last := chat("alice", "x" * size))
                await receive_until(alice, id_of(last))
            unsent = gateway.outbox_bytes() / size
            found = await metrics(gateway.port)
    lag = re.search(r"^mcpp_lag_entries.* ([0-9.]+)$", found, re.MULTILINE)
    assert lag is not None
    assert 0.9 * unsent < float(lag[1]) < 1.1 * unsent


async def test_every_metric_of_dashboard_and_alerts_exists(tmp_path: Path) -> None:
    names = set(re.findall(r"^(\w+)[{ ]", await observed(tmp_path, "file"), re.MULTILINE))
    only_elsewhere = {
        "mcpp_cluster_reachable",
        "mcpp_refused_total",
        "mcpp_issuer_keys_age_seconds",
    }
    for name in ("alerts.yaml", "grafana-dashboard.json"):
        text = (DEPLOY / name).read_text()
        used = set(re.findall(r"\b((?:mcpp|process)_\w+)\b", text)) - {"mcpp_gateways"}
        assert used - names - only_elsewhere == set(), name


def test_the_dashboard_has_the_shape_that_grafana_imports() -> None:
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    assert board["schemaVersion"] >= 36
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    variables = {each["name"] for each in board["templating"]["list"]}
    for panel in board["panels"]:
        assert panel["gridPos"].keys() == {"h", "w", "x", "y"}
        assert panel["type"] in ("timeseries", "stat", "table")
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= variables
            # What is shown by pod is that of the pods that were chosen.
            assert ("by (pod" in target["expr"]) == ("pod" in used)


def compile_dashboard(folder: Path, board: Any) -> "subprocess.CompletedProcess[str]":
    """Check a dashboard against the types of Grafana itself, with the TypeScript compiler."""
    text = f"import type {{ Dashboard }} from '@grafana/schema';\nconst board: Dashboard = {board};"
    (folder / "board.ts").write_text(text)
    (folder / "node_modules").symlink_to(NODE_MODULES)
    options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "esnext"]
    command = [str(NODE), str(TSC), *options, "--moduleResolution", "bundler", "board.ts"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.skipif(
    NODE is None or not TSC.exists() or not (NODE_MODULES / "@grafana/schema").exists(),
    reason="needs `make setup-mcp` with npm",
)
def test_the_dashboard_has_grafanas_own_types(tmp_path: Path) -> None:
    text = (DEPLOY / "grafana-dashboard.json").read_text()
    for name, board, code in (
        ("good", text, 0),
        ("bad", text.replace('"gridPos"', '"gridPosition"'), 2),
        ("worse", text.replace('"refresh": "', '"refresh": 7, "x": "'), 2),
    ):
        (tmp_path / name).mkdir()
        done = compile_dashboard(tmp_path / name, board)
        assert bool(done.returncode) == bool(code), (name, done.stdout)


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_the_alert_rules_are_valid() -> None:
    command = [str(PROMTOOL), "check", "rules", str(DEPLOY / "alerts.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


AGES_OF_KEYS = f"""
rule_files: [{DEPLOY / "alerts.yaml"}]
tests:
  - interval: 1m
    input_series:
      - {{ series: 'mcpp_issuer_keys_age_seconds{{issuer="down"}}', values: 3500+60x12 }}
      - {{ series: 'mcpp_issuer_keys_age_seconds{{issuer="never"}}', values: {"Inf " * 12} }}
      - {{ series: 'mcpp_issuer_keys_age_seconds{{issuer="back"}}', values: 3500+60x4 5+60x8 }}
    promql_expr_test:
      - {{ eval_time: 4m, expr: 'ALERTS{{alertstate="firing"}}' }}
      - eval_time: 10m
        expr: count by (alertname, issuer) (ALERTS{{alertstate="firing"}})
        exp_samples:
          - {{ labels: '{{alertname="McppIssuerKeysOld", issuer="down"}}', value: 1 }}
          - {{ labels: '{{alertname="McppIssuerKeysOld", issuer="never"}}', value: 1 }}
"""


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_keys_that_cannot_be_read_for_an_hour_raise_an_alert(tmp_path: Path) -> None:
    (tmp_path / "ages.yaml").write_text(AGES_OF_KEYS)
    command = [str(PROMTOOL), "test", "rules", str(tmp_path / "ages.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# --- checking a configuration ---------------------------------------------------------------------

ISSUER = '[issuers.i]\njwks_url = "https://example.org"\naudience = "x"\n'


def test_check_prints_what_a_configuration_means(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(config_text() + '[admin]\ntoken = "0123456789abcdef"\n')
    path.chmod(0o600)
    assert main(["gateway", "--check", "--config", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "pod        demo: alice, bob, carol" in shown
    assert "admin      its own token" in shown
    assert "metrics    /metrics, for this machine\n" in shown
    assert "mcp        /mcp, for participants that are MCP clients" in shown
    assert "WARNING" not in shown
    assert "0123456789abcdef" not in shown
    for mistake in ("[gateway]\nport = 'x'", "[gateway]\nport = 8787\n"):  # without a pod
        path.write_text(mistake)
        assert main(["gateway", "--check", "--config", str(path)]) == 2
    path.write_text(
        '[gateway]\nhost = "::1"\ntrusted_proxies = ["::1", "10.0.0.0/8"]\nmcp = false\n'
        'metrics_token = "0123456789abcdef"\n[pods.demo]\n'
    )
    path.chmod(0o600)
    assert main(["gateway", "--check", "--config", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "ws://[::1]:8787/ws" in shown
    assert "proxies    X-Forwarded-For counts from ::1, 10.0.0.0/8" in shown
    assert "metrics    /metrics, for this machine and all who have its token" in shown
    assert "mcp        " not in shown
    assert "0123456789abcdef" not in shown
    assert "WARNING" not in shown


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ('[log]\nkind = "file"\npath = "/proc/logs"', "log.path: cannot write to /proc: "),
        ('[log]\nkind = "file"\npath = "a-file"', "log.path: cannot write to "),
        ('[log]\nkind = "file"\npath = "logs-of-a-file"', "log.path: cannot write to "),
        ('[tokens]\npath = "/proc/self"', "tokens.path: cannot write to /proc/self: "),
        ('[tokens]\npath = "/proc/tokens"', "tokens.path: cannot write to /proc: "),
        ('[tokens]\npath = "missing/tokens"', "missing: no such folder"),
    ],
)
def test_check_fails_for_a_folder_that_cannot_be_written(
    section: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a-file").touch()
    (tmp_path / "logs-of-a-file").mkdir()
    (tmp_path / "logs-of-a-file" / "demo").touch()  # where the pod's folder should be
    path = tmp_path / "gateway.toml"
    path.write_text(f"{section}\n[pods.demo]\n")
    assert main(["gateway", "--check", "--config", str(path)]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize("exists", [False, True])
def test_check_creates_nothing(tmp_path: Path, exists: bool) -> None:
    if exists:
        (tmp_path / "logs" / "demo").mkdir(parents=True)
        (tmp_path / "tokens").mkdir()
    path = tmp_path / "gateway.toml"
    path.write_text('[log]\nkind = "file"\npath = "logs"\n[tokens]\npath = "tokens"\n[pods.demo]\n')
    before = sorted(tmp_path.rglob("*"))
    assert main(["gateway", "--check", "--config", str(path)]) == 0
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.rule("O-05")
@pytest.mark.parametrize(
    ("capability", "is_everything"),
    [
        ('kind = "*"', True),
        ('kind = "**"', True),
        ('kind = ["chat", "*"]', True),
        ('kind = ["*", "!chat"]', False),
        ('kind = "!chat"', False),
        ('kind = "*", to = "files"', False),
        ('kind = "chat*"', False),
    ],
)
def test_who_may_send_everything_is_counted_however_it_is_written(
    capability: str, is_everything: bool
) -> None:
    many = {f"p{i}": f"capabilities = [{{ {capability} }}]" for i in range(6)}
    warnings = config.parse(config_text(many), {}).warnings
    assert any("6 participants may send everything" in each for each in warnings) == is_everything
    text = f"{ISSUER}allow = {{ capabilities = [{{ {capability} }}] }}\n[pods.demo]\n"
    warnings = config.parse(text, {}).warnings
    assert any("everyone it signs tokens for" in each for each in warnings) == is_everything


@pytest.mark.rule("O-05")
@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ('[gateway]\nhost = "0.0.0.0"\n', "without TLS"),
        ('[gateway]\ntrusted_proxies = ["0.0.0.0/0"]\n', "0.0.0.0/0 lets every client choose"),
        ('[gateway]\ntrusted_proxies = ["::1", "::/0"]\n', "::/0 lets every client choose"),
        ('[pods.demo.participants.a]\ntoken = "short"\n', "can be guessed"),
        ('[gateway]\nmetrics_token = "short"\n', "gateway.metrics_token is shorter than 16"),
        ('[pods.demo.participants.a]\ntoken_file = "token"\n', "can read token"),
        (
            "".join(
                f'[pods.demo.participants.p{i}]\ntoken = "0123456789abcdef-{i}"\n'
                'capabilities = [{ kind = "*" }]\n'
                for i in range(6)
            ),
            "6 participants may send everything",
        ),
        (
            "".join(
                f'[issuers.i{i}]\njwks_url = "https://example.org"\naudience = "x"\n'
                for i in range(2)
            ),
            "give each issuer a pattern",
        ),
        (
            '[tokens]\npath = "x"\n[issuers.i]\njwks_url = "https://example.org"\naudience = "x"\n',
            "give each issuer a pattern",
        ),
        (
            '[issuers.i]\njwks_url = "https://example.org"\naudience = "x"\n',
            "issuers.i: without a log in files",
        ),
        (ISSUER + "allow = { person = true }\n", "issuers.i.allow: everyone it signs tokens for"),
        (
            ISSUER + 'allow = { pods = ["lab", "x-*"] }\n[pods.demo]\n',
            "issuers.i.allow.pods: no pod has such a name",
        ),
        ('[gateway]\ntls_cert = "cert"\ntls_key = "token"\n', "tls_key: every user"),
        ('[cluster]\ncredentials = "token"\n', "credentials: every user"),
    ],
)
def test_what_is_unsafe_is_warned_of(text: str, warning: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef")
    (tmp_path / "token").chmod(0o644)
    found = config.parse(text, {}, folder=tmp_path).warnings
    assert any(warning in each for each in found), found


@pytest.mark.rule("O-05")
@pytest.mark.parametrize(
    "allow",
    ['pods = ["demo", "later"]', 'participants = ["corp-*"]', 'capabilities = [{ kind = "chat" }]'],
)
def test_an_issuer_that_is_restricted_is_not_warned_of(allow: str) -> None:
    text = f"{ISSUER}allow = {{ {allow} }}\n[pods.demo]\n"
    assert not any("allow" in each for each in config.parse(text, {}).warnings)


PARTICIPANTS = "[pods.demo.participants]\n"
SECRET = "token-of-alice-0123456789"


@pytest.mark.rule("O-05")
@pytest.mark.parametrize(
    ("text", "is_secret"),
    [
        (config_text(), True),
        (f'{PARTICIPANTS}alice = {{ token = "{SECRET}" }}', True),
        (f'{PARTICIPANTS}alice.token = "{SECRET}"', True),
        (f'{PARTICIPANTS}alice = {{ "token" = "{SECRET}" }}', True),
        (f'[pods.demo]\n[gateway]\n"metrics_token" = "{SECRET}"', True),
        ('[pods.demo]\n[cluster]\nservers = ["nats://mcpp:secret@localhost"]', True),
        ('[pods.demo]\n[cluster]\nservers = ["nats://localhost"]', False),
        (f'{PARTICIPANTS}token = {{ token_sha256 = "{"0" * 64}" }}', False),
    ],
)
def test_a_readable_file_with_secrets_is_warned_of(
    text: str, is_secret: bool, tmp_path: Path
) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(text)
    path.chmod(0o644)
    assert any("chmod o-r" in each for each in config.load(path, {}).warnings) == is_secret
    path.chmod(0o640)
    assert config.load(path, {}).warnings == ()


@pytest.mark.rule("O-05")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o604, 0o620])
def test_a_signing_key_that_others_can_read_or_change_is_warned_of(
    tmp_path: Path, mode: int, capsys: pytest.CaptureFixture[str]
) -> None:
    store = TokenStore(tmp_path / "tokens")
    store.create()
    (key,) = (tmp_path / "tokens").glob("key-*.pem")
    key.chmod(mode)
    path = tmp_path / "gateway.toml"
    path.write_text('[tokens]\npath = "tokens"\n[pods.demo]\n')
    assert main(["gateway", "--check", "--config", str(path)]) == 0
    warning = f"other users can read or change {key}"
    assert (warning in capsys.readouterr().out) == (mode != 0o600)


@pytest.mark.rule("O-05")
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o770, 0o1777])
def test_a_folder_in_which_others_could_add_signing_keys_is_warned_of(
    tmp_path: Path, mode: int
) -> None:
    folder = tmp_path / "tokens"
    TokenStore(folder).create()
    folder.chmod(mode)
    path = tmp_path / "gateway.toml"
    path.write_text('[tokens]\npath = "tokens"\n[pods.demo]\n')
    warning = f"other users can add keys to {folder}"
    found = any(warning in each for each in config.load(path, {}).warnings)
    assert found == (mode in (0o770, 0o1777))
