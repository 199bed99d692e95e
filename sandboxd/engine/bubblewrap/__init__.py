"""Containers through bubblewrap: the embedded engine, for hosts where no container engine answers."""

from sandboxd.engine.bubblewrap.engine import BubblewrapEngine

__all__ = ["BubblewrapEngine"]
