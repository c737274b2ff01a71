"""The words of the conversation that every client holds."""

QUESTION = 'Wie läuft "a-5" — 進捗は? 🎉'
RESULT_LENGTH = 35_000
"""Of two bytes each, so that the frame has the long form of length, and is above the soft limit."""
