"""Summarising with a command: one JSON object on its stdin, one on its stdout, within a time limit.

The command runs as an ordinary user, in a session of its own, with an environment that holds nothing of ours; at the
limit its whole group is killed. It is started once for each question.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from memo.consolidation.budget import Budget
from memo.consolidation.profile import ProfileDraft
from memo.consolidation.summarisers import answers, questions
from memo.consolidation.summarisers.protocol import BadAnswer, ProfileRequest, SessionDraft, SummariserUnavailable
from memo.consolidation.transcripts import Transcript
from memo.documents import sha256_of
from memo.errors import InvalidContent
from memo.tokens import estimate_tokens

A = TypeVar("A", bound=answers.SessionAnswer | answers.ProfileAnswer)
NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """`user` is a name or a number. Root without one runs the command as nobody; root itself is refused."""

    user: str | int | None = None
    timeout_s: float = 120.0
    environment: dict[str, str] = field(
        default_factory=lambda: {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    )


class CommandSummariser:
    def __init__(self, command: Sequence[str], options: CommandOptions | None = None) -> None:
        if not command or isinstance(command, str):
            raise InvalidContent("cannot use this command: it must be a list, the program first")
        self._command = list(command)
        self._options = options or CommandOptions()
        self._identity = _identity(self._options.user)

    @property
    def name(self) -> str:
        return f"command/{sha256_of(json.dumps(self._command).encode())[:16]}/1"

    async def aclose(self) -> None:
        return None

    async def summarise(self, transcript: Transcript, budget: Budget) -> SessionDraft:
        question = {"task": "session", **questions.session_material(transcript)}
        return answers.session_draft(await self._ask(question, answers.SessionAnswer, budget), transcript)

    async def draft_profile(self, request: ProfileRequest, budget: Budget) -> ProfileDraft:
        question = {"task": "profile", **questions.profile_material(request)}
        return answers.profile_draft(await self._ask(question, answers.ProfileAnswer, budget), request)

    async def _ask(self, question: dict[str, Any], kind: type[A], budget: Budget) -> A:
        encoded = json.dumps(question, ensure_ascii=False)
        budget.begin_call(estimate_tokens(encoded))
        output = await self._run(encoded.encode() + b"\n")
        budget.end_call(estimate_tokens(encoded) + len(output) // 4)
        try:
            text = output.decode()
        except UnicodeDecodeError:
            raise BadAnswer("cannot use the answer: it is not UTF-8") from None
        return answers.parse_answer(kind, text)

    async def _run(self, question: bytes) -> bytes:
        process = await self._start(question)
        exited = os.pidfd_open(process.pid)
        try:
            with anyio.fail_after(self._options.timeout_s):
                output = await _drain(process)
                if len(output) <= answers.MOST_ANSWER_BYTES:  # else it waits for somebody to read the rest
                    await anyio.wait_readable(exited)
        except TimeoutError:
            raise BadAnswer(f"cannot use the summariser's answer: none within {self._options.timeout_s:g} s") from None
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process, exited)
        if len(output) > answers.MOST_ANSWER_BYTES:
            raise BadAnswer("cannot use the answer: it is too long")
        if process.returncode != 0:
            raise BadAnswer(f"cannot use the summariser's answer: it ended with status {process.returncode}")
        return output

    async def _start(self, question: bytes) -> subprocess.Popen[bytes]:
        """Start it with the question as a file in memory: nobody has to feed it, and it need not read to the end."""
        stdin = os.memfd_create("question")
        try:
            os.write(stdin, question)
            os.lseek(stdin, 0, os.SEEK_SET)
            # Not anyio's own way: uvloop cannot start a process as another user.
            return await anyio.to_thread.run_sync(self._spawn, stdin)
        except OSError as error:
            raise SummariserUnavailable(f"cannot start the summariser {self._command[0]}: {error.strerror}") from error
        finally:
            os.close(stdin)

    def _spawn(self, stdin: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # it may hold what the user said, and so has no place in our log
            text=False,
            cwd="/",
            env=self._options.environment,
            start_new_session=True,
            **self._identity,
        )


async def _drain(process: subprocess.Popen[bytes]) -> bytes:
    """Read until the end; of an answer that is too long, no more than it takes to say so."""
    output = b""
    if process.stdout is None:
        return output
    while len(output) <= answers.MOST_ANSWER_BYTES:
        await anyio.wait_readable(process.stdout)
        block = os.read(process.stdout.fileno(), 65_536)
        if not block:
            break
        output += block
    return output


async def _end(process: subprocess.Popen[bytes], exited: int) -> None:
    """Kill whatever is left of the group, and wait for it: nothing of a question outlives it.

    The process is reaped last, so that its number cannot be somebody else's when the group is killed.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await anyio.wait_readable(exited)
    process.wait()
    os.close(exited)
    if process.stdout is not None:
        process.stdout.close()


def _identity(user: str | int | None) -> dict[str, Any]:
    """Return who the command runs as, as parameters of a process."""
    if os.geteuid() != 0:
        if user is not None and _lookup(user).pw_uid != os.geteuid():
            raise InvalidContent(f"cannot run the summariser as {user}: only root can become another user")
        return {}
    found = _lookup(NOBODY if user is None else user)
    if found.pw_uid == 0:
        raise InvalidContent("cannot run the summariser as root: name an ordinary user")
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}


def _lookup(user: str | int) -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(user) if isinstance(user, int) else pwd.getpwnam(user)
    except KeyError:
        if isinstance(user, int) and user > 0:  # a number needs no name
            return pwd.struct_passwd((str(user), "x", user, user, "", "/", ""))
        raise InvalidContent(f"cannot run the summariser as {user}: there is no such user") from None
