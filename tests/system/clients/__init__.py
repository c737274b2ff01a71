"""Clients that others wrote, each made to hold the same conversation."""
