"""Messages with half of a character, which models write by mistake and which the SDK cannot parse.

JSON can spell an unpaired surrogate (`\\ud83d`), and some clients send it. The message is repaired so that the SDK
reads it, and marked so that the tool still gets what the model wrote, and can say what is wrong with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

MARK = "sandboxd/surrogates"

_ESCAPED = re.compile(rb"\\u[dD][89a-fA-F]")
_HALF = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


def repair(message: bytes) -> bytes:
    """Return a message that can be parsed; unchanged if it has no unpaired surrogate, or is not a JSON object."""
    if _ESCAPED.search(message) is None:
        return message
    try:
        parsed = json.loads(message)
    except (ValueError, RecursionError):
        return message
    if not isinstance(parsed, dict) or not isinstance(parsed.get("params"), dict):
        return message
    text = json.dumps(parsed, ensure_ascii=False)
    if _HALF.search(text) is None:
        return message
    repaired = json.loads(_HALF.sub(_REPLACEMENT, text))
    meta = repaired["params"].get("_meta")
    repaired["params"]["_meta"] = {**(meta if isinstance(meta, dict) else {}), MARK: True}
    return json.dumps(repaired).encode()


def restore(params: Mapping[str, Any]) -> Any:
    """Return the arguments of a tool call with halves of characters where a marked message had some."""
    arguments, meta = params.get("arguments"), params.get("_meta")
    if not isinstance(meta, Mapping) or not meta.get(MARK):
        return arguments
    return json.loads(json.dumps(arguments, ensure_ascii=False).replace(_REPLACEMENT, "\ud83d"))
