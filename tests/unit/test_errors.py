"""The error tree: every code is on the wire once, with one status, and is rebuilt as the same class."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandboxd.api.problems import STATUS_BY_CODE, problem_of
from sandboxd.client.errors import rebuild
from sandboxd.errors import (
    DirectoryNotEmpty,
    FileError,
    FileExists,
    FileNotFound,
    Gone,
    IsADirectory,
    NotADirectory,
    NotFound,
    PermissionDenied,
    RangeNotSatisfiable,
    ReadOnly,
    RouteNotFound,
    SandboxdError,
    SandboxNotFound,
    WorkspaceFull,
)

STATUS: dict[type[FileError], int] = {
    FileNotFound: 404,
    IsADirectory: 409,
    NotADirectory: 409,
    PermissionDenied: 403,
    ReadOnly: 403,
    FileExists: 409,
    DirectoryNotEmpty: 409,
    RangeNotSatisfiable: 416,
    WorkspaceFull: 507,
}


def leaves(kind: type[SandboxdError]) -> Iterator[type[SandboxdError]]:
    children = [child for child in kind.__subclasses__() if child.__module__ == "sandboxd.errors"]
    if not children:
        yield kind
    for child in children:
        yield from leaves(child)


LEAVES = sorted(set(leaves(SandboxdError)), key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_an_error_from_the_wire_is_rebuilt_as_its_own_class(kind: type[SandboxdError]) -> None:
    error = Gone("cannot go on", "oom") if kind is Gone else kind("cannot go on")
    rebuilt = rebuild(problem_of(error).model_dump())
    assert type(rebuilt) is kind
    assert str(rebuilt) == "cannot go on"


def test_no_two_errors_share_a_code() -> None:
    codes = [kind.code for kind in LEAVES]
    assert len(codes) == len(set(codes))


def test_file_errors_are_one_family_with_a_status_each() -> None:
    assert set(leaves(FileError)) == set(STATUS)
    assert {kind: STATUS_BY_CODE[kind.code] for kind in STATUS} == STATUS
    assert WorkspaceFull.code == "sandbox.workspace_full"


def test_every_not_found_error_can_be_caught_as_one_class() -> None:
    assert all(issubclass(kind, NotFound) for kind in (FileNotFound, SandboxNotFound, RouteNotFound))
