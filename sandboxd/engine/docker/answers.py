"""Parses the responses of the Docker API: containers, events, stats, and errors in our own words.

Pure: JSON values and text in, our values out. No part of an environment or a label appears in an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any, Literal, get_args

from sandboxd.engine.docker.causes import RawAction, RawEvent, cause_of_exit
from sandboxd.engine.protocol import LABEL_INSTANCE, Container, ContainerSpec
from sandboxd.errors import EngineRefused, HostFull, SandboxdError
from sandboxd.image import build_command
from sandboxd.models.sandbox import Stats

_SHORTEST_SECRET = 4  # masking shorter values would garble every word

OLDEST_API = (1, 41)
ACTIONS: Mapping[str, RawAction] = {
    **{action: action for action in get_args(RawAction)},
    # Podman's terms. It answers with Docker's for some of them, but filters by its own.
    "died": "die",
    "remove": "destroy",
}


def read_ping(headers: Mapping[str, str]) -> tuple[Literal["docker", "podman"], str]:
    """Return which engine answers, and the newest API version that it supports."""
    version = headers.get("Api-Version", "1.0")
    if tuple(map(int, version.split("."))) < OLDEST_API:
        raise EngineRefused(f"cannot use this engine: its API {version} is older than 1.41 (Docker 20.10)")
    return "podman" if "Libpod-Api-Version" in headers else "docker", version


def read_stats(answer: Mapping[str, Any]) -> Stats:
    memory = answer.get("memory_stats") or {}
    if "usage" not in memory:
        raise EngineRefused("cannot read stats: the container is not running")
    details = memory.get("stats") or {}
    cached = details.get("total_inactive_file", details.get("inactive_file", 0))  # cgroup v1, v2
    return Stats(
        memory_bytes=max(0, memory["usage"] - cached),
        cpu_seconds=answer["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9,
        pids=int((answer.get("pids_stats") or {}).get("current", 0)),
    )


def read_event(event: Mapping[str, Any]) -> RawEvent | None:
    """Return what the event says about a container with our label, or None if it concerns something else."""
    action = ACTIONS.get(event.get("Action", ""))
    actor = event.get("Actor") or {}
    attributes = actor.get("Attributes") or {}
    if action is None or LABEL_INSTANCE not in attributes:
        return None
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


def read_death_ns(answer: Mapping[str, Any]) -> int:
    """Return when the container died, or 0 if it has not."""
    died_at = datetime.fromisoformat(answer["State"]["FinishedAt"])
    return max(0, int(died_at.timestamp() * 1_000_000_000))


def pick_runtime(info: Mapping[str, Any], name: str | None, *, is_podman: bool) -> str:
    """Return the runtime that containers get for this name, or by default; refuse one that the engine would not use."""
    default = str(info.get("DefaultRuntime") or "runc")
    if name is None or name == default:
        return default
    if is_podman:  # its compatible API ignores a container's runtime
        raise EngineRefused(
            f"cannot use the runtime {name}: Podman runs all containers with {default}; set `runtime` in its "
            "containers.conf, and unset SANDBOXD_RUNTIME"
        )
    names = sorted(info.get("Runtimes") or ())
    if name in names or name.startswith("io.containerd."):  # runtimes that containerd starts by itself are not listed
        return name
    raise EngineRefused(
        f"cannot use the runtime {name}: the engine has {', '.join(names)}; correct SANDBOXD_RUNTIME, or register "
        "the runtime with the engine"
    )


def refuse_mounts(spec: ContainerSpec) -> None:
    """Refuse a mount with a missing source, which Podman would create as an empty directory owned by root."""
    for mount in spec.mounts:
        if not mount.source.is_dir():
            raise EngineRefused(f"cannot launch: {mount.source}, to be shown at {mount.target}, is not a directory")


def refuse_volumes(spec: ContainerSpec, answer: Mapping[str, Any]) -> None:
    asked = {mount.target for mount in spec.mounts}
    for mount in answer.get("Mounts") or ():
        if mount.get("Type") == "volume" and mount.get("Destination") not in asked:
            raise EngineRefused(
                f"cannot launch: image {spec.image} declares a volume at {mount.get('Destination')}, "
                "which would be writable without a bound"
            )


def is_name_taken(status_code: int | None, explanation: str) -> bool:
    """Return whether a create failed because the name is taken. Podman answers 500, not 409."""
    return status_code in (409, 500) and "name" in explanation and "in use" in explanation


def missing_part(spec: ContainerSpec, status_code: int | None, explanation: str) -> EngineRefused | None:
    """Explain the two most common mistakes: an image that does not exist, or one without Python."""
    text = explanation.lower()
    if status_code == 404 and "image" in text:
        command = build_command(spec.image)
        others = (
            "`sandboxd image build` builds the default image and, with a name, its variants; any other must be pulled"
        )
        step = f"build it with `{command}`" if command else others
        return EngineRefused(f"cannot launch: image {spec.image} is not in the engine; {step}")
    program = spec.command[0]
    absent = re.search(r"executable file\b.*\bnot found|no such file or directory", text)
    if absent is None or f'exec: "{program}"' not in text.replace("'", '"').replace('\\"', '"'):
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
            text = text.replace(value, "…")  # I12: no part of an environment in an error
    return EngineRefused(f"cannot {verb}: the engine refused: {text[:200]}")
