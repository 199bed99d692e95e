"""The daemon's metrics, as Prometheus text.

Owns its own registry. Labels are kinds, states and error codes from small fixed sets; never an id, a path or a command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 600, 3600)


@dataclass(frozen=True, slots=True)
class HistoryFigures:
    """Counts of the log of events and of the traces since the daemon started, except `kept`."""

    kept: int = 0
    dropped: int = 0
    traced: int = 0
    untraced: Mapping[str, int] = field(default_factory=dict)
    """Events that are in no trace, by the reason why they were given up."""


@dataclass(slots=True)
class PoolFigures:
    """Counts of the pool since the daemon started; `ready` and `target` are how many it has and wants now."""

    ready: int = 0
    target: int = 0
    hits: int = 0
    misses: int = 0
    refills: int = 0
    refill_seconds: float = 0.0


class Metrics:
    """`states` returns the number of sandboxes by state, `dropped` the number of events that readers missed, and
    `tasks` the number of running tasks."""

    def __init__(
        self,
        *,
        states: Callable[[], Mapping[str, int]],
        dropped: Callable[[], int],
        pool: Callable[[], PoolFigures] = PoolFigures,
        outbox: Callable[[], Mapping[str, int]] = dict,
        egress: Callable[[], Mapping[str, int]] = dict,
        history: Callable[[], HistoryFigures] = HistoryFigures,
        tasks: Callable[[], int] = int,
    ) -> None:
        self._registry = CollectorRegistry()
        self._calls = Counter("sandboxd_calls", "Calls answered.", ("kind", "outcome"), registry=self._registry)
        self._seconds = Histogram(
            "sandboxd_call_seconds", "Time to answer a call.", ("kind",), registry=self._registry, buckets=_BUCKETS
        )
        self._consolidation = _Consolidation(self._registry)
        self._registry.register(_Observed(states, dropped, tasks))
        self._registry.register(_ObservedPool(pool))
        self._registry.register(_ObservedOutbox(outbox))
        self._registry.register(_ObservedEgress(egress))
        self._registry.register(_ObservedHistory(history))
        ProcessCollector(registry=self._registry)
        self._counters: dict[tuple[str, str], Counter] = {}
        self._histograms: dict[str, Histogram] = {}

    def record(self, kind: str, outcome: str, seconds: float) -> None:
        """Count one call. Labelled children are cached, because looking them up costs more than counting."""
        counter = self._counters.get((kind, outcome))
        if counter is None:
            counter = self._counters[kind, outcome] = self._calls.labels(kind, outcome)
        counter.inc()
        histogram = self._histograms.get(kind)
        if histogram is None:
            histogram = self._histograms[kind] = self._seconds.labels(kind)
        histogram.observe(seconds)

    def record_consolidation(self, outcome: str, seconds: float, calls: int, tokens: int) -> None:
        """Count one user's run: its outcome and what its summariser used."""
        self._consolidation.runs.labels(outcome).inc()
        self._consolidation.seconds.observe(seconds)
        self._consolidation.calls.inc(calls)
        self._consolidation.tokens.inc(tokens)

    def note_due(self, users: int) -> None:
        """Record how many users the last scan found due."""
        self._consolidation.due.set(users)

    def render(self) -> bytes:
        return generate_latest(self._registry)


class _Consolidation:
    """Metrics of consolidation."""

    def __init__(self, registry: CollectorRegistry) -> None:
        name = "sandboxd_consolidation"
        self.runs = Counter(f"{name}_runs", "Runs by outcome.", ("outcome",), registry=registry)
        self.seconds = Histogram(f"{name}_seconds", "Time of a run.", registry=registry, buckets=_BUCKETS)
        self.calls = Counter(f"{name}_calls", "Calls to summarisers.", registry=registry)
        self.tokens = Counter(f"{name}_tokens", "Tokens that summarisers used, in and out.", registry=registry)
        self.due = Gauge(f"{name}_due_users", "Users that the last scan found due.", registry=registry)


class _Observed(Collector):
    """Values read from their owners at scrape time instead of being kept twice."""

    def __init__(
        self, states: Callable[[], Mapping[str, int]], dropped: Callable[[], int], tasks: Callable[[], int]
    ) -> None:
        self._states = states
        self._dropped = dropped
        self._tasks = tasks

    def collect(self) -> Iterator[Metric]:
        sandboxes = GaugeMetricFamily("sandboxd_sandboxes", "Sandboxes by state.", labels=("state",))
        for state, count in self._states().items():
            sandboxes.add_metric((state,), count)
        yield sandboxes
        yield CounterMetricFamily("sandboxd_events_dropped", "Events that readers missed.", value=self._dropped())
        yield GaugeMetricFamily("sandboxd_tasks", "Tasks of the event loop.", value=self._tasks())

    def describe(self) -> Iterator[Metric]:
        """Describe nothing, so that registering does not query the manager before it is ready."""
        return iter(())


class _ObservedPool(Collector):
    def __init__(self, pool: Callable[[], PoolFigures]) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        figures = self._pool()
        yield GaugeMetricFamily("sandboxd_pool_ready", "Warm sandboxes that can be claimed.", value=figures.ready)
        yield CounterMetricFamily("sandboxd_pool_hits", "Sandboxes that came from the pool.", value=figures.hits)
        yield CounterMetricFamily(
            "sandboxd_pool_misses", "Sandboxes that the pool could not provide.", value=figures.misses
        )
        refills = SummaryMetricFamily("sandboxd_pool_refill_seconds", "Time to make a warm sandbox.")
        refills.add_metric((), count_value=figures.refills, sum_value=figures.refill_seconds)
        yield refills

    def describe(self) -> Iterator[Metric]:
        return iter(())


class _ObservedOutbox(Collector):
    def __init__(self, outbox: Callable[[], Mapping[str, int]]) -> None:
        self._outbox = outbox

    def collect(self) -> Iterator[Metric]:
        writes = GaugeMetricFamily("sandboxd_outbox_writes", "Queued writes to memory, by state.", labels=("state",))
        for state, count in self._outbox().items():
            writes.add_metric((state,), count)
        yield writes

    def describe(self) -> Iterator[Metric]:
        return iter(())


class _ObservedEgress(Collector):
    def __init__(self, egress: Callable[[], Mapping[str, int]]) -> None:
        self._egress = egress

    def collect(self) -> Iterator[Metric]:
        connections = CounterMetricFamily(
            "sandboxd_egress_connections", "Connections of sandboxes, by decision.", labels=("decision",)
        )
        for decision, count in self._egress().items():
            connections.add_metric((decision,), count)
        yield connections

    def describe(self) -> Iterator[Metric]:
        return iter(())


class _ObservedHistory(Collector):
    def __init__(self, history: Callable[[], HistoryFigures]) -> None:
        self._history = history

    def collect(self) -> Iterator[Metric]:
        figures = self._history()
        yield GaugeMetricFamily("sandboxd_history_events", "Events in the log.", value=figures.kept)
        yield CounterMetricFamily(
            "sandboxd_history_dropped", "Events that the log could not keep.", value=figures.dropped
        )
        yield CounterMetricFamily("sandboxd_traces_written", "Events added to traces.", value=figures.traced)
        dropped = CounterMetricFamily(
            "sandboxd_traces_dropped", "Events that are in no trace, by reason.", labels=("reason",)
        )
        for reason, count in figures.untraced.items():
            dropped.add_metric((reason,), count)
        yield dropped

    def describe(self) -> Iterator[Metric]:
        return iter(())
