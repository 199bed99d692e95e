"""The filesystem store against a simple model, with two stores and an editor on one directory."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from memo.documents import ABSENT, ANY, ArtifactKey, Document, DocumentKey, sha256_of
from memo.errors import Absent, InvalidKey, NameTaken, Redacted, RevisionConflict
from memo.stores import BaseStore
from memo.stores.filesystem import FilesystemStore
from tests.long_runs import scaled
from tests.memo.test_state_machine import DELETED, StoreAgainstModel, thorough

KEYS = [
    DocumentKey.of("acme", "s1", "session", "NOTES.md"),
    DocumentKey.of("acme", "s1", "session", "TODO.md"),
    DocumentKey.of("acme", "ann", "user", "USER.md"),
    DocumentKey.of("acme", "s1", "session", "memories/a.md"),
    DocumentKey.of("acme", "s1", "session", "memories/b/c.md"),
]
keys = st.sampled_from(KEYS)
texts = st.sampled_from(["", "a", "b\n", "ü日本\r\n", "a\nb\n", "c" * 5000])
which = st.integers(0, 1)
revisions = st.integers(1, 8)


class DirectoryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.stack = ExitStack()
        self.portal: BlockingPortal = self.stack.enter_context(start_blocking_portal())
        self.stores = [self.open(), self.open()]
        self.model: dict[DocumentKey, list[str | None]] = {key: [] for key in KEYS}
        self.told: list[tuple[Any, int]] = []
        self.artifacts: dict[str, tuple[int, str]] = {}
        self.messages: list[str] = []
        self.call(0, "get_or_create", "acme", "ann", "a", "s1")

    def open(self) -> FilesystemStore:
        store = FilesystemStore(self.root, watch=False, settle_s=0)
        self.portal.call(store.open)
        return store

    def call(self, store: int, verb: str, *args: Any, **kwargs: Any) -> Any:
        async def run() -> Any:
            return await getattr(self.stores[store], verb)(*args, **kwargs)

        return self.portal.call(run)

    def file(self, key: DocumentKey) -> Path:
        return self.root / "tenants" / "acme" / f"{key.scope}s" / key.owner / key.name

    def newest(self, key: DocumentKey) -> Document | None:
        versions = self.model[key]
        return self.document(versions[-1], len(versions)) if versions and versions[-1] != DELETED else None

    def document(self, text: str | None, revision: int) -> Document:
        assert text is not None
        return Document(text, revision, sha256_of(text.encode()))

    def committed(self, key: DocumentKey, text: str) -> Document:
        self.tell(key, text)
        return self.document(text, len(self.model[key]))

    def tell(self, key: DocumentKey, text: str) -> None:
        self.model[key].append(text)
        self.told.append((key, len(self.model[key])))

    @rule(store=which, key=keys, text=texts, expected=st.one_of(st.just(ANY), st.just(ABSENT), revisions))
    def write(self, store: int, key: DocumentKey, text: str, expected: Any) -> None:
        current = self.newest(key)
        allowed = expected is ANY or (current is None if expected is ABSENT else len(self.model[key]) == expected)
        if allowed:
            written = self.call(store, "write_document", key, text, expected=expected)
            assert written == self.committed(key, text)
            return
        refused = raised(RevisionConflict, lambda: self.call(store, "write_document", key, text, expected=expected))
        assert refused.current == current

    @rule(store=which, key=keys, text=texts)
    def append(self, store: int, key: DocumentKey, text: str) -> None:
        before = self.newest(key)
        appended = self.call(store, "append_document", key, text)
        assert appended == self.committed(key, (before.content if before else "") + text)

    @rule(store=which, key=keys, text=texts, by_rename=st.booleans())
    def edit_outside(self, store: int, key: DocumentKey, text: str, by_rename: bool) -> None:
        self.file(key).parent.mkdir(parents=True, exist_ok=True)
        if by_rename:
            fresh = self.file(key).with_name(".fresh")
            fresh.write_bytes(text.encode())
            fresh.rename(self.file(key))
        else:
            self.file(key).write_bytes(text.encode())
        before = self.newest(key)
        if before is None or before.content != text:
            self.committed(key, text)
        assert self.call(store, "read_document", key) == self.newest(key)

    @rule(store=which, key=keys)
    def delete_outside(self, store: int, key: DocumentKey) -> None:
        before = self.newest(key)
        self.file(key).unlink(missing_ok=True)
        if before is not None:
            self.tell(key, DELETED)
        assert self.call(store, "read_document", key) is None

    @rule(store=which, key=keys)
    def delete(self, store: int, key: DocumentKey) -> None:
        before = self.newest(key)
        if before is None:
            raised(Absent, lambda: self.call(store, "delete_document", key))
            return
        deletion = self.call(store, "delete_document", key, expected=before.revision)
        self.tell(key, DELETED)
        assert deletion.revision == len(self.model[key])
        assert not self.file(key).exists()

    @rule(store=which, key=keys, to=keys)
    def move(self, store: int, key: DocumentKey, to: DocumentKey) -> None:
        if key.scope is not to.scope:
            return
        before = self.newest(key)
        refusal: Any = None
        if key == to:
            refusal = InvalidKey
        elif before is None:
            refusal = Absent
        elif self.newest(to) is not None:
            refusal = NameTaken
        if refusal is not None or before is None:
            raised(refusal, lambda: self.call(store, "move_document", key, to.name))
            return
        moved = self.call(store, "move_document", key, to.name)
        self.tell(key, DELETED)
        assert moved.document == self.committed(to, before.content)
        assert not self.file(key).exists()
        assert self.file(to).read_bytes() == before.content.encode()

    @rule(store=which, key=keys, revision=revisions)
    def restore(self, store: int, key: DocumentKey, revision: int) -> None:
        if revision > len(self.model[key]):
            raised(Absent, lambda: self.call(store, "restore_document", key, revision))
            return
        text = self.model[key][revision - 1]
        if text == DELETED:
            raised(Absent, lambda: self.call(store, "restore_document", key, revision))
            return
        if text is None:
            raised(Redacted, lambda: self.call(store, "restore_document", key, revision))
        else:
            assert self.call(store, "restore_document", key, revision) == self.committed(key, text)

    @rule(store=which, key=keys, revision=revisions)
    def redact(self, store: int, key: DocumentKey, revision: int) -> None:
        versions = self.model[key]
        if revision > len(versions) or versions[revision - 1] == DELETED:
            raised(Absent, lambda: self.call(store, "redact_document", key, revision))
        elif versions[revision - 1] == versions[-1]:
            raised(RevisionConflict, lambda: self.call(store, "redact_document", key, revision))
        elif versions[revision - 1] is not None:
            text = versions[revision - 1]
            gone = self.call(store, "redact_document", key, revision)
            assert all(versions[number - 1] in (None, text) for number in gone)
            assert {n for n, version in enumerate(versions, start=1) if version == text} <= set(gone)
            self.model[key] = [None if version == text else version for version in versions]

    @rule(store=which, call=st.sampled_from(["c1", "c2", "c3"]), text=texts)
    def write_artifact(self, store: int, call: str, text: str) -> None:
        key = ArtifactKey.of("acme:s1", call)
        revision, old = self.artifacts.get(call, (0, None))
        if old != text:
            self.artifacts[call] = (revision + 1, text)
            self.told.append((key, revision + 1))
        assert self.call(store, "write_artifact", key, text).revision == self.artifacts[call][0]

    @rule(store=which, count=st.integers(0, 5))
    def append_turn(self, store: int, count: int) -> None:
        new = [f"message {len(self.messages) + n}" for n in range(count)]
        self.call(store, "append_turn", "acme", "s1", [{"role": "user", "content": m} for m in new], {"input": 1})
        self.messages += new

    @rule(store=which)
    def compact(self, store: int) -> None:
        notes = self.newest(KEYS[0])
        if self.call(store, "compact_if_needed", "acme", "s1", lambda _: "summary", force=True):
            seen = self.call(store, "read_document", KEYS[0])
            before = notes.content if notes else ""
            assert seen.content.startswith(before)
            assert "summary" in seen.content[len(before) :]
            self.committed(KEYS[0], seen.content)

    @rule(store=which)
    def open_again(self, store: int) -> None:
        self.portal.call(self.stores[store].aclose)
        self.stores[store] = self.open()

    @invariant()
    def both_stores_show_what_the_model_holds(self) -> None:
        for store in (0, 1):
            for key, versions in self.model.items():
                assert self.call(store, "read_document", key) == self.newest(key)
                assert self.file(key).exists() == (self.newest(key) is not None)
                history = self.call(store, "document_history", key)
                assert [r.deleted for r in reversed(history)] == [text == DELETED for text in versions]
                assert [r.redacted for r in reversed(history)] == [text is None for text in versions]
            history = self.call(store, "load_full_history", "acme", "s1")
            assert [m["content"] for m in history] == self.messages
            ids = self.call(store, "list_tool_result_artifact_ids", "acme:s1")
            found = {i: self.call(store, "read_tool_result_artifact", "acme:s1", i) for i in ids}
            assert found == {call: text for call, (_, text) in self.artifacts.items()}
            changes = self.call(store, "_read_changes", 0, 10_000)
            assert [(c.key, c.revision) for c in changes] == self.told
            assert self.call(store, "last_change") == len(self.told)

    def teardown(self) -> None:
        for key, versions in self.model.items():
            for revision, text in enumerate(versions, start=1):
                if text is not None:
                    wanted = None if text == DELETED else self.document(text, revision)
                    assert self.call(0, "read_document", key, revision) == wanted
        for store in self.stores:
            self.portal.call(store.aclose)
        open_before = len(os.listdir("/proc/self/fd"))
        self.stack.close()
        assert len(os.listdir("/proc/self/fd")) <= open_before
        shutil.rmtree(self.root)


def raised(kind: type[Any], call: Callable[[], Any]) -> Any:
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}")


class FilesystemAgainstModel(StoreAgainstModel):
    """The state machine that every store runs."""

    def make(self, directory: Path) -> BaseStore:
        return FilesystemStore(directory, watch=False)

    @rule()
    def open_again(self) -> None:
        self.portal.call(self.store.aclose)
        self.portal.call(self.store.open)


TestFilesystemAgainstModel = FilesystemAgainstModel.TestCase
TestFilesystemAgainstModel.settings = settings(thorough, max_examples=scaled(10, 200))
TestDirectory = DirectoryMachine.TestCase
TestDirectory.settings = settings(thorough, max_examples=scaled(12, 200), stateful_step_count=25)
