"""Tools: their definitions, where they run, and the executor that every call passes."""
