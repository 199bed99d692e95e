"""The wire nouns: one pydantic model each, for the API, the clients, the command line and OpenAPI.

A module is named for its noun and imported by name, so that a command loads only what it needs. A new field is added
to its model and set where the value is made; nothing else lists the fields.
"""
