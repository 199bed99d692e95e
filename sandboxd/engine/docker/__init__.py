"""Containers through the Docker API: Docker itself, or Podman's compatible socket."""

from sandboxd.engine.address import find_socket
from sandboxd.engine.docker.engine import DockerEngine

__all__ = ["DockerEngine", "find_socket"]
