"""The inspector: what its page shows, read from the store, the manager and the events. It changes nothing."""
