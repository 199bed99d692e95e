"""How fast it is, measured beside what people would use instead, in one run."""
