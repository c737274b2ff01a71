"""The commands beside serving and talking: they read the project and its settings, and report."""
