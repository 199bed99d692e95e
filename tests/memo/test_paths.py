"""The path grammar: every key has one path, and every text parses to one key or raises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memo.documents import RESERVED_NAMES, ArtifactKey, DocumentKey, DocumentName, Scope
from memo.errors import InvalidKey
from memo.ids import SessionRef, UserId
from memo.paths import MEMO_ROOT, DocumentPath, is_memo_path, key_at, parse_path, path_of

SESSION = SessionRef.of("acme", "s1")
USER = UserId("ann")

ids = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}", fullmatch=True)
segments = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._@+-]{0,30}", fullmatch=True)
paths = st.lists(segments, min_size=2, max_size=8).map("/".join).filter(lambda path: _is_legal(path))
names = ids.filter(lambda name: name.lower() not in RESERVED_NAMES) | paths


def _is_legal(path: str) -> bool:
    first, *_, last = path.split("/")
    is_reserved = first.lower() in RESERVED_NAMES or first in ("NOTES.md", "TODO.md", "USER.md")
    return not is_reserved and last not in ("history", "diff", "restore")


keys = st.one_of(
    names.map(lambda name: DocumentKey.of_session(SESSION, name)),
    names.map(lambda name: DocumentKey.of_user(SESSION.tenant, USER, name)),
    ids.map(lambda call: ArtifactKey.of(SESSION, call)),
)
pieces = st.sampled_from(
    ["session", "user", "tool-results", "NOTES.md", "x.txt", "..", ".", "", "a\0b", "é", ".x", "-x"]
)


@given(keys)
def test_every_key_comes_back_from_its_path(key: DocumentKey | ArtifactKey) -> None:
    path = str(path_of(key))
    assert key_at(path, SESSION, USER) == key
    assert is_memo_path(path)
    assert str(parse_path(path)) == path


@given(st.lists(pieces | st.text(max_size=8), max_size=5).map("/".join).map(lambda tail: f"{MEMO_ROOT}/{tail}"))
def test_every_text_under_the_root_is_a_path_or_an_error(path: str) -> None:
    try:
        parsed = parse_path(path)
    except InvalidKey as error:
        assert str(error).startswith("cannot")
    else:
        assert str(parsed) == path


@pytest.mark.parametrize(
    "path",
    [
        "/workspace/memo",
        "/workspace/memo/",
        "/workspace/memo/session",
        "/workspace/memo/session/",
        "/workspace/memo/session/../user/USER.md",
        "/workspace/memo/session//NOTES.md",
        "/workspace/memo/session/NOTES.md/",
        "/workspace/memo/session/tool-results",
        "/workspace/memo/session/tool-results/x",
        "/workspace/memo/session/tool-results/.txt",
        "/workspace/memo/user/tool-results/x.txt",
        "/workspace/memo/.manifest.json",
        "/workspace/memo/session/.hidden",
        "/workspace/memo/session/NOTES.md\n",
        "/workspace/memory/session/NOTES.md",
        "workspace/memo/session/NOTES.md",
        "/workspace/memo/session/" + "x" * 200,
        "/workspace/memo/session/No\u0308tes.md",
        "/workspace/memo/session/N\u00f6tes.md",
        "/workspace/memo/session/trace",
    ],
)
def test_a_text_that_is_not_a_memo_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidKey, match=r"^cannot use"):
        parse_path(path)


@pytest.mark.parametrize("name", [*sorted(RESERVED_NAMES), "Tool-Results", "..", "", "a\0", "\ud800", "x" * 129])
def test_an_unsafe_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidKey):
        DocumentName(name)


@pytest.mark.parametrize(
    "name",
    [
        *(f"{reserved}/x.md" for reserved in sorted(RESERVED_NAMES)),
        "Trace/x.md",
        "NOTES.md/x.md",
        "/a",
        "a/",
        "a//b",
        "a/../b",
        "a/./b",
        "a/.hidden",
        ".hidden/a",
        "a/-b",
        "a/b c",
        "a/" + "x" * 129,
        "/".join("abcdefghi"),
        "/".join(["x" * 128] * 4),
        "a/history",
        "a/b/diff",
        "a/restore",
        "a\\b",
        "a/b\n",
    ],
)
def test_an_unsafe_path_is_refused_and_never_repaired(name: str) -> None:
    with pytest.raises(InvalidKey, match=r"^cannot use this document name: "):
        DocumentName(name)


@pytest.mark.parametrize(
    "name", ["memories/projects/x.md", "_index.md", "a/trace/b", "history", "/".join("abcdefgh"), "a/" + "x" * 128]
)
def test_a_name_of_several_segments_is_a_path_in_the_mirror(name: str) -> None:
    path = f"/workspace/memo/user/{name}"
    parsed = parse_path(path)
    assert (str(parsed), parsed) == (path, DocumentPath(Scope.USER, DocumentName(name)))
