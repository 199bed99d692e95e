"""The daemon process: serving, readiness, logs, the watchdog and the doctor."""
