"""Benchmarks of sandboxd and its alternatives, interleaved in one run."""
