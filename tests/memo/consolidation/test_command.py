"""A command as a summariser: JSON in and out, unprivileged, with a time limit, leaving nothing behind."""

from __future__ import annotations

import os
import select
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memo.consolidation import Budget, EmbeddedSummariser, Outcome, Part, conversation_summary
from memo.consolidation.summarisers import BadAnswer, Fact, ProfileRequest, SummariserUnavailable
from memo.consolidation.summarisers.command_summariser import CommandOptions, CommandSummariser
from memo.consolidation.transcript import make_transcripts
from memo.errors import InvalidContent
from memo.ids import SessionId
from memo.stores import BaseStore
from tests.memo.consolidation.scenes import Clock, page, say, service_of

pytestmark = pytest.mark.anyio

(TRANSCRIPT,) = make_transcripts(SessionId("s1"), 1, [{"role": "user", "content": "I prefer short answers."}])
Script = Callable[[str], list[str]]


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that every user can read and write."""
    made = Path(tempfile.mkdtemp(prefix="memo-command-"))
    made.chmod(0o777)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def script(directory: Path) -> Script:
    def write(body: str) -> list[str]:
        program = directory / "program.sh"
        program.write_text("#!/bin/sh\n" + textwrap.dedent(body))
        program.chmod(0o755)
        return [str(program)]

    return write


ANSWER = """'{"facts":[{"section":"preferences","text":"Prefers short answers","messages":[1]}]}'"""


async def test_a_command_reads_json_and_answers_with_json(script: Script, directory: Path) -> None:
    command = script(f"cat > {directory}/question; echo {ANSWER}")
    budget = Budget()
    draft = await CommandSummariser(command).summarise(TRANSCRIPT, budget)
    assert draft.facts == (Fact(Part.PREFERENCES, "Prefers short answers", (1,)),)
    asked = (directory / "question").read_text()
    assert asked == (
        '{"task": "session", "session": "s1",'
        ' "messages": [{"number": 1, "role": "user", "text": "I prefer short answers."}]}\n'
    )
    assert budget.spent_calls == 1
    assert budget.spent_tokens > 0


async def test_a_command_runs_unprivileged_and_inherits_nothing(
    script: Script, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    monkeypatch.setenv("CANARY_KEY", "sk-canary")
    command = script(f"cat > /dev/null; id > {directory}/id; env > {directory}/env; echo {ANSWER}")
    for user, expected in ((None, "uid=65534(nobody)"), (10003, "uid=10003")):
        for name in ("id", "env"):
            (directory / name).unlink(missing_ok=True)
        await CommandSummariser(command, CommandOptions(user)).summarise(TRANSCRIPT, Budget())
        who = (directory / "id").read_text()
        assert who.startswith(expected)
        assert "(root)" not in who
        assert "sk-canary" not in (directory / "env").read_text()
    for root in ("root", 0):
        with pytest.raises(InvalidContent, match="root"):
            CommandSummariser(command, CommandOptions(root))
    with pytest.raises(InvalidContent, match="no such user"):
        CommandSummariser(command, CommandOptions("nobody-of-this-name"))


async def test_at_the_time_limit_the_whole_process_group_is_killed(script: Script, directory: Path) -> None:
    command = script(f"sleep 300 & echo $! > {directory}/child; echo $$ > {directory}/self; wait")
    with pytest.raises(BadAnswer, match="timed out"):
        await CommandSummariser(command, CommandOptions(timeout_s=0.5)).summarise(TRANSCRIPT, Budget())
    for name in ("child", "self"):
        assert dies(int((directory / name).read_text()))


async def test_processes_that_a_command_leaves_behind_are_killed(script: Script, directory: Path) -> None:
    command = script(f"sleep 300 > /dev/null 2>&1 & echo $! > {directory}/child; echo {ANSWER}")
    await CommandSummariser(command).summarise(TRANSCRIPT, Budget())
    assert dies(int((directory / "child").read_text()))


def dies(pid: int) -> bool:
    """Return whether a process is dead or dies soon: on a busy machine a signal takes a moment."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], 30)[0])
    finally:
        os.close(watched)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("exit 3", "status 3"),
        (f"echo {ANSWER}; exit 1", "status 1"),
        ("kill -9 $$", "status -9"),
        ("echo nonsense", "not valid JSON"),
        ("true", "not valid JSON"),
        ("echo '{}'", "facts: missing"),
        ("printf '\\377\\376'", "not UTF-8"),
        ("yes", "longer than"),
        ("exec 1>&-; exit 0", "not valid JSON"),
    ],
)
async def test_any_misbehaviour_of_a_command_is_a_bad_answer(script: Script, body: str, problem: str) -> None:
    with pytest.raises(BadAnswer, match=problem) as caught:
        await CommandSummariser(script(body), CommandOptions(timeout_s=30)).summarise(TRANSCRIPT, Budget())
    assert "short answers" not in str(caught.value)


async def test_a_command_need_not_read_a_long_question(script: Script) -> None:
    history = [{"role": "user", "content": "x" * 7_000} for _ in range(12)]
    (long,) = make_transcripts(SessionId("s1"), 12, history)
    draft = await CommandSummariser(script(f"echo {ANSWER}")).summarise(long, Budget())
    assert len(draft.facts) == 1


async def test_a_missing_program_is_unavailable() -> None:
    with pytest.raises(SummariserUnavailable, match="cannot start"):
        await CommandSummariser(["/nowhere/at/all"]).draft_profile(ProfileRequest(()), Budget())
    nothing: list[str] = []
    for wrong in (nothing, "echo"):
        with pytest.raises(InvalidContent):
            CommandSummariser(wrong)


PROGRAM = """
import json, sys
question = json.load(sys.stdin)
if question["task"] == "session":
    facts = [{"section": "focus_areas", "text": f"Has said {len(m['text'])} letters", "messages": [m["number"]]}
             for m in question["messages"]]
    print(json.dumps({"facts": facts}))
else:
    bullets = [{"section": f["section"], "text": f["text"],
                "sources": [{"session": s["session"], "message": n} for n in f["messages"]]}
               for s in question["sessions"] for f in s["facts"]]
    print(json.dumps({"summary": "Has said something", "bullets": bullets}))
"""


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_the_service_writes_a_profile_made_by_a_command(store: BaseStore, clock: Clock, directory: Path) -> None:
    (directory / "program.py").write_text(PROGRAM)
    python = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or sys.executable
    await say(store, "s1", "hello")
    summariser = CommandSummariser([python, str(directory / "program.py")])
    result = await service_of(store, clock, summariser).consolidate("acme", "ann")
    assert (result.outcome, result.calls) == (Outcome.WRITTEN, 2)
    assert "- Has said 5 letters <!-- from s1#1 -->" in await page(store)


async def test_a_conversation_is_shortened_by_the_command(script: Script) -> None:
    body = """
        read -r question
        case $question in
          *'"task": "conversation"'*'Which port is free?'*) echo '{"summary": "They asked for a port."}' ;;
          *) exit 3 ;;
        esac
    """
    summarise = conversation_summary(CommandSummariser(script(body)))
    assert await summarise([{"role": "user", "content": "Which port is free?"}]) == "They asked for a port."


async def test_without_a_model_a_conversation_becomes_an_outline() -> None:
    summarise = conversation_summary(EmbeddedSummariser())
    messages = [{"role": "user", "content": "Which port is free?"}, {"role": "assistant", "content": "8080"}]
    assert await summarise(messages) == "- Which port is free?"
