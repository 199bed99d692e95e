"""`consolidate` as a program: with a daemon, on its own store, on a terminal, and as a service."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

import memo
from sandboxd.consolidation_settings import ConsolidationOptions
from tests.unit.test_api_consolidation import ANN, Desk, desk, say

pytestmark = pytest.mark.anyio

IDLE = {"SANDBOXD_CONSOLIDATION__IDLE_S": "0"}


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk(tmp_path, ConsolidationOptions(enabled=False, idle_s=0)) as served:
        yield served


@pytest.fixture
async def url(tmp_path: Path) -> str:
    """A store in which ann and bob of one tenant and eve of another said something."""
    found = f"sqlite:///{tmp_path}/memo.db"
    async with memo.open_store(found) as store:
        await say(store, "s1", "I prefer short answers.")
        await say(store, "s2", "I like graphs.", user="bob")
        await say(store, "s3", "I like tea.", user="eve", tenant="other")
    return found


def run(socket: Path, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SANDBOXD_SOCKET": str(socket), "COLUMNS": "200", **IDLE, **(env or {})}
    return subprocess.run(
        [sys.executable, "-m", "sandboxd", "consolidate", *words],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )


async def cli(at: Desk, *words: str) -> subprocess.CompletedProcess[str]:
    return await anyio.to_thread.run_sync(partial(run, at.world.socket, *words))


async def on_store(url: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    words = ("--store", url, *words)
    return await anyio.to_thread.run_sync(partial(run, Path("/none"), *words, env=env))


async def pages(url: str) -> dict[str, bool]:
    async with memo.open_store(url) as store:
        return {str(user): await _has_page(store, user) for user in await store.list_users()}


async def _has_page(store: Any, user: Any) -> bool:
    return await store.read_memory_document(user.tenant, user.user, "user", "USER.md") is not None


async def test_a_dry_run_of_one_user_shows_the_changes_that_a_run_then_makes(at: Desk) -> None:
    await at.say("s1", "I prefer short answers.")
    shown = await cli(at, "--user", "ann", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert "+- Prefers short answers <!-- from s1#1 -->\n" in shown.stdout
    assert await at.page() == ""
    done = await cli(at, "--user", "ann")
    assert (done.returncode, done.stdout) == (0, "USER.md of ann is at revision 1, from 1 session\n"), done.stderr
    assert (await cli(at, "--user", "ann")).stdout == "USER.md of ann is unchanged\n"
    assert (await cli(at, "--user", "ann", "--dry-run")).stdout == "USER.md of ann would not change\n"
    fields = json.loads((await cli(at, "--user", "ann", "--json")).stdout)
    assert (fields["outcome"], fields["changed"], fields["revision"]) == ("unchanged", False, 1)
    assert "nothing to record" in (await cli(at, "--user", "nobody")).stdout


async def test_once_runs_due_users_and_all_runs_every_user(at: Desk) -> None:
    await at.say("s1", "I prefer short answers.")
    await at.say("s2", "I like graphs.", user="bob")
    await cli(at, "--user", "bob")
    done = await cli(at)
    assert done.stdout == "default\tann\twritten\t1\t1\t\n", done.stderr
    assert (await cli(at, "--once", "--json")).stdout == '{"items": []}\n'
    items = json.loads((await cli(at, "--all", "--json")).stdout)["items"]
    assert [(item["user"], item["outcome"]) for item in items] == [("ann", "unchanged"), ("bob", "unchanged")]
    assert (await cli(at, "--all", "--tenant", "other")).stdout == ""


async def test_a_dry_run_of_many_shows_each_diff_under_its_user(at: Desk) -> None:
    await at.say("s1", "I prefer short answers.")
    await at.say("s2", "I like graphs.", user="bob")
    shown = (await cli(at, "--dry-run")).stdout
    assert shown.index("default:ann\n") < shown.index("+- Prefers short answers") < shown.index("default:bob\n")
    assert await at.page() == ""


async def test_a_user_held_by_another_run_is_a_failure_alone_but_not_among_many(at: Desk) -> None:
    await at.say("s1", "I prefer short answers.")
    await at.store.acquire_lease(ANN, "somebody", 60)
    held = await cli(at, "--user", "ann")
    assert (held.returncode, held.stdout) == (1, "")
    assert held.stderr.startswith("cannot consolidate this user now: another run holds the lease")
    problem = json.loads((await cli(at, "--user", "ann", "--json")).stderr)
    assert (problem["code"], problem["retryable"]) == ("consolidation.held", True)
    many = await cli(at, "--all", "--json")
    assert (many.returncode, json.loads(many.stdout)["items"][0]["outcome"]) == (0, "held")
    assert "running" in (await cli(at, "--status", "--user", "ann")).stdout


async def test_a_failing_user_is_shown_with_the_reason_while_others_finish(tmp_path: Path) -> None:
    script = """case "$(cat)" in *'"session": "bad"'*) exit 3;; *) echo '{"facts": []}';; esac"""
    options = ConsolidationOptions(enabled=False, idle_s=0, summariser="command", command=("sh", "-c", script))
    async with desk(tmp_path, options) as at:
        await at.say("bad", "I prefer short answers.")
        await at.say("good", "hello", user="bob")
        done = await cli(at)
        assert done.returncode == 1, done.stderr
        assert "bob\tnothing" in done.stdout
        shown = await cli(at, "--status")
        assert shown.returncode == 0
        ann, bob = (line.split("\t") for line in shown.stdout.splitlines())
        assert ann[:5] == ["ann", "", "failing", "the last try failed", "1"]
        assert ann[8:10] == ["1", "cannot use the summariser's answer: it exited with status 3"]
        assert ann[10]
        assert bob[2] == "ok"
        items = json.loads((await cli(at, "--status", "--json")).stdout)["items"]
        assert items[0]["failure"]["count"] == 1


async def test_without_a_daemon_the_work_is_done_on_the_store(url: str) -> None:
    states = await on_store(url, "--status", "--json")
    assert [(one["tenant"], one["user"], one["due"]) for one in json.loads(states.stdout)["items"]] == [
        ("default", "ann", True),
        ("default", "bob", True),
        ("other", "eve", True),
    ]
    shown = await on_store(url, "--user", "ann", "--dry-run")
    assert "+- Prefers short answers" in shown.stdout, shown.stderr
    assert not any((await pages(url)).values())
    one = await on_store(url, "--user", "ann")
    assert one.stdout == "USER.md of ann is at revision 1, from 1 session\n"
    assert await pages(url) == {"default:ann": True, "default:bob": False, "other:eve": False}
    own = await on_store(url, "--once", "--tenant", "default")
    assert own.stdout == "default\tbob\twritten\t1\t1\t\n", own.stderr
    rest = await on_store(url, "--once")
    assert rest.stdout == "other\teve\twritten\t1\t1\t\n"
    everybody = json.loads((await on_store(url, "--all", "--json")).stdout)["items"]
    assert [item["outcome"] for item in everybody] == ["unchanged"] * 3


async def test_a_failure_on_the_store_exits_with_code_1_and_shows_its_reason(url: str) -> None:
    broken = {"SANDBOXD_CONSOLIDATION__SUMMARISER": "command", "SANDBOXD_CONSOLIDATION__COMMAND": "/bin/false"}
    one = await on_store(url, "--user", "ann", **broken)
    assert (one.returncode, one.stdout) == (1, "")
    assert one.stderr.startswith("cannot use the summariser's answer: it exited with status 1")
    many = await on_store(url, "--all", "--json", **broken)
    assert many.returncode == 1
    assert many.stderr == ""
    assert {item["code"] for item in json.loads(many.stdout)["items"]} == {"consolidation.summariser"}


async def test_watching_runs_due_users_until_it_is_terminated(url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sandboxd", "consolidate", "--watch", "--store", url, "--json"]
    environment = {**os.environ, **IDLE}

    def watch() -> None:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            told = [json.loads(process.stdout.readline()) for _ in range(4)]
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        assert told[0]["event"] == "ready"
        assert sorted(line["user"] for line in told[1:]) == ["ann", "bob", "eve"]
        assert {line["outcome"] for line in told[1:]} == {"written"}

    await anyio.to_thread.run_sync(watch)
    assert all((await pages(url)).values())


async def test_a_diff_is_coloured_on_a_terminal_and_its_control_characters_are_removed(url: str) -> None:
    async with memo.open_store(url) as store:
        await store.write_memory_document("default", "ann", "user", "USER.md", "\x1b[2Jmine\n")
    shown = await anyio.to_thread.run_sync(partial(_on_a_terminal, url))
    assert b"\x1b[32m+- Prefers short answers" in shown
    assert b"\x1b[2J" not in shown


def _on_a_terminal(url: str) -> bytes:
    mine, theirs = pty.openpty()
    command = [sys.executable, "-m", "sandboxd", "consolidate", "--store", url, "--user", "ann", "--dry-run"]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, env=environment) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                block = os.read(mine, 65_536)
            except OSError:  # what the end of a terminal looks like
                break
            if not block:
                break
            shown += block
        assert process.wait(60) == 0
    os.close(mine)
    return shown


@pytest.mark.parametrize(
    "words",
    [
        ("--user", "ann", "--all"),
        ("--once", "--all"),
        ("--watch", "--once"),
        ("--watch", "--dry-run"),
        ("--watch", "--tenant", "t"),
        ("--status", "--all"),
        ("--status", "--dry-run"),
        ("--store", "nonsense://x"),
        ("--store", "memory://", "--user", "a b"),
        ("ann",),
    ],
)
def test_wrong_usage_exits_with_code_2(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run(tmp_path / "none", *words)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "value"), [("SUMMARISER", "oracle"), ("SUMMARISER", "openai"), ("SCAN_S", "0"), ("NO_SUCH", "1")]
)
def test_an_invalid_setting_is_named_and_exits_with_code_2(tmp_path: Path, name: str, value: str) -> None:
    done = run(tmp_path, "--store", "memory://", env={f"SANDBOXD_CONSOLIDATION__{name}": value})
    assert done.returncode == 2, done.stderr
    assert "consolidation" in done.stderr.lower()


@pytest.mark.parametrize("words", [(), ("--user", "ann"), ("--all",), ("--status",), ("--dry-run",)])
def test_without_a_daemon_the_exit_code_is_3(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run(tmp_path / "none", *words)
    assert done.returncode == 3, done.stderr


def test_the_help_has_an_example_and_shows_how_to_undo(tmp_path: Path) -> None:
    done = run(tmp_path / "none", "--help")
    assert done.returncode == 0
    for said in ("Example: sandboxd consolidate", "sandboxd memo restore", "--json", "--watch", "--dry-run"):
        assert said in done.stdout
