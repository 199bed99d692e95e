"""The history of the daemon's events: kept durably, searched, and added to the traces of sessions."""

from sandboxd.history.event_filter import EventFilter
from sandboxd.history.event_history import EventHistory
from sandboxd.history.trace_recorder import SOURCE, SessionOwner

__all__ = ["SOURCE", "EventFilter", "EventHistory", "SessionOwner"]
