"""How far a client has come: the last event that was handled with all that came before it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Place:
    counts: bool
    ended: bool = False


class Handled:
    """Events in the order in which they came; some are still being handled when later ones have been.

    ``last`` is the id of the newest one with nothing unfinished before it.
    """

    def __init__(self) -> None:
        self.last: str | None = None
        self._places: dict[str, _Place] = {}

    def begin(self, event_id: str, *, counts: bool = True) -> None:
        """Note that an event is being handled; one that does not count never becomes the last."""
        self._places[event_id] = _Place(counts)

    def end(self, event_id: str) -> None:
        """Note that it has been."""
        self._places[event_id].ended = True
        for first, place in list(self._places.items()):
            if not place.ended:
                return
            del self._places[first]
            if place.counts:
                self.last = first
