"""Opening a store by its URL. The one registry of schemes; it knows no store beyond how to make one.

memory://                          in this process, for as long as it lives
sqlite:///memo.db                  a file, relative to the working directory
sqlite:////var/lib/memo.db         a file by its absolute path
file:///srv/memo                   a directory by its absolute path
python:package.module:factory      whatever the factory returns: a provider, an awaitable, a context manager
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import anyio.to_thread

from memo.errors import InvalidKey, Unavailable
from memo.provider import capabilities_of
from memo.stores import FilesystemStore, InMemoryStore, SQLiteStore, StoreOptions

Opener = Callable[[str, StoreOptions], AbstractAsyncContextManager[Any]]

_OPENERS: dict[str, Opener] = {}


def register_scheme(scheme: str, opener: Opener) -> None:
    """Teach `open_store` a scheme. The opener gets the whole URL."""
    _OPENERS[scheme] = opener


def open_store(url: str, options: StoreOptions | None = None) -> AbstractAsyncContextManager[Any]:
    """Return a context manager that holds the store open. A URL nobody understands raises InvalidKey now."""
    scheme = url.partition(":")[0] if isinstance(url, str) else ""
    opener = _OPENERS.get(scheme)
    if opener is None:
        raise InvalidKey(f"cannot open this store: its URL must begin with one of {', '.join(sorted(_OPENERS))}")
    return opener(url, options or StoreOptions())


def path_in(url: str, scheme: str) -> Path:
    """Return the path after `scheme:///`; a fourth slash makes it absolute."""
    prefix = f"{scheme}:///"
    path = unquote(url.removeprefix(prefix))
    if not url.startswith(prefix) or not path or "\0" in path:
        raise InvalidKey(f"cannot open this store: expected {prefix}relative/path or {prefix}/absolute/path")
    return Path(path)


def _open_memory(url: str, options: StoreOptions) -> AbstractAsyncContextManager[InMemoryStore]:
    return InMemoryStore(options)


def _open_sqlite(url: str, options: StoreOptions) -> AbstractAsyncContextManager[SQLiteStore]:
    return SQLiteStore(path_in(url, "sqlite"), options)


def _open_directory(url: str, options: StoreOptions) -> AbstractAsyncContextManager[FilesystemStore]:
    path = unquote(url.removeprefix("file://")).lstrip("/")
    if not url.startswith("file:///") or not path or "\0" in path:
        raise InvalidKey("cannot open this store: expected file:///absolute/path")
    return FilesystemStore(Path("/") / path, options)


@asynccontextmanager
async def _open_python(url: str, options: StoreOptions) -> AsyncIterator[Any]:
    made = (await anyio.to_thread.run_sync(_import_factory, url))()
    if inspect.isawaitable(made):
        made = await made
    if hasattr(made, "__aenter__"):
        async with made as provider:
            capabilities_of(provider)
            yield provider
        return
    capabilities_of(made)
    try:
        yield made
    finally:
        if hasattr(made, "aclose"):
            await made.aclose()


def _import_factory(url: str) -> Callable[[], Any]:
    module, _, name = url.removeprefix("python:").partition(":")
    try:
        factory = getattr(importlib.import_module(module), name, None)
    except (ImportError, ValueError) as error:
        raise Unavailable(f"cannot open this store: cannot import {module}: {error}") from error
    if not callable(factory):
        raise InvalidKey(f"cannot open this store: {module} has no factory {name}")
    return factory  # type: ignore[no-any-return]  # any callable without parameters; what it returns is checked


register_scheme("memory", _open_memory)
register_scheme("file", _open_directory)
register_scheme("sqlite", _open_sqlite)
register_scheme("python", _open_python)
