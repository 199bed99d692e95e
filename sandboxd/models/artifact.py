"""An artifact: the full text of a tool result, as the list of a session's artifacts shows it."""

from __future__ import annotations

from datetime import datetime
from typing import Self

from pydantic import ConfigDict

from memo.documents import ArtifactEntry
from sandboxd.models.wire import AnswerModel


class Artifact(AnswerModel):
    """A stored tool result. A minimal store has only its id."""

    model_config = ConfigDict(title="ArtifactAnswer")

    id: str
    revision: int | None = None
    sha256: str | None = None
    size: int | None = None
    at: datetime | None = None

    @classmethod
    def of(cls, entry: ArtifactEntry) -> Self:
        return cls(
            id=entry.key.tool_call,
            revision=entry.revision,
            sha256=entry.sha256,
            size=entry.size_bytes,
            at=entry.at,
        )


class ArtifactList(AnswerModel):
    model_config = ConfigDict(title="ArtifactsAnswer")

    items: list[Artifact]
