"""What the daemon counts, as Prometheus text.

Owns one registry of its own. Labels hold kinds, states and error codes, all of them from small fixed sets;
never an id, a path or a command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 600, 3600)


class Metrics:
    """`states` tells how many sandboxes are in which state; `dropped` how many events were lost to readers."""

    def __init__(self, *, states: Callable[[], Mapping[str, int]], dropped: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        self._calls = Counter("sandboxd_calls", "Calls answered.", ("kind", "outcome"), registry=self._registry)
        self._seconds = Histogram(
            "sandboxd_call_seconds", "Time to answer a call.", ("kind",), registry=self._registry, buckets=_BUCKETS
        )
        self._registry.register(_Observed(states, dropped))
        ProcessCollector(registry=self._registry)
        self._counters: dict[tuple[str, str], Counter] = {}
        self._histograms: dict[str, Histogram] = {}

    def record(self, kind: str, outcome: str, seconds: float) -> None:
        """Count one call. Children are kept here because looking them up by label costs more than counting."""
        counter = self._counters.get((kind, outcome))
        if counter is None:
            counter = self._counters[kind, outcome] = self._calls.labels(kind, outcome)
        counter.inc()
        histogram = self._histograms.get(kind)
        if histogram is None:
            histogram = self._histograms[kind] = self._seconds.labels(kind)
        histogram.observe(seconds)

    def render(self) -> bytes:
        return generate_latest(self._registry)


class _Observed(Collector):
    """Figures that are read when asked for instead of being kept twice."""

    def __init__(self, states: Callable[[], Mapping[str, int]], dropped: Callable[[], int]) -> None:
        self._states = states
        self._dropped = dropped

    def collect(self) -> Iterator[Metric]:
        sandboxes = GaugeMetricFamily("sandboxd_sandboxes", "Sandboxes by state.", labels=("state",))
        for state, count in self._states().items():
            sandboxes.add_metric((state,), count)
        yield sandboxes
        yield CounterMetricFamily("sandboxd_events_dropped", "Events lost to readers.", value=self._dropped())

    def describe(self) -> Iterator[Metric]:
        """Nothing is described, so that registering does not ask the manager before it is ready."""
        return iter(())
