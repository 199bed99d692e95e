"""Translating an engine's answers: causes of death, refusals, findings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandboxd.engine.docker import answers, kernel_log
from sandboxd.engine.docker.causes import (
    KILL_NEAR_NS,
    OOM_NEAR_NS,
    OUTAGE_SLACK_NS,
    DeathLedger,
    Outage,
    RawEvent,
)
from sandboxd.engine.docker.diagnosis import diagnose_engine, parse_version
from sandboxd.engine.protocol import LABEL_INSTANCE
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
def test_the_last_event_determines_the_cause_of_death(
    events: list[tuple[str, int, int | None]], verdict: object
) -> None:
    assert judge(*events) == verdict


def test_removed_container_is_forgotten() -> None:
    ledger = DeathLedger()
    for action in ("oom", "kill", "destroy"):
        assert ledger.judge(RawEvent(action, "c", NOW)) is None
    assert ledger == DeathLedger()


def test_refusal_is_one_short_line_without_environment_or_labels() -> None:
    spec = replace(SPEC, env={"TOKEN": "s3cr3t"}, labels={"sandboxd.sandbox": "opaque"})
    error = answers.refusal("launch", "bad s3cr3t and opaque " + "x" * 999 + "\nsecond line", spec)
    assert isinstance(error, EngineRefused)
    assert str(error).startswith("cannot launch: the engine refused: bad … and …")
    assert len(str(error)) < 300
    assert "second" not in str(error)


@pytest.mark.parametrize("text", ["write /x: no space left on device", "Disk quota exceeded"])
def test_full_disk_of_the_engine_is_reported_as_a_host_error(text: str) -> None:
    assert isinstance(answers.refusal("launch", text, SPEC), HostFull)


@pytest.mark.parametrize(
    ("status", "text", "said"),
    [
        (404, "No such image: image:1", "is not in the engine"),
        (404, "image:1: image not known", "is not in the engine"),
        (400, 'runc create failed: exec: "python3": executable file not found in $PATH', "has no python3"),
        (500, 'exec: "python3": stat python3: no such file or directory', "has no python3"),
        (500, r'msg="runc: exec: \"python3\": executable file not found in $PATH"', "has no python3"),
    ],
)
def test_common_mistake_is_named(status: int, text: str, said: str) -> None:
    assert said in str(answers.missing_part(SPEC, status, text))


def test_other_refusal_is_not_mistaken_for_a_missing_part() -> None:
    assert (
        answers.missing_part(SPEC, 400, "invalid mount: source path does not exist: no such file or directory") is None
    )


@pytest.mark.parametrize(("word", "action"), [("died", "die"), ("die", "die"), ("remove", "destroy")])
def test_podmans_events_are_read_as_well(word: str, action: str) -> None:
    attributes = {"containerExitCode": "3", LABEL_INSTANCE: "x"}
    event = {"Action": word, "Actor": {"ID": "c", "Attributes": attributes}, "timeNano": 5}
    assert answers.read_event(event) == RawEvent(action, "c", 5, 3)  # type: ignore[arg-type]
    assert answers.read_event({"Action": "exec_start"}) is None


def test_the_death_of_a_container_without_our_label_is_not_reported() -> None:
    event = {"Action": "die", "Actor": {"ID": "c", "Attributes": {"exitCode": "3"}}, "timeNano": 5}
    assert answers.read_event(event) is None


@pytest.mark.parametrize(
    ("headers", "engine"),
    [
        ({"Api-Version": "1.41", "Server": "Docker/20.10.24"}, ("docker", "1.41")),
        ({"Api-Version": "1.41", "Libpod-Api-Version": "4.3.1"}, ("podman", "1.41")),
    ],
)
def test_the_engine_is_identified(headers: dict[str, str], engine: tuple[str, str]) -> None:
    assert answers.read_ping(headers) == engine


def test_an_engine_with_an_old_api_is_refused() -> None:
    with pytest.raises(EngineRefused, match=r"its API 1\.40 is older than 1\.41"):
        answers.read_ping({"Api-Version": "1.40"})


@pytest.mark.parametrize(
    ("status", "text", "taken"),
    [
        (409, 'Conflict. The container name "/x" is already in use by container "abc"', True),
        (500, 'creating container storage: the container name "x" is already in use by abc', True),
        (409, "removal of container abc is already in progress", False),
        (500, "no space left on device", False),
    ],
)
def test_a_name_that_is_taken_is_distinguished_from_other_refusals(status: int, text: str, taken: bool) -> None:
    assert answers.is_name_taken(status, text) is taken


def test_a_runtime_is_looked_up_among_those_of_the_engine() -> None:
    info = {"Runtimes": {"runsc": {}, "runc": {}}, "DefaultRuntime": "runc"}
    assert answers.pick_runtime(info, None, is_podman=False) == "runc"
    assert answers.pick_runtime(info, "runsc", is_podman=False) == "runsc"
    with pytest.raises(EngineRefused, match="cannot use the runtime kata: the engine has runc, runsc; correct"):
        answers.pick_runtime(info, "kata", is_podman=False)
    with pytest.raises(EngineRefused, match="cannot use the runtime runsc: Podman runs all containers with runc"):
        answers.pick_runtime(info, "runsc", is_podman=True)


def test_an_outage_covers_deaths_from_its_first_sign_until_the_engine_is_back() -> None:
    outage = Outage()
    assert not outage.covers(NOW)
    outage.begin(NOW)
    outage.begin(NOW - 5)  # a death that was reported late
    assert outage.covers(NOW - 5 - OUTAGE_SLACK_NS)
    assert not outage.covers(NOW - 6 - OUTAGE_SLACK_NS)
    assert outage.covers(2 * NOW)
    outage.end(NOW + 10)
    outage.end(NOW + 20)  # a second listener
    assert outage.covers(NOW + 10)
    assert not outage.covers(NOW + 11)
    outage.begin(NOW + OUTAGE_SLACK_NS + 100)
    assert not outage.covers(NOW), "only the last one is remembered"


def test_the_kernels_log_shows_which_container_ran_out_of_memory(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(
        "6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/libpod_parent/libpod-abc,task=python3,pid=7\n"
    )
    assert kernel_log.tells_oom("abc", log)
    assert not kernel_log.tells_oom("def", log)
    assert not kernel_log.tells_oom("abc", tmp_path / "closed to us")


@pytest.mark.parametrize(("text", "parsed"), [("20.10.24+dfsg1", (20, 10, 24)), ("v1.1", (1, 1, 0)), ("dev", None)])
def test_versions_are_parsed(text: str, parsed: object) -> None:
    assert parse_version(text) == parsed


def describe(docker: str = "27.1.1", runc: str = "1.3.3", **info: Any) -> dict[str, tuple[str, str, str]]:
    version = {"Version": docker, "Components": [{"Name": "Engine"}, {"Name": "runc", "Version": runc}]}
    usual = {
        "SecurityOptions": ["name=seccomp,profile=builtin", "name=apparmor", "name=rootless"],
        "Driver": "overlay2",
    }
    found = diagnose_engine({**usual, **info}, version)
    return {finding.subject: (finding.verdict, finding.detail, finding.advice) for finding in found}


def test_a_gvisor_runtime_is_offered_and_a_name_that_podman_only_lists_is_not() -> None:
    runtimes: dict[str, dict[str, Any]] = {"runc": {}, "runsc": {}}
    assert "runsc puts gVisor's kernel" in describe(Runtimes=runtimes)["runtimes"][1]
    podman = {"Version": "4.3.1", "Components": [{"Name": "Podman Engine"}]}
    found = diagnose_engine({"Runtimes": runtimes, "DefaultRuntime": "crun"}, podman)
    assert [finding.detail for finding in found if finding.subject == "runtimes"] == [
        "crun: containers share the host's kernel"
    ]


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
