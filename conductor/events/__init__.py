"""The events of the wire with their codec, schemas and reference, all without I/O."""
