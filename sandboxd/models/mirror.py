"""A session's mirror: each file compared with the store, the writes that the store refused, and requests to refresh."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from memo.documents import DocumentName
from memo.paths import parse_path
from sandboxd.models.paths import CleanText
from sandboxd.models.wire import AnswerModel, BodyModel


def _memo_path(path: str) -> str:
    return str(parse_path(path))


class RefreshBody(BodyModel):
    path: Annotated[str, AfterValidator(_memo_path)] | None = Field(
        default=None, description="A memo path as the container sees it; all files by default."
    )
    content: CleanText | None = Field(default=None, description="The text to install if it is the newest.")


class UserRefreshBody(BodyModel):
    name: Annotated[str, AfterValidator(DocumentName)]
    content: CleanText | None = Field(default=None, description="The text to install if it is the newest.")


class Refreshed(AnswerModel):
    model_config = ConfigDict(title="RefreshedAnswer")

    refreshed: int = Field(description="The number of files that changed; 0 when no live sandbox shows them.")


class MirrorFile(AnswerModel):
    """One file of a session's mirror, compared with the store by hash."""

    model_config = ConfigDict(title="MirrorFileAnswer")

    path: str
    revision: int
    sha256: str
    size: int
    in_sync: bool
    lag_ms: float = Field(description="How long the revision took to appear, or how overdue it is.")
    pending: bool = Field(default=False, description="Shown, but not yet in the store, which is unavailable.")


class RefusedWrite(AnswerModel):
    """A queued write that the store will never accept. It stays in the outbox, where an operator can see it."""

    model_config = ConfigDict(title="RefusedAnswer")

    path: str
    number: int
    size: int
    at: datetime
    why: str


class MirrorReport(AnswerModel):
    model_config = ConfigDict(title="MirrorAnswer")

    items: list[MirrorFile]
    refused: list[RefusedWrite] = Field(
        default_factory=list, description="Queued writes that the store permanently rejected; they are kept."
    )
