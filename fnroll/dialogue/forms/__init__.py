"""What Python types are in JSON: the schema that a model reads, and how values are read."""
