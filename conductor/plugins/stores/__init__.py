"""Stores that several processes share."""
