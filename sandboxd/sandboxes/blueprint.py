"""The container that a record describes: what is mounted where, and what runs as PID 1. Pure."""

from __future__ import annotations

from pathlib import Path

from sandboxd.engine.protocol import LABEL_INSTANCE, LABEL_SANDBOX, ContainerSpec, Mount
from sandboxd.runner.inside.container_paths import MEMO, SKILLS, VAR_TMP, WORKSPACE
from sandboxd.runner.protocol import RUN_TARGET, RUNNER_COMMAND, RUNNER_TARGET
from sandboxd.sandboxes.lifecycle import Record

LABEL_MIRROR = "sandboxd.mirror"
"""Which directory the container shows as memory; see `Layout.mirror_identity`."""


def container_spec(
    record: Record,
    *,
    instance: str,
    uid: int,
    gid: int,
    workspace: Path,
    temporary: Path | None,
    mirror: Path,
    mirror_identity: str,
    run_dir: Path,
    runner: Path,
    skills: Path | None,
    runtime: str | None,
    tmp_exec: bool,
) -> ContainerSpec:
    mounts = [
        Mount(workspace, WORKSPACE, read_only=False),
        Mount(mirror, MEMO, read_only=True),
        Mount(run_dir, RUN_TARGET, read_only=True),
        Mount(runner, RUNNER_TARGET, read_only=True),
    ]
    if temporary is not None:
        mounts.append(Mount(temporary, VAR_TMP, read_only=False))
    if skills is not None:
        mounts.append(Mount(skills, SKILLS, read_only=True))
    return ContainerSpec(
        name=record.container_name,
        image=record.shape.image,
        # Isolated and without site, so that the image's packages and environment cannot change the runner.
        command=RUNNER_COMMAND,
        uid=uid,
        gid=gid,
        labels={LABEL_INSTANCE: instance, LABEL_SANDBOX: record.id, LABEL_MIRROR: mirror_identity},
        mounts=tuple(mounts),
        limits=record.shape.limits,
        runtime=runtime,
        tmp_exec=tmp_exec,
    )
