"""What all sessions of a server share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from conductor.conversation.lasting import LastingGrants
from conductor.conversation.sentences import FAILURES
from conductor.errors import ErrorCode
from conductor.models.base import ModelProvider
from conductor.settings import Limits
from conductor.stores.base import SessionStore
from conductor.tools.base import Toolset, ToolSpec
from conductor.tools.figures import Figures
from conductor.tools.permissions import GateOptions
from conductor.tools.redaction import Redactor
from conductor.tools.rules import Rule


@dataclass(frozen=True, slots=True)
class Services:
    """What all sessions of a server share.

    ``catalog`` is the device's tools for clients that do not declare theirs. ``failures`` are the sentences
    that a failed turn speaks, by error code; an empty mapping switches them off. ``log_content`` puts what
    was said and answered into the log. ``rules`` are the operator's. Without ``lasting_grants`` nothing can
    be allowed always.
    """

    store: SessionStore
    provider: ModelProvider
    toolsets: Sequence[Toolset]
    catalog: Sequence[ToolSpec]
    system_prompt: str
    limits: Limits = field(default_factory=Limits)
    interruption_mode: Literal["cancel", "queue"] = "cancel"
    log_content: bool = False
    failures: Mapping[ErrorCode, str] = field(default_factory=lambda: FAILURES)
    figures: Figures = field(default_factory=Figures)
    rules: Sequence[Rule] = ()
    gate_options: GateOptions = field(default_factory=GateOptions)
    redactor: Redactor = field(default_factory=lambda: Redactor(()))
    lasting_grants: LastingGrants | None = None
