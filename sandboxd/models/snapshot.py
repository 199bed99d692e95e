"""A snapshot of a workspace: the request for one, its record, and how far its copy is."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import ConfigDict, Field

from sandboxd.models.ids import SessionName, User
from sandboxd.models.paths import CleanText
from sandboxd.models.wire import AnswerModel, BodyModel

SnapshotName = Annotated[CleanText, Field(min_length=1, max_length=256)]
SnapshotId = Annotated[str, Field(pattern=r"^[a-z0-9-]{1,64}$")]


class SnapshotRequest(BodyModel):
    model_config = ConfigDict(title="SnapshotBody")

    name: SnapshotName | None = Field(default=None, description="A name for people. Two snapshots may share one.")


class SnapshotView(AnswerModel):
    """A snapshot, as callers see it. It contains the files of the workspace, and outlives the sandbox."""

    model_config = ConfigDict(title="SnapshotAnswer")

    id: str
    name: str | None
    size_bytes: int = Field(description="The disk space that it takes.")
    created_at: datetime
    session: SessionName = Field(description="The session whose workspace was copied.")
    user: User
    disk_mb: int = Field(description="The size of the workspace; a sandbox made from it has the same.")


class SnapshotList(AnswerModel):
    model_config = ConfigDict(title="SnapshotsAnswer")

    items: list[SnapshotView]


class SnapshotProgress(AnswerModel):
    """How much of a workspace is copied."""

    copied_bytes: int
    total_bytes: int
