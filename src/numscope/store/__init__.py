"""The run directory: schema, writer, reader, tensor shards; formats/ reads and writes other tools' dumps."""
