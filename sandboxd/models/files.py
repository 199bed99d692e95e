"""Files of the container: the queries and bodies that name one, and its metadata.

A name may be any bytes, but JSON has only text. A path whose bytes are not UTF-8 is written as a `file:` URI
(`file:///workspace/caf%E9.txt`), and file calls accept this form for every path. An absolute path starts with a
slash, so the two are never confused. In the daemon such a byte is a surrogate, as in Python's own file functions.
"""

from __future__ import annotations

import stat
from datetime import datetime
from typing import Annotated, Literal, Self
from urllib.parse import quote, unquote

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from sandboxd.models.paths import normalise_path, parse_path
from sandboxd.models.wire import AnswerModel, BodyModel, QueryModel
from sandboxd.runner.inside.wire import MAX_PAGE_ENTRIES

MAX_FILE_BYTES = 1_073_741_824
MAX_ARCHIVE_BYTES = 68_719_476_736
"""The bound of an uploaded archive. What it may take in the sandbox is bounded by the workspace."""

FileType = Literal["file", "directory", "symlink", "other"]
FileEventKind = Literal["ready", "created", "changed", "removed", "overflow"]

_URI = "file://"


def decode_path(text: str) -> str:
    """Return the path of a `file:` URI; any other text is returned as it is."""
    return unquote(text[len(_URI) :], errors="surrogateescape") if text.startswith(f"{_URI}/") else text


def shown_path(path: str) -> str:
    """Return a path as JSON can carry it: as it is, or as a URI if its bytes are not UTF-8."""
    raw = path.encode("utf-8", "surrogateescape")
    return f"{_URI}{quote(raw)}" if path != raw.decode("utf-8", "replace") else path


def file_type(mode: int) -> FileType:
    types: dict[int, FileType] = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
    return types.get(stat.S_IFMT(mode), "other")


ReadablePath = Annotated[str, AfterValidator(lambda text: normalise_path(decode_path(text)))]
WritablePath = Annotated[str, AfterValidator(lambda text: parse_path(decode_path(text)))]

_READABLE = "Absolute path under /workspace, /skills, /tmp or /var/tmp, or of a file that every user may read."
_WRITABLE = "Absolute path under /workspace, /tmp or /var/tmp."
_FOLLOW = "Whether a link at the end of the path is followed; if not, the link itself is described."


class FileQuery(QueryModel):
    path: WritablePath = Field(description=_WRITABLE)


class ReadableFileQuery(QueryModel):
    path: ReadablePath = Field(description=_READABLE)
    stat: bool = Field(default=False, description="Return the file's metadata instead of its bytes.")
    follow: bool = Field(default=True, description=f"With `stat`: {_FOLLOW}")
    list: bool = Field(
        default=False,
        description="Return the entries of a directory, in the byte order of their names, without following links.",
    )
    after: ReadablePath | None = Field(
        default=None, description="With `list`: the `next` of the previous page, to get the entries that follow."
    )
    limit: int = Field(
        default=MAX_PAGE_ENTRIES,
        ge=1,
        le=MAX_PAGE_ENTRIES,
        description="With `list`: the most entries to return. A page has fewer if their names are long.",
    )

    @model_validator(mode="after")
    def _options_fit(self) -> ReadableFileQuery:
        if self.list and self.stat:
            raise ValueError("list and stat exclude each other")
        if not self.list and self.model_fields_set & {"after", "limit"}:
            raise ValueError("after and limit need list=true")
        if not self.stat and "follow" in self.model_fields_set:
            raise ValueError("follow needs stat=true")
        return self


class FileHeadQuery(QueryModel):
    path: ReadablePath = Field(description=_READABLE)
    follow: bool = Field(default=True, description=_FOLLOW)


class RemovalQuery(QueryModel):
    path: WritablePath = Field(description=_WRITABLE)
    recursive: bool = Field(default=False, description="Whether to remove a directory with everything below it.")


class ArchiveQuery(QueryModel):
    path: WritablePath = Field(description="Absolute path under /workspace, /skills, /tmp or /var/tmp.")


class WatchQuery(QueryModel):
    path: WritablePath = Field(description="A directory: absolute path under /workspace, /skills, /tmp or /var/tmp.")
    recursive: bool = Field(default=False, description="Whether directories below it are watched too.")


class MakeDirectoryBody(BodyModel):
    path: WritablePath = Field(description=_WRITABLE)
    parents: bool = Field(
        default=False,
        description="Whether to make missing directories above it too, and to accept a directory that exists.",
    )


class MoveBody(BodyModel):
    source: WritablePath = Field(alias="from", description=_WRITABLE)
    target: WritablePath = Field(alias="to", description=_WRITABLE)
    replace: bool = Field(
        default=False, description="Whether an existing file or empty directory at the target is replaced."
    )


class FileInfo(AnswerModel):
    """A file, directory or other entry of the container's file system."""

    model_config = ConfigDict(title="FileAnswer")

    path: str = Field(description="The absolute path; a `file:` URI if its bytes are not UTF-8.")
    type: FileType = "file"
    size_bytes: int
    mode: int = Field(description="The type and permission bits, as in stat(2).")
    modified_at: datetime | None = Field(description="null for a time that no calendar has.")

    @classmethod
    def of(cls, path: str, size_bytes: int, mode: int, modified_at: datetime | None) -> Self:
        """Return what stat(2) says about a path of the container."""
        return cls(
            path=shown_path(path), type=file_type(mode), size_bytes=size_bytes, mode=mode, modified_at=modified_at
        )


class DirectoryPage(AnswerModel):
    """Some entries of a directory."""

    model_config = ConfigDict(title="FilesAnswer")

    items: list[FileInfo] = Field(description="In the byte order of their names.")
    next: str | None = Field(description="Pass it as `after` to get the entries that follow; null if there are none.")


class ArchiveSummary(AnswerModel):
    """What was extracted from an archive."""

    model_config = ConfigDict(title="ArchiveAnswer")

    entries: int = Field(description="Files, links and directories that were written.")
    bytes: int = Field(description="The size of the files' contents.")


class FileEvent(AnswerModel):
    """Something that happened in a watched directory."""

    event: FileEventKind = Field(
        description="`ready`: everything that happens from now on is reported. `overflow`: events were lost."
    )
    path: str = Field(description="The absolute path; a `file:` URI if its bytes are not UTF-8.")
    type: FileType | None = Field(
        default=None, description="null if it is not known, because the file is gone and was not a directory."
    )
