"""Opening a store by its URL. The only registry of schemes; of a store it needs only the constructor.

memory://                          in this process, lost when it ends
sqlite:///memo.db                  a file, relative to the working directory
sqlite:////var/lib/memo.db         a file by its absolute path
file:///srv/memo                   a directory by its absolute path
python:package.module:factory      whatever the factory returns: a provider, an awaitable, a context manager
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import anyio.to_thread

from memo.errors import InvalidKey, MemoError, Unavailable, Unsupported
from memo.provider import capabilities_of
from memo.stores import FilesystemStore, InMemoryStore, SQLiteStore, StoreOptions

Opener = Callable[[str, StoreOptions], AbstractAsyncContextManager[Any]]

_OPENERS: dict[str, Opener] = {}
_FORMS = {
    "sqlite": "sqlite:///FILE",
    "file": "file:///DIRECTORY",
    "memory": "memory://",
    "python": "python:MODULE:FACTORY",
}


def register_scheme(scheme: str, opener: Opener) -> None:
    """Register a scheme with `open_store`. The opener gets the whole URL."""
    _OPENERS[scheme] = opener


def open_store(url: str, options: StoreOptions | None = None) -> AbstractAsyncContextManager[Any]:
    """Return a context manager that holds the store open. A URL that no store supports raises InvalidKey at once."""
    scheme, colon, _ = url.partition(":") if isinstance(url, str) else ("", "", "")
    opener = _OPENERS.get(scheme) if colon else None
    if opener is None:
        what = f"no store has the scheme {scheme}" if colon else "it is not a URL"  # never the rest: it may be a secret
        raise InvalidKey(f"cannot open this store: {what}; give {_forms()}")
    return opener(url, options or StoreOptions())


def _forms() -> str:
    forms = [_FORMS.get(scheme, f"{scheme}:…") for scheme in _OPENERS]
    return f"{', '.join(forms[:-1])} or {forms[-1]}"


def path_in(url: str, scheme: str) -> Path:
    """Return the path after `scheme:///`; a fourth slash makes it absolute."""
    prefix = f"{scheme}:///"
    path = unquote(url.removeprefix(prefix))
    if not url.startswith(prefix) or not path or "\0" in path:
        raise InvalidKey(f"cannot open this store: give {prefix}relative/path or {prefix}/absolute/path")
    return Path(path)


def _open_memory(url: str, options: StoreOptions) -> AbstractAsyncContextManager[InMemoryStore]:
    return InMemoryStore(options)


def _open_sqlite(url: str, options: StoreOptions) -> AbstractAsyncContextManager[SQLiteStore]:
    return SQLiteStore(path_in(url, "sqlite"), options)


def _open_directory(url: str, options: StoreOptions) -> AbstractAsyncContextManager[FilesystemStore]:
    path = unquote(url.removeprefix("file://")).lstrip("/")
    if not url.startswith("file:///") or not path or "\0" in path:
        raise InvalidKey("cannot open this store: give file:///DIRECTORY, with an absolute path")
    return FilesystemStore(Path("/") / path, options)


@asynccontextmanager
async def _open_python(url: str, options: StoreOptions) -> AsyncIterator[Any]:
    factory = await anyio.to_thread.run_sync(_import_factory, url)
    name = url.removeprefix("python:")
    try:
        made = factory()
        if inspect.isawaitable(made):
            made = await made
    except MemoError:
        raise
    except Exception as error:  # the factory is third-party code and may raise anything
        raise Unavailable(f"cannot open this store: {name} raised {_brief(error)}; correct the factory") from error
    if hasattr(made, "__aenter__"):
        async with made as provider:
            _check(name, provider)
            yield provider
        return
    _check(name, made)
    try:
        yield made
    finally:
        if hasattr(made, "aclose"):
            await made.aclose()


def _check(name: str, made: object) -> None:
    try:
        capabilities_of(made)
    except Unsupported:
        kind = type(made).__name__
        raise Unsupported(
            f"cannot use what {name} returns: a {kind} has no read_memory_document; return a provider, "
            "which has at least this method"
        ) from None


def _import_factory(url: str) -> Callable[[], Any]:
    module, _, name = url.removeprefix("python:").partition(":")
    if not module or not name:
        raise InvalidKey("cannot open this store: it does not name a factory; give python:MODULE:FACTORY")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise Unavailable(f"cannot open this store: {module} needs {_brief(error)}; install it") from error
        raise Unavailable(
            f"cannot open this store: there is no module {error.name}; install it, put its directory on PYTHONPATH, "
            "or correct the name"
        ) from error
    except Exception as error:  # importing third-party code may raise anything
        raise Unavailable(f"cannot open this store: {module} raised {_brief(error)}; correct the module") from error
    factory = getattr(found, name, None)
    if not callable(factory):
        functions = [one for one in vars(found) if callable(getattr(found, one)) and not one.startswith("_")]
        near = difflib.get_close_matches(name, functions, 1)
        raise InvalidKey(
            f"cannot open this store: {module} has no function {name}; "
            + (f"did you mean {near[0]}?" if near else "name one that returns a provider")
        )
    return factory  # type: ignore[no-any-return]  # any callable without parameters; what it returns is checked


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


register_scheme("sqlite", _open_sqlite)
register_scheme("file", _open_directory)
register_scheme("memory", _open_memory)
register_scheme("python", _open_python)
