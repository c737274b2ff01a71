"""What a turn needs of its session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from conductor.conversation.batch import Batch
from conductor.conversation.partials import Reply
from conductor.conversation.round import Round
from conductor.events.server import ServerEvent
from conductor.messages import AssistantMessage, Message
from conductor.models.base import ModelProvider
from conductor.settings import Limits
from conductor.stores.base import CallRecord, Operation
from conductor.tools.base import CallContext, ToolOutcome, ToolSpec
from conductor.tools.executor import Asked, Ready, ToolExecutor
from conductor.tools.permissions import Verdict

if TYPE_CHECKING:
    from conductor.conversation.turn import Turn


class TurnHost(Protocol):
    """What a turn needs of its session."""

    limits: Limits
    provider: ModelProvider

    @property
    def executor(self) -> ToolExecutor:
        """The session's tools."""
        ...

    @property
    def messages(self) -> Sequence[Message]:
        """The history, its last message being what is to be answered."""
        ...

    @property
    def system_prompt(self) -> str:
        """The prompt for this session."""
        ...

    async def commit(self, operations: Sequence[Operation], events: Sequence[ServerEvent] = ()) -> None:
        """Record the operations, then send the events. Raises `StoreError`."""
        ...

    async def note_attempt(self) -> None:
        """Record that the model is about to be run anew. Raises `StoreError`."""
        ...

    def permit(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> Verdict:
        """Decide about a call with validated arguments."""
        ...

    async def ask(self, turn_id: str, asked: Sequence[Asked]) -> Batch:
        """Ask a person about calls. Raises `StoreError`."""
        ...

    async def withdraw_questions(self) -> tuple[list[Operation], list[ServerEvent]]:
        """Close the questions that stand; gives what is to be committed and sent for that."""
        ...

    def begins(self, ready: Ready) -> None:
        """Note that a call is run."""
        ...

    def ends(self, ready: Ready, outcome: ToolOutcome) -> None:
        """Note what came of a call that was run."""
        ...

    async def say(self, turn: Turn, message: AssistantMessage, prepared: Round | None = None) -> None:
        """Commit and send a message of the assistant; without a round of calls it is the turn's last."""
        ...

    def show(self, reply: Reply) -> None:
        """Show the live text of a reply."""
        ...

    def hush(self) -> None:
        """Stop showing it."""
        ...

    def expect(self, call_id: str) -> None:
        """Make ready for the device's answer to a call."""
        ...

    def forget(self, call_id: str) -> None:
        """Expect no answer any more."""
        ...

    def record(self, call_id: str) -> CallRecord | None:
        """Look a call up: what was recorded of it decides."""
        ...

    def withdraw(self, call_id: str) -> bool:
        """Take a call back that no socket has had; False if one has, or the call is not the device's."""
        ...

    def new_call_id(self) -> str:
        """Make an id for a call."""
        ...

    def context(self, call_id: str) -> CallContext:
        """Say what a tool may know of the session."""
        ...
