"""Findings about the host: pure reads that never fail on an odd machine."""

from __future__ import annotations

from pathlib import Path

from sandboxd.host import diagnose_host


def test_every_finding_has_a_detail_and_every_weakness_an_advice(tmp_path: Path) -> None:
    findings = diagnose_host(tmp_path)
    assert {"kernel", "control groups", "disk", "open files"} <= {finding.subject for finding in findings}
    assert all(finding.detail for finding in findings)
    assert all(finding.advice for finding in findings if finding.verdict != "ok")


def test_data_directory_that_is_not_there_yet_is_measured_where_it_will_be_and_not_made(tmp_path: Path) -> None:
    findings = {finding.subject: finding for finding in diagnose_host(tmp_path / "a" / "b")}
    assert str(tmp_path) in findings["disk"].detail
    assert list(tmp_path.iterdir()) == []
