"""Memory as an MCP server: stdio, streamable HTTP, tokens, and the command line."""

import hashlib
import io
import json
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcpp.cli import main as command_line
from mcpp_agents.memory import MemoryStore, MemoryStoreError
from mcpp_agents.memory.commands import open_location
from mcpp_agents.memory.serving.credentials import Credentials
from mcpp_agents.memory.storage.postgres.address import is_database
from tests.agents.memory.conftest import option_for

pytest.importorskip("mcp")

import httpx2
import uvicorn
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from mcpp_agents.memory.serving.mcp_server import build_server, http_app

COMMAND = "import sys; from mcpp.cli.main import main; sys.exit(main(['memory', *sys.argv[1:]]))"
ALICE, BOB, NO_ORGANIZATION = (
    "alice-token-0123456789",
    "bob-token-0123456789",
    "no-organization-token-0123456789",
)
PRINCIPALS = f"""
[principals.alice]
token = "{ALICE}"
projects = ["web"]

[principals.bob]
token_sha256 = "{hashlib.sha256(BOB.encode()).hexdigest()}"
projects = ["api"]

[principals.stray]
token = "{NO_ORGANIZATION}"
organization = ""
"""
REMEMBER = {"title": "Rotation", "content": "tokens rotate", "kind": "decision"}


def main(arguments: list[str]) -> int:
    """Run `mcpp memory` and return its exit code."""
    return command_line.main(["memory", *arguments])


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with anyio.fail_after(30):
            await test()

    anyio.run(bounded)


def text_of(result: Any) -> str:
    return str(result.content[0].text)


@pytest.mark.rule("M-46")
def test_a_client_lists_and_calls_the_tools(store: MemoryStore) -> None:
    async def test() -> None:
        async with Client(build_server(store, None)) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert set(tools) == {"context", "remember", "synthesis_plan", "forget"}
            assert tools["context"].input_schema["required"] == ["goal"]
            answer = await client.call_tool("remember", REMEMBER)
            stored = answer.structured_content
            assert text_of(answer) == stored["id"]
            pack = await client.call_tool("context", {"goal": "token rotation"})
            assert pack.structured_content["total_items"] == 1
            assert text_of(pack) == pack.structured_content["markdown"]
            assert text_of(pack).startswith("# Context\n")
            plan = await client.call_tool("synthesis_plan", {"goal": "token rotation"})
            assert text_of(plan) == plan.structured_content["markdown"]
            await client.call_tool("forget", {"id": stored["id"]})
            pack = await client.call_tool("context", {"goal": "token rotation"})
            assert pack.structured_content["total_items"] == 0

    run(test)


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("context", {}, "goal"),
        ("context", {"goal": "x", "principal": "alice"}, "principal"),
        ("context", {"goal": "x", "limit": "many"}, "limit"),
        ("forget", {"id": "mem_x"}, "Unknown memory: mem_x"),
        ("synthesize", {}, "Unknown tool"),
    ],
)
def test_a_refusal_is_an_error_with_its_reason(
    store: MemoryStore, name: str, arguments: dict[str, Any], complaint: str
) -> None:
    async def test() -> None:
        async with Client(build_server(store, None)) as client:
            result = await client.call_tool(name, arguments)
            assert result.is_error
            assert complaint in text_of(result)

    run(test)


def test_an_assistant_uses_it_over_stdio(location: str) -> None:
    arguments = ["-c", COMMAND, "serve", *option_for(location), "--embedder", "none"]

    async def test() -> None:
        parameters = StdioServerParameters(command=sys.executable, args=arguments)
        async with Client(parameters) as client:
            await client.call_tool("remember", REMEMBER)
            pack = (await client.call_tool("context", {"goal": "rotation"})).structured_content
            assert pack["sections"][0]["items"][0]["name"] == "Rotation"

    run(test)
    if not is_database(location):
        assert oct(Path(location).stat().st_mode)[-3:] == "600"


