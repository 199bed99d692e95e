"""Each store against a simple model: any sequence of calls gives the same results."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from memo import InMemoryStore, SQLiteStore
from memo.compaction import SUMMARY_PREFIX
from memo.documents import ABSENT, ANY, EMPTY_SHA256, Document, DocumentKey, DocumentName, Expected, sha256_of
from memo.errors import Absent, InvalidKey, MemoError, NameTaken, Redacted, RevisionConflict
from memo.stores import BaseStore
from tests.long_runs import scaled

keys = st.sampled_from(
    [
        DocumentKey.of(tenant, owner, scope, name)
        for tenant, owner, scope in (("acme", "s1", "session"), ("acme", "s1", "user"), ("other", "s1", "session"))
        for name in ("NOTES.md", "TODO.md", "memories", "memories/a.md", "memories/b/c.md")
    ]
)
names = st.sampled_from([DocumentName(n) for n in ("TODO.md", "memories", "memories/a.md", "memories/b/c.md")])
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(["same", "SECRET"])
calls = st.sampled_from(["call-1", "call-2"])


DELETED = "\ud800 deleted"
"""A deletion in the model: a text that no store accepts."""


class StoreAgainstModel(RuleBasedStateMachine):
    """The model: a list of texts for each key, a list of (key, revision), lists of messages.

    A text is None if it was redacted, DELETED for a deletion.
    """

    def make(self, directory: Path) -> BaseStore:
        raise NotImplementedError

    @initialize()
    def open(self) -> None:
        self.resources = ExitStack()
        directory = Path(tempfile.mkdtemp(prefix="memo-model-"))
        self.resources.callback(shutil.rmtree, directory)
        self.portal = self.resources.enter_context(start_blocking_portal("asyncio"))
        self.store = self.make(directory)
        self.portal.call(self.store.open)
        self.resources.callback(self.portal.call, self.store.aclose)
        self.portal.call(self.store.get_or_create, "acme", "ann", "a", "s1")
        self.documents: dict[DocumentKey, list[str | None]] = {}
        self.hashes: dict[DocumentKey, list[str]] = {}
        self.artifacts: dict[str, tuple[int, str]] = {}
        self.changes: list[tuple[Any, int]] = []
        self.visible: list[dict[str, Any]] = []
        self.full: list[dict[str, Any]] = []

    def teardown(self) -> None:
        if hasattr(self, "resources"):
            self.resources.close()

    def run(self, call: Callable[[], Awaitable[Any]]) -> Any:
        return self.portal.call(call)

    def committed(self, key: DocumentKey, text: str, document: Document) -> None:
        self.documents.setdefault(key, []).append(text)
        self.hashes.setdefault(key, []).append(sha256_of(text.encode()))
        assert document == Document(text, len(self.documents[key]), self.hashes[key][-1])
        self.changes.append((key, document.revision))

    def is_live(self, key: DocumentKey) -> bool:
        return self.documents.get(key, [DELETED])[-1] != DELETED

    def live_names(self, key: DocumentKey, without: DocumentKey | None = None) -> list[str]:
        """The documents of the key's owner, by name."""
        of_owner = [k for k in self.documents if replace(k, name=key.name) == key and k != without]
        return sorted(k.name for k in of_owner if self.is_live(k))

    def clashes(self, key: DocumentKey, without: DocumentKey | None = None) -> bool:
        others = self.live_names(key, without)
        return any(key.name.startswith(f"{o}/") or o.startswith(f"{key.name}/") for o in others)

    def refuses(self, key: DocumentKey, call: Callable[[], Awaitable[Any]]) -> bool:
        """Check that a creation is refused if the name clashes with another one."""
        if self.is_live(key) or not self.clashes(key):
            return False
        with pytest.raises(NameTaken):
            self.run(call)
        return True

    def deleted(self, key: DocumentKey, revision: int) -> None:
        self.documents[key].append(DELETED)
        self.hashes[key].append(EMPTY_SHA256)
        assert revision == len(self.documents[key])
        self.changes.append((key, revision))

    @rule(key=keys, text=texts)
    def write(self, key: DocumentKey, text: str) -> None:
        if not self.refuses(key, lambda: self.store.write_document(key, text)):
            self.committed(key, text, self.run(lambda: self.store.write_document(key, text)))

    @rule(key=keys, expected=st.sampled_from([ANY, ANY, ABSENT, 0, 1, 2, 3]))
    def delete(self, key: DocumentKey, expected: Expected) -> None:
        if not self.is_live(key):
            with pytest.raises(Absent):
                self.run(lambda: self.store.delete_document(key, expected=expected))
        elif expected in (ANY, len(self.documents[key])):
            deletion = self.run(lambda: self.store.delete_document(key, expected=expected))
            self.deleted(key, deletion.revision)
        else:
            with pytest.raises(RevisionConflict) as caught:
                self.run(lambda: self.store.delete_document(key, expected=expected))
            assert caught.value.current is not None
            assert caught.value.current.content == self.documents[key][-1]

    @rule(key=keys, to=names)
    def move(self, key: DocumentKey, to: DocumentName) -> None:
        target = replace(key, name=to)
        refusal: type[Exception] | None = None
        if target == key:
            refusal = InvalidKey
        elif not self.is_live(key):
            refusal = Absent
        elif self.is_live(target) or self.clashes(target, without=key):
            refusal = NameTaken
        if refusal is not None:
            with pytest.raises(refusal):
                self.run(lambda: self.store.move_document(key, to))
            return
        text = self.documents[key][-1]
        assert text is not None
        moved = self.run(lambda: self.store.move_document(key, to))
        self.deleted(key, moved.deletion.revision)
        self.committed(target, text, moved.document)

    @rule(key=keys, text=texts, expected=st.sampled_from([ANY, ABSENT, 0, 1, 2, 3]))
    def write_if(self, key: DocumentKey, text: str, expected: Expected) -> None:
        current, is_live = len(self.documents.get(key, [])), self.is_live(key)
        is_allowed = expected is ANY or (not is_live if expected in (ABSENT, 0) else current == expected)
        if is_allowed:
            if self.refuses(key, lambda: self.store.write_document(key, text, expected=expected)):
                return
            self.committed(key, text, self.run(lambda: self.store.write_document(key, text, expected=expected)))
            return
        with pytest.raises(RevisionConflict) as caught:
            self.run(lambda: self.store.write_document(key, text, expected=expected))
        newer, deletion = caught.value.current, caught.value.deletion
        assert (newer.revision if newer else deletion or 0) == current
        assert (newer is not None) == is_live

    @rule(key=keys, text=texts)
    def append(self, key: DocumentKey, text: str) -> None:
        before = self.documents[key][-1] if self.is_live(key) else ""
        assert before is not None
        if not self.refuses(key, lambda: self.store.append_document(key, text)):
            self.committed(key, before + text, self.run(lambda: self.store.append_document(key, text)))

    @rule(key=keys, texts=st.lists(texts, min_size=2, max_size=4))
    def append_at_once(self, key: DocumentKey, texts: list[str]) -> None:
        if self.refuses(key, lambda: self.store.append_document(key, texts[0])):
            return
        before = self.documents[key][-1] if self.is_live(key) else ""
        assert before is not None
        documents: list[tuple[Document, str]] = []

        async def one(text: str) -> None:
            documents.append((await self.store.append_document(key, text), text))

        async def all_() -> None:
            async with anyio.create_task_group() as tasks:
                for text in texts:
                    tasks.start_soon(one, text)

        self.run(all_)
        for document, text in sorted(documents, key=lambda pair: pair[0].revision):
            before += text
            self.committed(key, before, document)

    @rule(key=keys, revision=st.integers(0, 5))
    def restore(self, key: DocumentKey, revision: int) -> None:
        texts = self.documents.get(key, [])
        try:
            document = self.run(lambda: self.store.restore_document(key, revision))
        except NameTaken:
            assert not self.is_live(key)
            assert self.clashes(key)
        except MemoError:
            assert not 1 <= revision <= len(texts) or texts[revision - 1] in (None, DELETED)
        else:
            text = texts[revision - 1]
            assert text is not None
            self.committed(key, text, document)

    @rule(key=keys, revision=st.integers(0, 5))
    def redact(self, key: DocumentKey, revision: int) -> None:
        texts, hashes = self.documents.get(key, []), self.hashes.get(key, [])
        try:
            gone = self.run(lambda: self.store.redact_document(key, revision))
        except MemoError:
            is_deletion = 1 <= revision <= len(hashes) and texts[revision - 1] == DELETED
            assert not 1 <= revision <= len(hashes) or is_deletion or hashes[revision - 1] == hashes[-1]
        else:
            same = [n for n, h in enumerate(hashes, start=1) if h == hashes[revision - 1] and texts[n - 1] != DELETED]
            assert sorted(gone) == same
            for number in gone:
                self.documents[key][number - 1] = None

    @rule(call=calls, text=texts)
    def write_artifact(self, call: str, text: str) -> None:
        revision, old = self.artifacts.get(call, (0, None))
        self.run(lambda: self.store.write_tool_result_artifact("acme:s1", call, text))
        if old != text:
            self.artifacts[call] = (revision + 1, text)
            self.changes.append((call, revision + 1))

    @rule(count=st.integers(0, 4))
    def say(self, count: int) -> None:
        said = [{"role": "user", "content": f"message {len(self.full) + n}"} for n in range(count)]
        self.run(lambda: self.store.append_messages("acme", "s1", said))
        self.visible += said
        self.full += said

    @rule(fraction=st.sampled_from([0.3, 0.5, 1.0]))
    def compact(self, fraction: float) -> None:
        given: list[Any] = []

        def summarize(messages: list[Any]) -> str:
            given.extend(messages)
            return "S"

        done = self.run(
            lambda: self.store.compact_if_needed("acme", "s1", summarize, force=True, compact_fraction=fraction)
        )
        if not done:
            assert len(self.visible) <= 2
            return
        assert self.visible[: len(given)] == given
        self.visible[: len(given)] = [{"role": "user", "content": f"{SUMMARY_PREFIX}S"}]
        key = DocumentKey.of("acme", "s1", "session", "NOTES.md")
        document = self.run(lambda: self.store.read_document(key))
        self.committed(key, document.content, document)

    @invariant()
    def everything_reads_as_the_model_says(self) -> None:
        if not hasattr(self, "store"):
            return
        self.portal.call(self.compare)

    async def compare(self) -> None:
        store = self.store
        for key, texts in self.documents.items():
            newest = await store.read_document(key)
            if self.is_live(key):
                assert newest is not None
                assert (newest.content, newest.revision) == (texts[-1], len(texts))
            else:
                assert newest is None
            for revision, text in enumerate(texts, start=1):
                try:
                    old = await store.read_document(key, revision)
                except Redacted:
                    assert text is None
                else:
                    assert (DELETED if old is None else old.content) == text
            history = await store.document_history(key)
            assert [r.sha256 for r in reversed(history)] == self.hashes[key]
            assert [r.redacted for r in reversed(history)] == [text is None for text in texts]
            assert [r.deleted for r in reversed(history)] == [text == DELETED for text in texts]
            for prefix in ("", "memories/", "N"):
                listed = await store.list_documents(key.tenant, key.owner, key.scope, prefix=prefix)
                assert [e.key.name for e in listed] == [n for n in self.live_names(key) if n.startswith(prefix)]
        assert await store.list_tool_result_artifact_ids("acme:s1") == sorted(self.artifacts)
        for call, (_, text) in self.artifacts.items():
            assert await store.read_tool_result_artifact("acme:s1", call) == text
        assert await store.load_all_messages("acme", "s1") == self.visible
        assert await store.load_messages("acme", "s1", 3) == self.visible[-3:]
        assert await store.load_full_history("acme", "s1") == self.full
        async with store.changes() as feed:
            told = [await anext(feed) for _ in self.changes]
        assert [(getattr(c.key, "tool_call", c.key), c.revision) for c in told] == self.changes
        assert await store.last_change() == len(self.changes)


class InMemoryAgainstModel(StoreAgainstModel):
    def make(self, directory: Path) -> BaseStore:
        return InMemoryStore()


class SQLiteAgainstModel(StoreAgainstModel):
    def make(self, directory: Path) -> BaseStore:
        return SQLiteStore(directory / "memo.db")

    @rule()
    def open_again(self) -> None:
        self.portal.call(self.store.aclose)
        self.portal.call(self.store.open)


thorough = settings(
    max_examples=scaled(25, 200),
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestInMemoryAgainstModel = InMemoryAgainstModel.TestCase
TestInMemoryAgainstModel.settings = thorough
TestSQLiteAgainstModel = SQLiteAgainstModel.TestCase
TestSQLiteAgainstModel.settings = thorough
