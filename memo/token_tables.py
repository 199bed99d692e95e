"""Token tables: the files that make exact counts possible, in tiktoken's cache format.

A table is looked for in a configured directory, in tiktoken's own cache and in an installed package that carries it; if
it is nowhere, it may be downloaded from where tiktoken downloads it. A table is used only if its sha256 is right.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

DOWNLOAD_VARIABLE: Final = "MEMO_TOKEN_DOWNLOAD"
"""Set to 0 in the environment, no counter downloads a table unless it is told to."""
ORIGIN: Final = "https://openaipublic.blob.core.windows.net"
CONNECT_TIMEOUT_S = 5.0
DOWNLOAD_TIMEOUT_S = 30.0
MAX_TABLE_BYTES = 16 * 1024 * 1024

_P50K = ("encodings/p50k_base.tiktoken", "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069")
# Path and sha256 of each file. A cached file is named by the sha1 of its address.
_FILES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "gpt2": (
        ("gpt-2/encodings/main/vocab.bpe", "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"),
        ("gpt-2/encodings/main/encoder.json", "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"),
    ),
    "r50k_base": (
        ("encodings/r50k_base.tiktoken", "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"),
    ),
    "p50k_base": (_P50K,),
    "p50k_edit": (_P50K,),
    "cl100k_base": (
        ("encodings/cl100k_base.tiktoken", "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"),
    ),
    "o200k_base": (
        ("encodings/o200k_base.tiktoken", "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"),
    ),
}
EXACT_ENCODINGS = tuple(_FILES)


def may_download() -> bool:
    """Return whether the environment allows downloads, which is the default."""
    return os.environ.get(DOWNLOAD_VARIABLE, "").strip().lower() not in ("0", "false", "no", "off")


def cache_directory() -> Path:
    """Return tiktoken's cache, where downloads are kept unless a directory is configured."""
    for variable in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        if os.environ.get(variable):
            return Path(os.environ[variable])
    return Path(tempfile.gettempdir()) / "data-gym-cache"


def table_directories(configured: Path | None = None) -> Iterator[Path]:
    """Yield the directories that may hold tables, the configured one first."""
    if configured is not None:
        yield configured
    yield cache_directory()
    spec = importlib.util.find_spec("litellm")  # located, not imported: an import costs seconds and megabytes
    for place in (spec.submodule_search_locations or []) if spec else []:
        yield Path(place) / "litellm_core_utils" / "tokenizers"


def find_tables(encoding: str, configured: Path | None = None) -> Path | None:
    """Return the first directory that has every table of the encoding undamaged."""
    files = _FILES[encoding]
    return next((d for d in table_directories(configured) if all(_is_intact(d, *file) for file in files)), None)


def download_tables(encoding: str, configured: Path | None = None, *, origin: str = ORIGIN) -> Path:
    """Download the tables of the encoding and return their directory. Raise OSError if that fails.

    Bounded in time and size, unlike tiktoken's own download. `origin` may be a copy of the same files elsewhere.
    """
    directory = configured or cache_directory()
    directory.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + DOWNLOAD_TIMEOUT_S
    for path, sha256 in _FILES[encoding]:
        if not _is_intact(directory, path, sha256):
            content = _fetch(f"{origin}/{path}", deadline)
            if hashlib.sha256(content).hexdigest() != sha256:
                raise OSError(f"{Path(path).name} has the wrong sha256")
            _keep(_cached(directory, path), content)
    return directory


def _cached(directory: Path, path: str) -> Path:
    return directory / hashlib.sha1(f"{ORIGIN}/{path}".encode(), usedforsecurity=False).hexdigest()


def _is_intact(directory: Path, path: str, sha256: str) -> bool:
    try:
        return hashlib.sha256(_cached(directory, path).read_bytes()).hexdigest() == sha256
    except OSError:
        return False


def _fetch(address: str, deadline: float) -> bytes:
    import requests  # here: it takes a tenth of a second, and most processes never download

    content = bytearray()
    with requests.get(address, stream=True, timeout=CONNECT_TIMEOUT_S) as response:
        response.raise_for_status()
        for block in response.iter_content(65_536):
            content += block
            if len(content) > MAX_TABLE_BYTES:
                raise OSError(f"the download is larger than {MAX_TABLE_BYTES} bytes")
            if time.monotonic() > deadline:
                raise OSError(f"the download took longer than {DOWNLOAD_TIMEOUT_S:g} s")
    return bytes(content)


def _keep(target: Path, content: bytes) -> None:
    handle, draft = tempfile.mkstemp(dir=target.parent, prefix=".table-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(draft, target)  # a rename: another process must never read half a table
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
