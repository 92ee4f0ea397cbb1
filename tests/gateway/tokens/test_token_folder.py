"""The folder of a gateway's own tokens: damaged files, and files of other users."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jwt
import pytest

from mcpp.cli.main import main
from mcpp_gateway.config import ConfigError
from mcpp_gateway.tokens.keys import KeySetError
from mcpp_gateway.tokens.revocations import TokenFileError
from mcpp_gateway.tokens.store import TokenStore
from tests.gateway.sockets import config_text, running
from tests.gateway.tokens.test_sockets_tokens import status
from tests.gateway.tokens.test_withdrawn_keys import look, sign

_OTHER = 65_534  # a user and a group without rights

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a key, a token of ada and one of eve, which is revoked."""
    store = TokenStore(tmp_path / "tokens")
    store.create()
    sign(store, "ada")
    sign(store, "eve")
    store.revoke("eve", time.time())
    return store.folder


@pytest.fixture
def others_place() -> Iterator[Path]:
    """Return a folder of another user, below folders that everyone may enter."""
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    os.chown(place, _OTHER, _OTHER)
    try:
        yield place
    finally:
        shutil.rmtree(place)


@contextmanager
def user(id: int) -> Iterator[None]:
    os.seteuid(id)
    try:
        yield
    finally:
        os.seteuid(0)


def gateway_text(folder: Path) -> str:
    return config_text() + f'[tokens]\npath = "{folder}"\n'


def mcpp_token(path: Path, *arguments: str) -> int:
    return main(["token", *arguments, "--config", str(path)])


@pytest.mark.rule("S-10")
@pytest.mark.anyio
@pytest.mark.parametrize("data", [b"", b"[{", b"\xff", None])
async def test_a_gateway_does_not_start_without_its_revocations(
    folder: Path, data: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "revoked.json"
    path.unlink()
    if data is None:
        path.mkdir()  # as unreadable for root as for others
    else:
        path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"revoked\.json"):
        async with running(gateway_text(folder)):
            pass
    file = folder.parent / "gateway.toml"
    file.write_text(gateway_text(folder))
    assert main(["gateway", "--config", str(file), "--check"]) == 2
    error = capsys.readouterr().err
    assert ("revoked.json" in error, error.count("\n")) == (True, 1)


