"""What an engine says, in our words: causes of death, refusals, findings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sandboxd.engine.docker import answers
from sandboxd.engine.docker.causes import KILL_NEAR_NS, OOM_NEAR_NS, DeathLedger, RawEvent
from sandboxd.engine.docker.diagnosis import diagnose_engine, parse_version
from sandboxd.errors import EngineRefused, HostFull
from tests.unit.test_hardening import SPEC

NOW = 10**18


def judge(*events: tuple[str, int, int | None]) -> tuple[str, bool]:
    ledger = DeathLedger()
    judgement = None
    for action, at_ns, exit_code in events:
        judgement = ledger.judge(RawEvent(action, "c", at_ns, exit_code))  # type: ignore[arg-type]
    assert judgement is not None
    return judgement.died.cause, judgement.is_sure


@pytest.mark.parametrize(
    ("events", "verdict"),
    [
        ([("die", NOW, 0)], ("exited", True)),
        ([("die", NOW, 3)], ("exited", True)),
        ([("die", NOW, None)], ("engine", True)),
        ([("die", NOW, 137)], ("killed", False)),
        ([("die", NOW, 143)], ("killed", False)),
        ([("kill", NOW - 1, None), ("die", NOW, 137)], ("killed", True)),
        ([("oom", NOW - 1, None), ("die", NOW, 137)], ("oom", True)),
        ([("oom", NOW - 1, None), ("die", NOW, 3)], ("exited", True)),
        ([("oom", NOW - OOM_NEAR_NS - 1, None), ("die", NOW, 137)], ("killed", True)),
        ([("oom", NOW - 1, None), ("kill", NOW - 1, None), ("die", NOW, 137)], ("killed", True)),
        ([("kill", NOW - KILL_NEAR_NS - 1, None), ("oom", NOW - 1, None), ("die", NOW, 137)], ("oom", True)),
    ],
)
def test_cause_of_death_is_what_happened_last(events: list[tuple[str, int, int | None]], verdict: object) -> None:
    assert judge(*events) == verdict


def test_removed_container_is_forgotten() -> None:
    ledger = DeathLedger()
    for action in ("oom", "kill", "destroy"):
        assert ledger.judge(RawEvent(action, "c", NOW)) is None  # type: ignore[arg-type]
    assert ledger == DeathLedger()


def test_refusal_is_one_short_line_without_environment_or_labels() -> None:
    spec = replace(SPEC, env={"TOKEN": "s3cr3t"}, labels={"sandboxd.sandbox": "opaque"})
    error = answers.refusal("launch", "bad s3cr3t and opaque " + "x" * 999 + "\nsecond line", spec)
    assert isinstance(error, EngineRefused)
    assert str(error).startswith("cannot launch: the engine refused: bad … and …")
    assert len(str(error)) < 300
    assert "second" not in str(error)


@pytest.mark.parametrize("text", ["write /x: no space left on device", "Disk quota exceeded"])
def test_full_disk_of_the_engine_is_the_hosts_fault(text: str) -> None:
    assert isinstance(answers.refusal("launch", text, SPEC), HostFull)


@pytest.mark.parametrize(
    ("status", "text", "said"),
    [
        (404, "No such image: image:1", "is not in the engine"),
        (404, "image:1: image not known", "is not in the engine"),
        (400, 'runc create failed: exec: "python3": executable file not found in $PATH', "has no python3"),
        (500, 'exec: "python3": stat python3: no such file or directory', "has no python3"),
    ],
)
def test_common_mistake_is_named(status: int, text: str, said: str) -> None:
    assert said in str(answers.missing_part(SPEC, status, text))


def test_other_refusal_is_not_mistaken_for_a_missing_part() -> None:
    assert (
        answers.missing_part(SPEC, 400, "invalid mount: source path does not exist: no such file or directory") is None
    )


def test_podmans_events_are_read_as_well() -> None:
    event = {"Action": "died", "Actor": {"ID": "c", "Attributes": {"containerExitCode": "3"}}, "timeNano": 5}
    assert answers.read_event(event) == RawEvent("die", "c", 5, 3)
    assert answers.read_event({"Action": "exec_start"}) is None


@pytest.mark.parametrize(("text", "parsed"), [("20.10.24+dfsg1", (20, 10, 24)), ("v1.1", (1, 1, 0)), ("dev", None)])
def test_versions_are_read(text: str, parsed: object) -> None:
    assert parse_version(text) == parsed


def describe(docker: str = "27.1.1", runc: str = "1.3.3", **info: Any) -> dict[str, tuple[str, str, str]]:
    version = {"Version": docker, "Components": [{"Name": "Engine"}, {"Name": "runc", "Version": runc}]}
    usual = {
        "SecurityOptions": ["name=seccomp,profile=builtin", "name=apparmor", "name=rootless"],
        "Driver": "overlay2",
    }
    found = diagnose_engine({**usual, **info}, version)
    return {finding.subject: (finding.verdict, finding.detail, finding.advice) for finding in found}


def test_good_host_has_no_weakness() -> None:
    assert {verdict for verdict, _, _ in describe().values()} == {"ok"}


@pytest.mark.parametrize(
    ("changes", "subject", "verdict"),
    [
        ({"docker": "19.03.1"}, "engine", "missing"),
        ({"docker": "20.10.24+dfsg1"}, "engine", "weak"),
        ({"runc": "1.1.5+ds1"}, "runc", "weak"),
        ({"runc": "1.1.12"}, "runc", "weak"),
        ({"runc": "1.2.8"}, "runc", "ok"),
        ({"runc": "1.3.2"}, "runc", "weak"),
        ({"runc": "1.4.0"}, "runc", "ok"),
        ({"MemoryLimit": False}, "limit of memory", "missing"),
        ({"SwapLimit": False}, "limit of swap", "weak"),
        ({"CpuCfsQuota": False}, "limit of cpu", "missing"),
        ({"PidsLimit": False}, "limit of pids", "missing"),
        ({"SecurityOptions": []}, "seccomp", "missing"),
        ({"SecurityOptions": []}, "mandatory access control", "weak"),
        ({"SecurityOptions": []}, "user namespace", "weak"),
        ({"SecurityOptions": ["name=userns"]}, "user namespace", "ok"),
        ({"Driver": "vfs"}, "storage", "weak"),
    ],
)
def test_weakness_is_found_and_comes_with_advice(changes: dict[str, Any], subject: str, verdict: str) -> None:
    found = describe(**changes)[subject]
    assert found[0] == verdict
    assert found[2] or verdict == "ok"
