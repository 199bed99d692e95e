"""Wrappers: providers around providers, which can be nested as needed.

    LogProvider(RetryProvider(TimeoutProvider(store, write_s=5)))

Each wrapper has exactly the capabilities of the provider it wraps.
"""

from memo.wrap.limit import LimitProvider
from memo.wrap.log import LogProvider
from memo.wrap.retry import RetryProvider
from memo.wrap.timeout import TimeoutProvider

__all__ = ["LimitProvider", "LogProvider", "RetryProvider", "TimeoutProvider"]
