"""Prices of a million tokens by model, in US dollars, at the services' own addresses; data only.

Read on 24 November 2026 in stored copies of the pages of the models at platform.claude.com and
developers.openai.com. Claude Haiku's are those of prompts of up to 100,000 tokens, OpenAI's those of up to
272,000: longer ones cost more, and a history takes at most 60,000. Cache writes are those of the shortest
lifetime.
"""

from __future__ import annotations

PRICES: dict[str, dict[str, float]] = {
    "claude-haiku-5-5": {"input": 0.10, "output": 0.50, "cache_read": 0.01, "cache_write": 0.125},
    "claude-sonnet-5-5": {"input": 2.00, "output": 10.00, "cache_read": 0.10, "cache_write": 2.50},
    "claude-opus-5-5": {"input": 4.00, "output": 20.00, "cache_read": 0.20, "cache_write": 5.00},
    "gpt-6-luna": {"input": 0.10, "output": 0.50, "cache_read": 0.01, "cache_write": 0.125},
    "gpt-6.1-terra": {"input": 1.00, "output": 5.00, "cache_read": 0.05, "cache_write": 1.25},
    "gpt-6.2-sol": {"input": 2.00, "output": 10.00, "cache_read": 0.10, "cache_write": 2.50},
}