@pytest.fixture
def url(store: MemoryStore, tmp_path: Path) -> Iterator[str]:
    with serving(store, tmp_path) as address:
        yield address


@contextmanager
def serving(store: MemoryStore, tmp_path: Path) -> Iterator[str]:
    """Serve a store over HTTP in another thread, and yield the address."""
    file = tmp_path / "principals.toml"
    file.write_text(PRINCIPALS)
    app = http_app(store, Credentials.read(file), host="127.0.0.1")
    listening = socket.create_server(("127.0.0.1", 0))
    # Uvicorn's own logging configuration would enable loggers that other tests disable.
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


async def ask(url: str, token: str, name: str, arguments: dict[str, Any]) -> Any:
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        return await client.call_tool(name, arguments)


def test_a_bearer_token_stands_for_a_principal_with_its_projects(url: str) -> None:
    async def test() -> None:
        await ask(url, ALICE, "remember", {**REMEMBER, "project": "web"})
        await ask(url, ALICE, "remember", REMEMBER)
        mine = await ask(url, ALICE, "context", {"goal": "rotation"})
        his = await ask(url, BOB, "context", {"goal": "rotation"})
        assert mine.structured_content["total_items"] == 2
        assert his.structured_content["total_items"] == 0
        refused = await ask(url, BOB, "context", {"goal": "rotation", "project": "web"})
        assert (refused.is_error, text_of(refused)) == (True, "Project access denied: web")

    run(test)


@pytest.mark.rule("M-39")
def test_many_calls_of_one_principal_do_not_let_another_wait(
    file_store: MemoryStore, path: Path, tmp_path: Path
) -> None:
    async def test(url: str, other: sqlite3.Connection) -> None:
        remember = {"name": "remember", "arguments": REMEMBER}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": remember}
        headers = {"Authorization": f"Bearer {ALICE}", "Accept": "application/json"}
        answered: list[int] = []
        refused = anyio.Event()

        async with (
            httpx2.AsyncClient(headers=headers, timeout=30) as http,
            anyio.create_task_group() as calls,
        ):

            async def call() -> None:
                answered.append((await http.post(url, json=body)).status_code)
                refused.set()

            other.execute("BEGIN IMMEDIATE")
            for _ in range(65):  # more than there are threads, and one more than may wait
                calls.start_soon(call)
            await refused.wait()
            assert answered == [429]
            answer = await ask(url, BOB, "context", {"goal": "rotation"})
            other.execute("ROLLBACK")
        assert answer.structured_content["total_items"] == 0
        assert sorted(answered) == [200] * 64 + [429]

    with (
        serving(file_store, tmp_path) as url,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        run(lambda: test(url, other))


def test_a_client_cannot_hold_a_stream_open(url: str) -> None:
    headers = {"Authorization": f"Bearer {ALICE}", "Accept": "text/event-stream"}
    assert httpx2.get(url, headers=headers).status_code == 405


def test_a_token_without_an_organization_is_refused_with_the_specified_text(url: str) -> None:
    async def test() -> None:
        refused = await ask(url, NO_ORGANIZATION, "context", {"goal": "rotation"})
        assert (refused.is_error, text_of(refused)) == (True, "Organization context required")

    run(test)


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}])
def test_no_token_or_a_wrong_one_is_unauthorized(url: str, headers: dict[str, str]) -> None:
    answer = httpx2.post(url, headers=headers, json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
    assert answer.status_code == 401


def test_few_of_many_guesses_are_looked_at_and_a_right_token_gets_in(url: str) -> None:
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    with httpx2.Client() as http:
        began = time.monotonic()
        found = [
            http.post(url, headers={"Authorization": f"Bearer g{number}"}, json=ping).status_code
            for number in range(60)
        ]
        most = 10 + 5 * (time.monotonic() - began) + 1
        assert set(found) <= {401, 429}
        assert 10 <= found.count(401) <= most
        deadline = time.monotonic() + 10
        while True:
            answer = http.post(url, headers={"Authorization": f"Bearer {ALICE}"}, json=ping)
            if answer.status_code != 429:
                break
            assert time.monotonic() < deadline
    assert answer.status_code != 401


def test_an_ipv6_address_is_served(store: MemoryStore, tmp_path: Path) -> None:
    principals = tmp_path / "principals.toml"
    principals.write_text(PRINCIPALS)
    assert http_app(store, Credentials.read(principals), host="::1").routes


def test_a_foreign_host_is_refused(url: str) -> None:
    headers = {"Authorization": f"Bearer {ALICE}", "Host": "evil.example"}
    answer = httpx2.post(url, headers=headers, json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
    assert answer.status_code == 421


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[principals.a]", "a needs exactly one of"),
        ('[principals.a]\ntoken = "x y"', "a: the token"),
        ('[principals.a]\ntoken_env = "MCPP_NO_SUCH"', "MCPP_NO_SUCH is not set"),
        ('[principals.a]\ntoken_sha256 = "12"', "token_sha256"),
        ('[principals.a]\ntoken_file = "none"', "none"),
        ('[principals.a]\ntoken = "x"\nproject = []', "project"),
        ('[principals.a]\ntoken = "x"\nprojects = "web"', "projects is a list"),
        ('[principals.a]\ntoken = "x"\n[principals.b]\ntoken = "x"', "b has the same token as a"),
        ("[[", "principals.toml"),
        ('[principals.owner]\ntoken = "x"', "owner is reserved"),
        ('[principals."pod:demo"]\ntoken = "x"', "pod:demo is reserved"),
        ('[principals."a\\u001fb"]\ntoken = "x"', "printable"),
    ],
)
def test_an_invalid_entry_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "principals.toml"
    file.write_text(text)
    with pytest.raises(MemoryStoreError, match=complaint):
        Credentials.read(file)


