"""The code that runs inside the container: standard library only, Python 3.9 and later, no imports from outside.

The whole directory is mounted read-only at /run/sandboxd-runner; `server.py` is PID 1.
"""