@pytest.mark.rule("S-10")
@pytest.mark.anyio
async def test_a_running_gateway_keeps_the_revocations_it_knows(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, path = TokenStore(folder), folder / "revoked.json"
    caplog.set_level("INFO", "mcpp.gateway")
    async with running(gateway_text(folder)) as gateway:
        token = sign(store, "bob")
        store.revoke("bob", time.time())
        look(gateway)
        kept = path.read_bytes()
        path.write_bytes(b"[{")
        look(gateway)
        look(gateway)
        assert await status(gateway, token) == 401
        assert [each.message for each in caplog.records].count("revocations cannot be read") == 1
        path.write_bytes(kept)
        look(gateway)
        assert "revocations can be read again" in caplog.messages


@pytest.mark.anyio
async def test_a_damaged_list_of_issued_tokens_fails_the_check_and_not_the_start(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (folder / "issued.jsonl").open("ab") as file:
        file.write(b'{"id": \n')
    path = folder.parent / "gateway.toml"
    path.write_text(gateway_text(folder))
    assert main(["gateway", "--config", str(path), "--check"]) == 2
    assert "issued.jsonl: line 3" in capsys.readouterr().err
    async with running(gateway_text(folder)):
        pass


def test_a_damaged_file_is_explained_in_a_line_and_keeps_no_name_from_being_revoked(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder.parent / "gateway.toml"
    path.write_text(gateway_text(folder))
    lines = (folder / "issued.jsonl").read_bytes()
    (folder / "issued.jsonl").write_bytes(b'{"id": \n\xff\n' + lines)
    assert mcpp_token(path, "ada", "--revoke") == 0
    assert "revoked until" in capsys.readouterr().out
    assert {each.value for each in TokenStore(folder).revocations()} == {"ada", "eve"}
    # A damaged line may be that of a name which no other line has.
    assert mcpp_token(path, "fay", "--revoke") == 0
    assert "fay" in {each.value for each in TokenStore(folder).revocations()}
    assert mcpp_token(path, "new", "--expires", "1h") == 0  # writes the list again
    assert (folder / "issued.jsonl").read_bytes().startswith(b'{"id": \n\xff\n' + lines)
    assert mcpp_token(path, "guy", "--revoke") == 0
    (folder / "revoked.json").write_bytes(b"[{")
    for arguments in (["ada", "--revoke"], ["--list"]):
        assert mcpp_token(path, *arguments) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("mcpp token: ")
        assert "revoked.json: damaged" in error


@pytest.mark.rule("S-10")
def test_a_revocation_is_on_the_disk_with_its_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def watch(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watch)
    TokenStore(folder).revoke("ada", time.time())
    draft, place = synced
    assert draft.startswith(f"{folder}/.revoked.json.")
    assert place == str(folder)


@as_root
@pytest.mark.rule("S-10")
@pytest.mark.anyio
async def test_what_root_writes_belongs_to_the_owner_of_the_folder(others_place: Path) -> None:
    path, folder = others_place / "gateway.toml", others_place / "tokens"
    path.write_text(gateway_text(folder))
    path.chmod(0o644)
    for arguments in (["ada", "--expires", "1h"], ["ada", "--revoke"], ["--new-key"]):
        assert mcpp_token(path, *arguments) == 0
    for each in (folder, *folder.iterdir()):
        assert (each.stat().st_uid, each.stat().st_gid) == (_OTHER, _OTHER)
        assert each.stat().st_mode & 0o077 == 0
    with user(_OTHER):
        store = TokenStore(folder)
        store.check()
        store.create()
        store.revoke("ada", time.time())
        async with running(gateway_text(folder)) as gateway:
            assert {each.value for each in gateway.tokens.revocations} == {"ada"}  # type: ignore[union-attr]


@as_root
@pytest.mark.parametrize("mode", [0o700, 0o777])
def test_a_user_who_is_not_the_owner_of_the_folder_is_refused(
    others_place: Path, mode: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path, folder = others_place / "gateway.toml", others_place / "tokens"
    path.write_text(gateway_text(folder))
    path.chmod(0o644)
    others_place.chmod(0o755)
    TokenStore(folder).create()
    folder.chmod(mode)
    before = sorted(folder.iterdir())
    with user(_OTHER - 1):
        for arguments in (["ada", "--expires", "1h"], ["ada", "--revoke"], ["--new-key"]):
            assert mcpp_token(path, *arguments) == 2
            error = capsys.readouterr().err
            assert ("belongs to the user" in error, error.count("\n")) == (True, 1)
    assert sorted(folder.iterdir()) == before


@as_root
@pytest.mark.anyio
async def test_a_gateway_that_may_not_read_its_revocations_does_not_start(
    others_place: Path,
) -> None:
    folder = others_place / "tokens"
    with user(_OTHER):
        store = TokenStore(folder)
        store.create()
        sign(store, "ada")
        store.revoke("ada", time.time())
    os.chown(folder / "revoked.json", 0, 0)
    with user(_OTHER), pytest.raises(ConfigError, match="Permission denied"):
        async with running(gateway_text(folder)):
            pass


@pytest.mark.rule("S-07")
@pytest.mark.anyio
async def test_a_token_of_a_machine_whose_clock_is_a_little_ahead_is_good(folder: Path) -> None:
    ahead = time.time() + 20
    token = TokenStore(folder).sign("ada", ["demo"], {}, now=ahead, expires=ahead + 60)
    async with running(gateway_text(folder)) as gateway:
        assert await status(gateway, token) == 101


@as_root
@pytest.mark.rule("S-08")
@pytest.mark.anyio
async def test_a_key_of_another_user_admits_no_one(folder: Path, tmp_path: Path) -> None:
    foreign = TokenStore(tmp_path / "foreign")
    foreign.create()
    (key,) = foreign.folder.glob("key-*.pem")
    async with running(gateway_text(folder)) as gateway:
        copy = folder / key.name
        copy.write_bytes(key.read_bytes())
        os.chown(copy, _OTHER, _OTHER)
        look(gateway)
        assert await status(gateway, sign(foreign, "ada")) == 401
        os.chown(copy, 0, 0)
        look(gateway)
        assert await status(gateway, sign(foreign, "ada")) == 101


@as_root
@pytest.mark.rule("S-08")
def test_keys_belong_to_the_owner_of_the_folder_or_root(folder: Path) -> None:
    (key,) = folder.glob("key-*.pem")
    os.chown(folder, _OTHER, _OTHER)
    for owner in (0, _OTHER):
        os.chown(key, owner, owner)
        TokenStore(folder).check()
    os.chown(key, _OTHER - 1, _OTHER)
    with pytest.raises(KeySetError, match="another user may have written it"):
        TokenStore(folder).check()


@pytest.mark.rule("S-08")
def test_a_key_that_every_user_may_change_is_not_used(folder: Path) -> None:
    (key,) = folder.glob("key-*.pem")
    key.chmod(0o602)
    with pytest.raises(KeySetError, match="another user may have written it"):
        TokenStore(folder).check()


@pytest.mark.parametrize("name", ["issued.jsonl", "revoked.json"])
def test_a_link_does_not_make_root_read_a_file_for_the_owner_of_the_folder(
    folder: Path, tmp_path: Path, name: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("[]")
    (folder / name).unlink()
    (folder / name).symlink_to(secret)
    store = TokenStore(folder)
    with pytest.raises(TokenFileError, match=name):
        sign(store, "bob") if name == "issued.jsonl" else store.revoke("ada", time.time())
    assert (folder / name).is_symlink()


def test_the_newest_key_signs_also_in_a_copy_of_the_folder(folder: Path) -> None:
    store = TokenStore(folder)
    ids = [*store.key_ids(), *(store.add_key() for _ in range(9))]
    assert store.key_ids() == ids
    for age, id in enumerate(ids):  # as if the newest were copied first
        os.utime(folder / f"key-{id}.pem", (1000 - age, 1000 - age))
    assert store.key_ids() == ids
    assert jwt.get_unverified_header(sign(store, "ada"))["kid"] == ids[-1]
    store.delete_key(ids[-1])
    assert store.key_ids()[-1] == ids[-2]
