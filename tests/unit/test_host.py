"""Findings about the host: pure reads that never fail on an odd machine."""

from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path

import pytest

from sandboxd.api.guard import read_token
from sandboxd.daemon.host import _process_list, diagnose_agent_user, diagnose_host, diagnose_open_files
from sandboxd.errors import InvalidRequest
from sandboxd.settings import Settings


def test_every_finding_has_a_detail_and_every_weakness_an_advice(tmp_path: Path) -> None:
    findings = diagnose_host(tmp_path)
    assert {"kernel", "control groups", "disk", "tmpfs"} <= {finding.subject for finding in findings}
    assert all(finding.detail for finding in findings)
    assert all(finding.advice for finding in findings if finding.verdict != "ok")


def test_missing_data_directory_is_measured_where_it_will_be_and_is_not_created(tmp_path: Path) -> None:
    findings = {finding.subject: finding for finding in diagnose_host(tmp_path / "a" / "b")}
    assert str(tmp_path) in findings["disk"].detail
    assert list(tmp_path.iterdir()) == []


def test_an_account_with_the_agents_uid_is_reported() -> None:
    free = next(uid for uid in range(50_000, 60_000) if uid not in {entry.pw_uid for entry in pwd.getpwall()})
    taken = next(entry for entry in pwd.getpwall() if entry.pw_uid != os.geteuid())
    assert diagnose_agent_user(free).verdict == "ok"
    assert diagnose_agent_user(os.geteuid()).verdict == "ok"
    found = diagnose_agent_user(taken.pw_uid)
    assert (found.verdict, taken.pw_name in found.detail) == ("weak", True)


def test_the_limit_on_open_files_is_reported_as_the_sandboxes_it_allows() -> None:
    few = diagnose_open_files(Settings(max_sandboxes=305, engine="bubblewrap"), open_files=1024)
    assert (few.verdict, few.detail) == ("weak", "a limit of 1024 allows 304 bubblewrap sandboxes")
    assert "305" in few.advice
    assert diagnose_open_files(Settings(max_sandboxes=304, engine="bubblewrap"), open_files=1024).verdict == "ok"
    either = diagnose_open_files(Settings(), open_files=1024)
    assert either.detail == "a limit of 1024 allows 608 docker or 304 bubblewrap sandboxes"


@pytest.mark.parametrize(
    ("option", "verdict"), [("rw", "weak"), ("rw,hidepid=2", "ok"), ("rw,hidepid=invisible", "ok")]
)
def test_public_command_lines_are_reported(option: str, verdict: str) -> None:
    line = f"22 28 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:13 - proc proc {option}"
    assert _process_list(line).verdict == verdict


def test_a_token_file_that_every_user_can_read_is_refused() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        file = directory / "token"
        file.write_text("0123456789abcdef\n")
        file.chmod(0o644)
        assert read_token(file) == "0123456789abcdef", "the directory above it is closed"
        directory.chmod(0o755)
        with pytest.raises(InvalidRequest, match="every user of this host can read it; run `chmod 600"):
            read_token(file)
        file.chmod(0o640)
        assert read_token(file) == "0123456789abcdef"
