"""Logging: one line per event on stderr, coloured for a person and JSON for a machine. Stdout is for answers."""

from __future__ import annotations

import logging
import sys

import structlog


def configure(level: str) -> None:
    is_terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer() if is_terminal else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    memo = logging.getLogger("memo")
    memo.handlers = [_Forward()]
    memo.setLevel(level.upper())
    memo.propagate = False


class _Forward(logging.Handler):
    """What the library `memo` says, in the same form as everything else. It uses the standard logging, as a library."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger(record.name).log(record.levelno, record.getMessage())
