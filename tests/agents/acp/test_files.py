"""The working folder: what an agent can read and write through the bridge."""

import os
from pathlib import Path

import pytest

from mcpp.testing import MemoryPod
from mcpp_agents.acp.files import FileRefusedError, WorkingFolder
from tests.agents.acp.bridges import Folders, coding_agent


@pytest.fixture
def folder(tmp_path: Path) -> WorkingFolder:
    (tmp_path / "outside").write_text("secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "inside").write_text("one\ntwo\nthree\n")
    (root / ".mcpp").mkdir()
    (root / ".mcpp" / "pod.toml").write_text("token")
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("git")
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "up").symlink_to(tmp_path)
    os.mkfifo(root / "pipe")
    (root / "binary").write_bytes(b"\xff")
    (root / "large").write_bytes(b"x" * 101)
    return WorkingFolder(root, 100)


def test_lines_of_a_file_are_read(folder: WorkingFolder) -> None:
    path = str(folder.path / "inside")
    assert folder.read(path) == "one\ntwo\nthree\n"
    assert folder.read(path, 2, 1) == "two\n"
    assert folder.read(path, 3) == "three\n"
    assert folder.read(path, 9, 9) == ""
    assert folder.read(str(folder.path / ".git" / "config")) == "git"


def test_lines_are_counted_as_editors_count_them(folder: WorkingFolder) -> None:
    file = folder.path / "pages"
    file.write_bytes("one\f\u2028\x85still one\r\ntwo\rthree".encode())
    assert folder.read(str(file), 2, 1) == "two\r"
    assert folder.read(str(file), 1, 1) == "one\f\u2028\x85still one\r\n"


@pytest.mark.parametrize(
    "path",
    [
        "link", "up/outside", "../outside", "inside/../../outside", "/etc/passwd", "pipe", "",
        "binary", "large", ".mcpp/pod.toml", ".MCPP/pod.toml", "none", "a\0b", ".", "inside/x",
    ],
)  # fmt: skip
def test_what_is_not_a_text_inside_is_not_read(folder: WorkingFolder, path: str) -> None:
    with pytest.raises(FileRefusedError):
        folder.read(os.path.join(folder.path, path) if path != "" else "")  # noqa: PTH118


def test_a_relative_path_is_refused(folder: WorkingFolder) -> None:
    with pytest.raises(FileRefusedError, match="absolute"):
        folder.read("inside")


def test_nothing_is_read_after_the_folder_was_removed(folder: WorkingFolder) -> None:
    folder.path.rename(folder.path.with_name("gone"))
    with pytest.raises(FileRefusedError, match="cannot open"):
        folder.read(str(folder.path / "inside"))


def test_a_file_is_replaced_and_keeps_its_mode(folder: WorkingFolder) -> None:
    file = folder.path / "inside"
    file.chmod(0o755)
    folder.write(str(file), "new")
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("new", 0o755)
    folder.write(str(folder.path / "a" / "b" / "c"), "deep")
    assert (folder.path / "a" / "b" / "c").read_text() == "deep"
    assert not list(folder.path.glob(".*.tmp"))


@pytest.mark.parametrize(
    "path", ["link", "up/new", "../new", ".mcpp/pod.toml", ".git/config", "pipe", ".git/hooks/x"]
)
def test_what_is_outside_or_closed_is_not_written(folder: WorkingFolder, path: str) -> None:
    before = sorted(str(each) for each in folder.path.parent.rglob("*"))
    with pytest.raises(FileRefusedError):
        folder.write(f"{folder.path}/{path}", "x")
    assert sorted(str(each) for each in folder.path.parent.rglob("*")) == before
    assert (folder.path.parent / "outside").read_text() == "secret"


def test_a_text_that_is_too_large_is_not_written(folder: WorkingFolder) -> None:
    with pytest.raises(FileRefusedError, match="100 bytes"):
        folder.write(str(folder.path / "new"), "x" * 101)


def test_programs_start_in_a_folder_inside(folder: WorkingFolder) -> None:
    assert folder.folder(None) == folder.path
    (folder.path / "sub").mkdir()
    assert folder.folder(str(folder.path / "sub")) == folder.path / "sub"
    for path in ("/", str(folder.path / "up"), str(folder.path / "inside")):
        with pytest.raises(FileRefusedError):
            folder.folder(path)


@pytest.mark.anyio
async def test_an_agent_reads_and_writes_files_of_its_folder(
    pod: MemoryPod, folders: Folders
) -> None:
    file = folders.work / "notes"
    async with coding_agent(pod, folders), pod.connect("alice") as alice:
        assert (await alice.ask("coder", f"write {file}: hello")).text == "written"
        assert (await alice.ask("coder", f"read {file}")).text == "hello"
        refused = await alice.ask("coder", "read /etc/passwd")
        assert refused.text == "refused: /etc/passwd is outside of the working folder -32001"
        missing = await alice.ask("coder", f"read {folders.work}/none")
        assert missing.text.endswith("/none: No such file or directory -32002")
    async with (
        coding_agent(pod, folders, "plain", offers_files=False),
        pod.connect("alice") as alice,
    ):
        refused = await alice.ask("plain", f"read {file}")
        assert refused.text == "refused: this client offers no files -32001"
