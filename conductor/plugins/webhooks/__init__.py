"""Webhooks for the app's backend."""
