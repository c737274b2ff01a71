"""The bytes of a session's images: held until they are recorded, and while a turn shows them to the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from conductor.conversation import records as r
from conductor.conversation.state import Conversation
from conductor.images import Taken
from conductor.messages import Illustrated, Message
from conductor.stores.base import Attachments, SessionKey, SessionLog


class Images:
    """The images of one session. At rest this process holds none of them: the store has them."""

    def __init__(self, store: SessionLog, key: SessionKey, state: Conversation) -> None:
        self._store = store
        self._key = key
        self._state = state
        self._unrecorded: dict[str, bytes] = {}
        self._shown: dict[str, bytes] = {}

    @contextmanager
    def holding(self, taken: Taken) -> Iterator[None]:
        """Hold the bytes of images while a commit records them."""
        self._unrecorded.update(taken.pictures)
        try:
            yield
        finally:
            for image_id, data in taken.pictures:
                self._unrecorded.pop(image_id, None)
                if image_id in self._state.images and self._state.turn is not None:
                    self._shown[image_id] = data

    def attachments(self, records: Sequence[r.Record], *, again: bool = False) -> Attachments:
        """Return what a commit of ``records`` stores and drops.

        ``again``: the store has lost commits, so that it also gets what this process still has.
        """
        new = {image.id for image in r.images(records)}
        put = {key: data for key, data in self._unrecorded.items() if key in new}
        if again:
            put |= {key: data for key, data in self._shown.items() if key in self._state.images}
        return Attachments(put, self._state.dropped_images)

    async def read(self, messages: Iterable[Message]) -> Mapping[str, bytes]:
        """Read the images of messages that are still kept. Raises `StoreError`."""
        wanted = [
            image.id
            for message in messages
            if isinstance(message, Illustrated)
            for image in message.images
            if image.id in self._state.images
        ]
        if missing := [image_id for image_id in wanted if image_id not in self._shown]:
            self._shown |= await self._store.read_attachments(self._key, missing)
        return {image_id: self._shown[image_id] for image_id in wanted if image_id in self._shown}

    def rest(self) -> None:
        """Let go of the images that no running turn shows."""
        kept = self._state.images if self._state.turn is not None else {}
        self._shown = {image_id: data for image_id, data in self._shown.items() if image_id in kept}
