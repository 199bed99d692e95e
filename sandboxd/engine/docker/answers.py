"""Reading what the Docker API answers: containers, events, stats, and refusals in our own words.

Pure: JSON values and text in, our values out. Nothing of an environment or a label gets into an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from sandboxd.engine.docker.causes import RAW_ACTIONS, RawEvent, cause_of_exit
from sandboxd.engine.protocol import Container, ContainerSpec, Stats
from sandboxd.errors import EngineRefused, HostFull, SandboxdError

_SHORTEST_SECRET = 4  # hiding shorter values would only make holes in every word


def read_stats(answer: Mapping[str, Any]) -> Stats:
    memory = answer.get("memory_stats") or {}
    if "usage" not in memory:
        raise EngineRefused("cannot read stats: the container does not run")
    details = memory.get("stats") or {}
    cached = details.get("total_inactive_file", details.get("inactive_file", 0))  # cgroup v1, v2
    return Stats(
        memory_bytes=max(0, memory["usage"] - cached),
        cpu_seconds=answer["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9,
        pids=int((answer.get("pids_stats") or {}).get("current", 0)),
    )


def read_event(event: Mapping[str, Any]) -> RawEvent | None:
    action = event.get("Action")
    if action == "died":  # Podman's word
        action = "die"
    if action not in RAW_ACTIONS:
        return None
    actor = event["Actor"]
    attributes = actor.get("Attributes") or {}
    exit_code = attributes.get("exitCode", attributes.get("containerExitCode"))
    return RawEvent(action, actor["ID"], int(event["timeNano"]), None if exit_code is None else int(exit_code))


def read_container(answer: Mapping[str, Any]) -> Container:
    state = answer["State"]
    running = bool(state["Running"])
    never_started = state.get("Status") in ("created", "configured", "initialized")
    exit_code = None if running or never_started else int(state["ExitCode"])
    return Container(
        id=answer["Id"],
        name=answer["Name"].removeprefix("/"),
        labels=dict(answer["Config"]["Labels"] or {}),
        running=running,
        pid=state["Pid"] if running else None,
        paused=running and bool(state.get("Paused")),
        exit_code=exit_code,
        cause=None if running else cause_of_exit(exit_code, out_of_memory=bool(state.get("OOMKilled"))),
    )


def refuse_volumes(spec: ContainerSpec, answer: Mapping[str, Any]) -> None:
    asked = {mount.target for mount in spec.mounts}
    for mount in answer.get("Mounts") or ():
        if mount.get("Type") == "volume" and mount.get("Destination") not in asked:
            raise EngineRefused(
                f"cannot launch: image {spec.image} declares a volume at {mount.get('Destination')}, "
                "which would be writable without a bound"
            )


def missing_part(spec: ContainerSpec, status_code: int | None, explanation: str) -> EngineRefused | None:
    """Name the two mistakes that everybody makes once: an image that is not there, or one without Python."""
    text = explanation.lower()
    if status_code == 404 and "image" in text:
        step = "`sandboxd image build` builds the default image; any other must be pulled"
        return EngineRefused(f"cannot launch: image {spec.image} is not in the engine; {step}")
    program = spec.command[0]
    absent = re.search(r"executable file\b.*\bnot found|no such file or directory", text)
    if absent is None or f'exec: "{program}"' not in text.replace("'", '"'):
        return None
    if PurePosixPath(program).name.startswith("python3"):
        return EngineRefused(f"cannot launch: image {spec.image} has no python3; the runner needs Python 3.9 or newer")
    return EngineRefused(f"cannot launch: image {spec.image} has no {program}")


def refusal(verb: str, explanation: str, hide: ContainerSpec | None) -> SandboxdError:
    if re.search(r"no space left on device|disk quota exceeded", explanation, re.IGNORECASE):
        return HostFull(f"cannot {verb}: the engine's disk is full")
    text = (explanation.splitlines() or ["no reason given"])[0]
    if hide is not None:
        values = {value for value in (*hide.env.values(), *hide.labels.values()) if len(value) >= _SHORTEST_SECRET}
        for value in sorted(values, key=len, reverse=True):
            text = text.replace(value, "…")  # I12: nothing of an environment in an error
    return EngineRefused(f"cannot {verb}: the engine refused: {text[:200]}")
