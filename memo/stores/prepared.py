"""A text on its way into a store: checked, encoded, hashed and counted before any lock is taken.

Pure, and slow for a long text: call it in a thread where the counter is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

from memo.documents import Author, sha256_of, summary_of
from memo.errors import InvalidContent
from memo.limits import encode_text
from memo.stores.options import StoreOptions

AUTHOR_FIELD_CHARS = 1000


@dataclass(frozen=True, slots=True)
class PreparedText:
    text: str
    encoded: bytes
    sha256: str
    summary: str
    tokens: int
    tokens_exact: bool

    @property
    def size_bytes(self) -> int:
        return len(self.encoded)


def prepare_document(text: object, options: StoreOptions) -> PreparedText:
    encoded = encode_text("document", text, options.limits.document_bytes)
    checked = str(text)
    count = options.counter.count(checked)
    return PreparedText(checked, encoded, sha256_of(encoded), summary_of(checked), count.tokens, count.exact)


def prepare_artifact(text: object, options: StoreOptions) -> PreparedText:
    encoded = encode_text("artifact", text, options.limits.artifact_bytes)
    return PreparedText(str(text), encoded, sha256_of(encoded), "", 0, False)


def check_author(author: Author) -> None:
    for name in ("actor", "reason", "request"):
        value = getattr(author, name)
        if value is None and name == "request":
            continue
        if not isinstance(value, str) or len(value) > AUTHOR_FIELD_CHARS or "\0" in value:
            raise InvalidContent(
                f"cannot write: the author's {name} is not text of at most {AUTHOR_FIELD_CHARS} characters"
            )
        encode_text(f"author's {name}", value, 4 * AUTHOR_FIELD_CHARS)
