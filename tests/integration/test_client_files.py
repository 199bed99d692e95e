"""Both clients list, stat, remove, rename and make files of a sandbox."""

from __future__ import annotations

import asyncio

import pytest

from sandboxd.client import AsyncSandbox, Client, Sandbox
from sandboxd.errors import FileError, FileNotFound
from sandboxd.models.files import FileInfo
from tests.running import RunningDaemon

pytestmark = pytest.mark.engine


def entries(found: list[FileInfo]) -> list[tuple[str, str, int]]:
    return [(entry.path, entry.type, entry.size_bytes) for entry in found if entry.type == "file"]


def test_files_are_listed_renamed_and_removed(client: Client) -> None:
    with Sandbox.create("client-files-1", user="ada", client=client) as sandbox:
        files = sandbox.files
        assert (files.make_dir("a/b"), files.make_dir("a/b")) == (True, False)
        files.write("a/b/x.txt", "hello")
        assert entries(files.list("a/b")) == [("/workspace/a/b/x.txt", "file", 5)]
        assert (files.exists("a/b/x.txt"), files.exists("none"), files.exists("a/b/x.txt/y")) == (True, False, False)
        assert files.stat("/workspace/a").type == "directory"
        assert files.rename("a/b/x.txt", "a/y.txt").path == "/workspace/a/y.txt"
        with pytest.raises(FileError) as refused:
            files.remove("a")
        assert refused.value.code == "file.not_empty"
        files.remove("a", recursive=True)
        with pytest.raises(FileNotFound):
            files.list("a")
        sandbox.kill()


def test_a_directory_of_several_pages_is_listed_in_full(client: Client) -> None:
    with Sandbox.create("client-files-2", user="ada", client=client) as sandbox:
        sandbox.commands.run("mkdir many; cd many; seq -f f%g 10050 | xargs touch")
        assert len(sandbox.files.list("many")) == 10_050
        sandbox.kill()


def test_the_async_client_does_the_same(daemon: RunningDaemon) -> None:
    async def work() -> None:
        async with await AsyncSandbox.create("client-files-3", user="ada", socket=daemon.socket) as sandbox:
            files = sandbox.files
            assert await files.make_dir("a") is True
            await files.write("a/x.txt", b"hello")
            assert entries(await files.list("a")) == [("/workspace/a/x.txt", "file", 5)]
            await files.rename("a/x.txt", "y.txt")
            assert (await files.exists("a/x.txt"), await files.exists("y.txt")) == (False, True)
            await files.remove("a")
            await sandbox.kill()

    asyncio.run(work())
