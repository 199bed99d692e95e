"""The check that an adapter's framework is installed: one sentence that names the extra to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs_extra(extra: str, *, install: str | None = None) -> Iterator[None]:
    """Wrap the imports of a framework; raise an ImportError that says how to install it, as an extra or otherwise."""
    try:
        yield
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and "." not in (error.name or ".")
        why = f"{error.name} is not installed" if missing else f"its installed version does not fit ({error})"
        wanted = install or f'"sandboxd[{extra}]"'
        raise ImportError(
            f"cannot use the {extra} integration: {why}; install it with `pip install {wanted}`",
            name=error.name,
        ) from error
