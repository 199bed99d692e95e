"""Containers through the Docker API: Docker itself, or Podman's compatible socket."""

from sandboxd.engine.docker.engine import DockerEngine, find_socket

__all__ = ["DockerEngine", "find_socket"]
