"""Engines, which launch, watch and remove hardened containers."""
