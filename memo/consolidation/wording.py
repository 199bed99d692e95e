"""Comparing what bullets say: the same words, or nearly, count as the same. Pure, and blind to word order.

Good enough to keep a deleted bullet from coming back in other words; it does not understand anything.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_WORD = re.compile(r"[^\W_]+(?:[+#]+|(?:['.-][^\W_]+)*)")
_STOPWORDS = frozenset(
    re.findall(
        r"\w+",
        "a an the and or of to in on at for with from by as is are be was were it its this that these those their they "
        "them user users he she his her has have had do does very really also than then so",
    )
)
NEARLY = 0.75


@lru_cache(maxsize=8192)
def plain(text: str) -> str:
    """Return the text for an exact comparison: case, spaces and punctuation at the ends do not count."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(folded.split()).strip(" .;:,!*_`\"'")


@lru_cache(maxsize=8192)
def words(text: str) -> frozenset[str]:
    found = (_stem(word) for word in _WORD.findall(plain(text)))
    return frozenset(word for word in found if word not in _STOPWORDS)


def is_alike(one: str, other: str) -> bool:
    """Say whether two bullets say the same, as far as their words tell."""
    if plain(one) == plain(other):
        return True
    first, second = words(one), words(other)
    if not first or not second:
        return False
    shared = len(first & second)
    if shared == min(len(first), len(second)) and shared >= 2:
        return True
    return shared / len(first | second) >= NEARLY


def _stem(word: str) -> str:
    """Take off a plural or a third person, so that "likes" and "like" are one word."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
