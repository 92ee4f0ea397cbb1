"""The inspector over HTTP: files, security policies, caching and sign-in links."""

import http.client
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from mcpp.client import local_pod
from mcpp_gateway import commands
from tests.inspector.harness import BOUND, MCPP, InspectorHarness, inspector_harness, up

FILES = Path(__file__).parents[2] / "mcpp_gateway" / "inspector"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' blob:; frame-ancestors 'none'"
)


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InspectorHarness]:
    with inspector_harness(tmp_path_factory.mktemp("pod")) as harness:
        yield harness


def get(port: int, path: str, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=BOUND)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("GET", path, headers=named)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


@pytest.mark.rule("G-62")
def test_the_page_is_served_with_its_security_policies(harness: InspectorHarness) -> None:
    response, body = get(harness.port, "/")
    assert response.status == 200
    assert body == (FILES / "index.html").read_bytes()
    policies = response.headers.get_all("Content-Security-Policy")
    assert policies is not None
    assert policies[0] == POLICY
    assert "require-trusted-types-for 'script'" in policies[1]
    assert response.headers["X-Content-Type-Options"] == "nosniff"


def test_every_file_of_the_page_is_served(harness: InspectorHarness) -> None:
    for path in FILES.rglob("*"):
        if path.suffix in (".js", ".css", ".svg"):
            response, body = get(harness.port, f"/inspector/{path.relative_to(FILES).as_posix()}")
            assert (response.status, body) == (200, path.read_bytes())


@pytest.mark.parametrize(
    "path",
    ["/inspector/", "/inspector/../pages.py", "/inspector/%2e%2e/pages.py", "/inspector/x", "/x"],
)
def test_other_paths_are_not_served(harness: InspectorHarness, path: str) -> None:
    assert get(harness.port, path)[0].status == 404


def test_a_cached_file_is_not_sent_again(harness: InspectorHarness) -> None:
    first, _ = get(harness.port, "/inspector/app.js")
    again, body = get(harness.port, "/inspector/app.js", If_None_Match=first.headers["ETag"])
    assert (again.status, body) == (304, b"")
    assert get(harness.port, "/inspector/app.js", If_None_Match='"other"')[0].status == 200


def test_the_page_loads_nothing_from_elsewhere() -> None:
    texts = "".join(
        path.read_text() for path in FILES.rglob("*") if path.suffix in (".js", ".css", ".html")
    )
    assert re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", texts) == []
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", texts) == []


def test_the_page_is_refused_for_a_foreign_host(harness: InspectorHarness) -> None:
    assert get(harness.port, "/", Host="example.org")[0].status == 403


def test_a_token_is_accepted_or_refused(harness: InspectorHarness) -> None:
    good, body = get(harness.port, "/session", Authorization=f"Bearer {harness.token('ada')}")
    assert (good.status, body) == (200, b'{"pod": "demo", "participant": "ada"}')
    assert good.headers["Cache-Control"] == "no-store"
    assert get(harness.port, "/session", Authorization="Bearer wrong")[0].status == 401


@pytest.mark.rule("G-63")
def test_a_sign_in_link_can_be_created_while_the_gateway_runs(tmp_path: Path) -> None:
    def mcpp(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [MCPP, "token", "later", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=BOUND)

    with up(tmp_path) as first:
        said = mcpp("--link")
        link = said.stdout.strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/#[\w-]{22}", link), said
        assert link.partition("#")[0] == first.partition("#")[0]
        port, code = int(link.split(":")[2].partition("/")[0]), link.partition("#")[2]
        response, body = get(port, "/session", MCPP_Code=code)
        assert response.status == 200
        assert b'"participant": "later"' in body
        assert get(port, "/session", MCPP_Code=code)[0].status == 401
        assert get(port, "/invitation")[0].status == 401
    late = mcpp("--link")
    assert (late.returncode, late.stdout) == (2, "")
    assert "no gateway is running here" in late.stderr


@pytest.mark.rule("G-63")
def test_a_sign_in_link_is_created_by_a_gateway_of_ones_own_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, trusted = trustme.CA(), tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(trusted)
    pod = local_pod.create(tmp_path)
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(pod.folder / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(pod.folder / "cert.pem")
    files = 'tls_cert = "cert.pem"\ntls_key = "key.pem"\n'
    pod.path.write_text(pod.path.read_text().replace("[gateway]\n", f"[gateway]\n{files}"))
    command = [MCPP, "token", "later", "--link"]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=BOUND)

    with up(tmp_path) as first:
        assert "CERTIFICATE_VERIFY_FAILED" in run().stderr
        monkeypatch.setenv("MCPP_CA", str(trusted))
        link = run().stdout
        assert link.partition("#")[0] == first.partition("#")[0]
        assert link.startswith("https://127.0.0.1:")


@pytest.mark.rule("G-61")
@pytest.mark.parametrize("size", [0, 5])
def test_a_session_key_that_is_too_short_is_replaced_once(tmp_path: Path, size: int) -> None:
    """Otherwise everyone was signed out at each restart, or sessions were signed with no secret."""
    path = tmp_path / "sessions.key"
    path.write_bytes(b"x" * size)
    session_key = getattr(commands, "_session_key")  # noqa: B009
    key = session_key(tmp_path)
    assert len(key) == 32
    assert session_key(tmp_path) == path.read_bytes() == key
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["sessions.key"]


@pytest.mark.rule("G-60")
def test_up_prints_a_link_that_signs_in_once(tmp_path: Path) -> None:
    with up(tmp_path) as link:
        port, code = int(link.split(":")[2].partition("/")[0]), link.partition("#")[2]
        response, body = get(port, "/session", MCPP_Code=code)
        assert response.status == 200
        session = re.search(rb'"token": "([^"]+)"', body)
        assert session is not None
        bearer = f"Bearer {session[1].decode()}"
        assert get(port, "/session", Authorization=bearer)[0].status == 200
        assert get(port, "/session", MCPP_Code=code)[0].status == 401
    assert (tmp_path / ".mcpp" / "sessions.key").stat().st_mode & 0o777 == 0o600
