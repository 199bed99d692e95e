"""Redactor: replaces secrets in a stream of bytes by as many mask characters, so that lengths stay the same.

It finds the forms it is given and no other: a host that sends a secret reversed or in hexadecimal is not caught. It
holds back only bytes that may begin a secret, so an answer that arrives in pieces is passed on as it arrives.
"""

from __future__ import annotations

from collections.abc import Iterable

_MASKS = b"*#.-_=+~xX0\t"
"""The first that no secret contains; no secret contains a tab, because control characters are refused."""


class Redactor:
    """Redact one stream. `forms` are the byte strings that must not pass."""

    def __init__(self, forms: Iterable[bytes]) -> None:
        given = sorted({form for form in forms if form}, key=len)
        # a form within another form is found there too, and without the longer one no two matches begin together
        self._forms = [form for i, form in enumerate(given) if not any(short in form for short in given[:i])]
        used = set(b"".join(self._forms))
        # with a character of a secret as the mask, masked bytes and their neighbours could spell the secret
        self._mask = next(bytes([mask]) for mask in _MASKS if mask not in used or mask == _MASKS[-1])
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """Return the next bytes that can be passed on, which may be none."""
        text = self._held + chunk if self._held else chunk
        clean, matched_until = self._masked(text)
        keep_from = self._possible_start(text, matched_until)
        self._held = text[keep_from:]
        return clean if keep_from == len(text) else clean[:keep_from]

    def finish(self) -> bytes:
        """Return what was held back. It was the start of a secret at most."""
        held, self._held = self._held, b""
        return held

    def redact(self, text: bytes) -> bytes:
        """Return a complete text without the secrets."""
        return self._masked(text)[0]

    def _masked(self, text: bytes) -> tuple[bytes, int]:
        """Return the text with every complete match masked, and where the last match ends."""
        found = {form: place for form in self._forms if (place := text.find(form)) >= 0}
        if not found:
            return text, 0
        clean, end = bytearray(text), 0
        while found:
            form = min(found, key=found.__getitem__)
            start = found[form]
            if start >= end:
                end = start + len(form)
                clean[start:end] = self._mask * len(form)
            found[form] = text.find(form, end)
            if found[form] < 0:
                del found[form]
        return bytes(clean), end

    def _possible_start(self, text: bytes, after: int) -> int:
        """Return the first place, at or after this one, from which the rest of the text may begin a secret."""
        size = len(text)
        view = memoryview(text)
        first = size
        for form in self._forms:
            place = max(after, size - len(form) + 1)
            pattern = memoryview(form)
            while (place := text.find(form[:1], place, first)) >= 0:
                if view[place:] == pattern[: size - place]:
                    first = place
                    break
                place += 1
        return first
