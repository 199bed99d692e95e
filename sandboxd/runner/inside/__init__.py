"""What runs inside the container: standard library only, Python 3.9 and later, no import from outside this package.

The whole directory is mounted read-only at /run/sandboxd-runner; `server.py` is PID 1.
"""