def test_tokens_come_from_files_and_the_environment_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCPP_TEST_TOKEN", "from-env")
    (tmp_path / "token").write_text("from-file\n")
    file = tmp_path / "principals.toml"
    file.write_text(
        '[principals.a]\ntoken_file = "token"\nprojects = "*"\n'
        '[principals.b]\ntoken_env = "MCPP_TEST_TOKEN"'
    )
    credentials = Credentials.read(file)
    a, b = credentials.principal_of("from-file"), credentials.principal_of("from-env")
    assert a is not None
    assert b is not None
    assert (a.id, a.projects, b.id) == ("a", None, "b")
    assert credentials.principal_of("other") is None


def test_the_command_line_remembers_recalls_and_forgets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = ["--file", str(tmp_path / "new" / "memory.db")]
    assert main(["remember", "Rotation", "tokens rotate", "--kind", "decision", *file]) == 0
    stored = capsys.readouterr().out.strip()
    assert main(["context", "rotation", "--embedder", "none", *file]) == 0
    assert "### Rotation" in capsys.readouterr().out
    assert main(["forget", stored, *file]) == 0
    assert main(["context", "rotation", "--json", "--embedder", "none", *file]) == 0
    assert json.loads(capsys.readouterr().out)["total_items"] == 0
    assert main(["forget", stored, *file]) == 1
    assert f"Unknown memory: {stored}" in capsys.readouterr().err


