"""Where settings come from besides options: `SANDBOXD_…` variables and TOML files, with every name checked.

A name that is not a setting is refused, with the nearest valid name, and so is a file that cannot be read. `Settings`
validates the values.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsError, TomlConfigSettingsSource

from sandboxd.errors import InvalidRequest
from sandboxd.places import home_directory

PREFIX = "SANDBOXD_"
OTHER_VARIABLES = frozenset(
    {
        "SANDBOXD_TENANT",  # for clients: the tenant; SANDBOXD_SOCKET, also for clients, is a setting too
        "SANDBOXD_URL",  # for clients: the address of a daemon on TCP
        "SANDBOXD_TOKEN",  # for clients: the token of that daemon
        "SANDBOXD_CALL",  # set by the runner inside a sandbox
        "SANDBOXD_RUNNER_SECRET",  # set by the daemon for the runner
    }
)
"""Variables with the prefix that are not settings of the daemon."""
OTHER_PREFIXES = ("SANDBOXD_TEST_",)
_LIST = "`sandboxd serve --help` lists the settings"


class Environment(EnvSettingsSource):
    """`SANDBOXD_POOL`, `SANDBOXD_LIMITS__MEMORY_MB`."""

    def __call__(self) -> dict[str, Any]:
        names = setting_names(self.settings_cls)
        for variable in sorted(os.environ):
            if not variable.upper().startswith(PREFIX) or _is_other(variable):
                continue
            name = variable.upper().removeprefix(PREFIX).lower().replace("__", ".")
            if name not in names:
                step = _suggestion(name, names, lambda found: PREFIX + found.replace(".", "__").upper())
                raise InvalidRequest(f"cannot use {variable}: there is no such setting; {step}")
        try:
            return super().__call__()
        except SettingsError as error:  # raised for a table whose variable is not JSON
            found = re.search(r'field "(\w+)"', str(error))
            variable = PREFIX + (found[1].upper() if found else "…")
            raise InvalidRequest(
                f"cannot use {variable}: it must be a JSON object; or set {variable}__NAME for each name in it"
            ) from None


class SettingsFiles(TomlConfigSettingsSource):
    """`pool = 3`, or a table: `[limits]`, `memory_mb = 256`."""

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        self.settings_cls = settings_cls  # the files are read before the base class sets it
        try:
            super().__init__(settings_cls, toml_file=settings_files())
        except OSError as error:
            raise InvalidRequest(
                f"cannot look for a settings file: {error.filename}: {error.strerror}; name one with SANDBOXD_CONFIG"
            ) from None

    def _read_file(self, file_path: Any) -> dict[str, Any]:
        found = read_file(Path(file_path))
        for name in _unknown(found, self.settings_cls):
            step = _suggestion(name, setting_names(self.settings_cls), str)
            raise InvalidRequest(f"cannot use {name} in {file_path}: there is no such setting; {step}")
        return found


def settings_files() -> list[Path]:
    """Return the settings files to read; a later file overrides an earlier one."""
    if named := os.environ.get("SANDBOXD_CONFIG"):
        if not Path(named).expanduser().is_file():
            raise InvalidRequest(
                f"cannot read the settings file {named}: the file does not exist; correct SANDBOXD_CONFIG or unset it"
            )
        return [Path(named)]
    home = home_directory()
    config_home = os.environ.get("XDG_CONFIG_HOME") or (home / ".config" if home else None)
    of_user = [Path(config_home) / "sandboxd" / "sandboxd.toml"] if config_home else []
    return [Path("/etc/sandboxd/sandboxd.toml"), *of_user, Path("sandboxd.toml")]


def read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(
            f"cannot read the settings file {path}: {error.strerror}; make it readable for this user"
        ) from None
    except ValueError as error:  # not TOML, or not UTF-8
        reason = str(error)[:1].lower() + str(error)[1:]
        raise InvalidRequest(f"cannot read the settings file {path}: {reason}; correct that line") from None


def setting_names(model: type[BaseModel]) -> set[str]:
    """Return the name of every setting; those in a table as `table.name`."""
    names = set()
    for name, field in model.model_fields.items():
        names.add(name)
        if (table := _table(field.annotation)) is not None:
            names |= {f"{name}.{inner}" for inner in setting_names(table)}
    return names


def describe(error: ErrorDetails, options: Mapping[str, Any]) -> str:
    """Return one sentence on an invalid value that names its option, variable or file."""
    message = error["msg"].removeprefix("Value error, ").partition(", unable to parse")[0]
    message = "it must be a table of settings" if error["type"] == "model_type" else message
    message = message.replace("Input should be", "it must be", 1)
    if not error["loc"] or message.startswith("cannot "):
        return message
    name = ".".join(map(str, error["loc"]))
    return f"cannot use {_origin(name, options)}: {message[:1].lower()}{message[1:]}"


def _origin(name: str, options: Mapping[str, Any]) -> str:
    """Return the option, variable or file that this value came from."""
    top = name.partition(".")[0]
    if top in options:
        return f"--{top.replace('_', '-')} {options[top]}"
    variables = {variable.upper(): variable for variable in os.environ}
    while True:
        variable = PREFIX + name.replace(".", "__").upper()
        if variable in variables:
            return f"{variable}={os.environ[variables[variable]]!r}"
        for path in reversed(settings_files()):
            if path.is_file() and _holds(read_file(path), name):
                return f"{name} in {path}"
        if "." not in name:
            return name
        name = name.rpartition(".")[0]  # a value inside a list or JSON object: look for the enclosing setting


def _unknown(values: Mapping[str, Any], model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the name of every value that is not a setting."""
    for key, value in values.items():
        field = model.model_fields.get(key)
        if field is None:
            yield prefix + key
        elif (table := _table(field.annotation)) is not None and isinstance(value, Mapping):
            yield from _unknown(value, table, f"{prefix}{key}.")


def _holds(values: Any, name: str) -> bool:
    for part in name.split("."):
        if not isinstance(values, Mapping) or part not in values:
            return False
        values = values[part]
    return True


def _table(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _is_other(variable: str) -> bool:
    return variable.upper() in OTHER_VARIABLES or variable.upper().startswith(OTHER_PREFIXES)


def _suggestion(name: str, names: set[str], spell: Callable[[str], str]) -> str:
    """Return the advice for a name that is not a setting: the nearest valid name, if one is close."""
    table, _, last = name.lower().rpartition(".")
    if table in names:  # only the last part is wrong; with the table's name all of its settings would look close
        inside = {known.rpartition(".")[2]: known for known in names if known.startswith(f"{table}.")}
        near = [inside[found] for found in difflib.get_close_matches(last, inside, 1)] if inside else [table]
    else:
        elsewhere = [known for known in sorted(names) if known.endswith(f".{last}")]
        near = elsewhere or difflib.get_close_matches(name.lower(), sorted(names), 1)
    return f"did you mean {spell(near[0])}?" if near else _LIST