def test_input_that_is_not_text_is_reported_in_one_line(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff"), "utf-8", "strict"))
    assert main(["remember", "Rotation", "-", "--file", str(path)]) == 1
    assert capsys.readouterr().err == "mcpp memory: standard input is not utf-8 text\n"
    assert not path.exists()


@pytest.mark.rule("M-08")
def test_the_command_line_reports_a_replaced_secret(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["remember", "Rotation", "plain", "--file", str(path)]) == 0
    assert capsys.readouterr().err == ""
    assert main(["remember", "Rotation", "password: hunter2", "--file", str(path)]) == 0
    assert "looks like a secret was replaced" in capsys.readouterr().err


@pytest.mark.rule("M-14")
@pytest.mark.parametrize(
    "command", [["context", "rotation"], ["plan", "rotation"], ["forget", "mem_1"], ["audit"]]
)
def test_a_mistyped_file_is_reported_and_not_created(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typo = tmp_path / "typo" / "memory.db"
    assert main([*command, "--file", str(typo)]) == 1
    assert f"{typo} does not exist" in capsys.readouterr().err
    assert not typo.parent.exists()


def remember_rotation(location: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Store an item by the command line and return its id."""
    main(["remember", "Rotation", "tokens rotate", *option_for(location)])
    return capsys.readouterr().out.strip()


def test_the_command_line_shows_the_latest_audit_entries(
    location: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = option_for(location)
    stored = remember_rotation(location, capsys)
    main(["context", "rotation", "--embedder", "none", *file])
    main(["forget", "mem_none", *file])
    capsys.readouterr()
    assert main(["audit", "--last", "2", *file]) == 0
    printed = capsys.readouterr().out
    found, refused = map(json.loads, printed.splitlines())
    assert (found["tool"], found["principal"], found["ids"]) == ("context", "owner", [stored])
    assert (refused["tool"], refused["refused"]) == ("forget", "UnknownMemory")
    assert "rotation" not in printed


@pytest.mark.parametrize(
    "command", [["context", "zebra"], ["context", "zebra", "--json"], ["plan", "zebra"], ["audit"]]
)
def test_remembered_text_does_not_control_the_terminal(
    command: list[str], path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "zebra\x1b]0;owned\x07\r\x9b2J\u202e"
    with MemoryStore.open(path, embedder=None) as store:
        store.remember(hostile, hostile, project="web\x9b2J", valid_at="2026-01-01")
        store.context("zebra", project="web\x9b2J")
    embedder = [] if command[0] == "audit" else ["--embedder", "none"]
    assert main([*command, *embedder, "--file", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "owned" in printed or command[0] == "audit"
    assert not set(printed) & set("\x1b\x07\r\x9b\u202e")


def test_extreme_options_are_no_failure_of_the_program(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["remember", "Rotation", "plain", "--file", str(path)]) == 0
    assert main(["audit", "--last", "9" * 30, "--file", str(path)]) == 0
    deep = '{"a":' * 5000 + "1" + "}" * 5000
    with pytest.raises(SystemExit):
        main(["remember", "Rotation", "plain", "--metadata", deep, "--file", str(path)])
    assert "--metadata: not a JSON object" in capsys.readouterr().err


def test_the_command_line_shows_as_many_related_items_as_asked_for(
    location: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = option_for(location)
    stored = remember_rotation(location, capsys)
    for name in ("One", "Two"):
        main(["remember", name, "no match", "--related-to", f"supports:{stored}", *file])
    capsys.readouterr()
    for more, expected in (([], 2), (["--related-limit", "1"], 1), (["--no-related"], 0)):
        main(["context", "rotation", "--json", "--embedder", "none", *more, *file])
        [section] = json.loads(capsys.readouterr().out)["sections"]
        assert len(section["items"][0]["related"]) == expected


def test_http_without_principals_is_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["serve", "--file", str(path), "--http", "127.0.0.1:0"])
    assert "--principals" in capsys.readouterr().err


def test_principals_without_http_are_refused(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["serve", "--file", str(path), "--principals", "principals.toml"])
    assert "--principals needs --http" in capsys.readouterr().err


def test_an_address_in_use_is_reported_in_one_line(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    principals = tmp_path / "principals.toml"
    principals.write_text(PRINCIPALS)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        used = f"127.0.0.1:{taken.getsockname()[1]}"
        options = ["--file", str(path), "--principals", str(principals)]
        assert main(["serve", "--http", used, *options]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mcpp memory: Cannot listen on {used}: ")


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "127.0.0.1:http", "8788"])
def test_an_invalid_address_is_a_usage_error(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["serve", "--http", address, "--principals", "none"])
    assert f"must be HOST:PORT, not {address!r}" in capsys.readouterr().err


def test_http_prints_its_address_and_stops_on_interrupt(path: Path, tmp_path: Path) -> None:
    principals = tmp_path / "principals.toml"
    principals.write_text(PRINCIPALS)
    http = ["--http", "127.0.0.1:0", "--principals", str(principals)]
    with started([*http, "--file", str(path)]) as process:
        assert process.stderr is not None
        url = process.stderr.readline().removeprefix("mcpp memory: ").strip()
        assert httpx2.post(url).status_code == 401
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""


def test_an_interrupt_stops_the_stdio_server(path: Path) -> None:
    with started(["--file", str(path)]) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write('{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        process.stdin.flush()
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == -signal.SIGINT


WITHOUT_EXTRAS = """
import sys
for name in ("mcp", "mcp_types", "numpy", "onnxruntime", "tokenizers", "wordllama", "starlette",
             "uvicorn", "pydantic", "openai", "anthropic", "httpx"):
    sys.modules[name] = None
"""


@pytest.mark.parametrize(
    "command", [[], ["serve"], ["join"], ["remember"], ["context"], ["forget"], ["audit"]]
)
def test_help_needs_no_extra(command: list[str]) -> None:
    arguments = [sys.executable, "-c", WITHOUT_EXTRAS + COMMAND, *command, "--help"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {' '.join(['mcpp memory', *command])}")


def test_serving_without_its_extra_names_it(path: Path) -> None:
    arguments = [sys.executable, "-c", WITHOUT_EXTRAS + COMMAND, "serve", "--file", str(path)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.endswith("pip install 'mcpp-pods[memory]'\n")


def test_joining_with_a_model_without_its_extra_names_it(path: Path) -> None:
    model = ["--model", "openai:m", "--base-url", "http://127.0.0.1:9/v1"]
    arguments = [sys.executable, "-c", WITHOUT_EXTRAS + COMMAND, "join", "--file", str(path)]
    done = subprocess.run([*arguments, *model], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "mcpp memory needs openai: pip install 'mcpp-pods[agent]'\n"
    assert not path.exists()


def test_serving_over_stdio_does_not_import_an_http_server(path: Path) -> None:
    code = f"import sys; sys.modules['uvicorn'] = None; {COMMAND}"
    arguments = [sys.executable, "-c", code, "serve", "--embedder", "none", "--file", str(path)]
    done = subprocess.run(arguments, input="", capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_file_that_may_be_written_is_created_with_its_folder(tmp_path: Path) -> None:
    by_agent, by_command = tmp_path / "agent" / "memory.db", tmp_path / "a" / "b" / "memory.db"
    open_location(str(by_agent), "none").close()
    assert main(["remember", "Rotation", "tokens", "--file", str(by_command)]) == 0
    for file in (by_agent, by_command):
        assert file.exists()
        assert file.parent.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_created_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["remember", "a", "b", "--file", str(tmp_path / "file" / "memory.db")]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("mcpp memory: Cannot create the folder of ")


@contextmanager
def started(options: list[str]) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", COMMAND, "serve", "--embedder", "none", *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.rule("M-62")
def test_the_address_of_a_database_never_becomes_the_name_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    address = "postgresql://memory:hunter2@127.0.0.1:1/x"
    with pytest.raises(SystemExit):
        main(["remember", "a", "b", "--file", address])
    monkeypatch.setenv("MCPP_URL", "ws://127.0.0.1:1/v0/pods/x/ws")
    monkeypatch.setenv("MCPP_TOKEN", "t")
    agent = ["agent", "--model", "openai:m", "--base-url", "http://127.0.0.1:1/v1"]
    assert command_line.main([*agent, "--memory", address]) == 1
    monkeypatch.setenv("MCPP_MEMORY_DATABASE", "mysql://memory:hunter2@127.0.0.1/x")
    assert command_line.main([*agent, "--memory"]) == 1
    shown = capsys.readouterr().err
    assert "Cannot use the database x" in shown
    assert "MCPP_MEMORY_DATABASE must be" in shown
    assert "hunter2" not in shown
    assert list(tmp_path.iterdir()) == []
