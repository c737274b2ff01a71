"""The names that the author of a plugin needs; docs/plugins.md shows their use.

What is not here may change with any version.
"""

from conductor.errors import (
    Conflict,
    Fenced,
    ModelError,
    ModelFailure,
    Rollback,
    SettingsError,
    StoreUnavailable,
)
from conductor.messages import AssistantMessage, Note, ToolCall, ToolResult, UserMessage
from conductor.models.base import (
    Finished,
    ModelEvent,
    ModelProvider,
    ModelRequest,
    TextDelta,
    ToolDefinition,
    Usage,
)
from conductor.models.failures import failure
from conductor.models.profiles import ModelProfile
from conductor.server.auth import Authenticator, Handshake, Principal, person_id
from conductor.settings import Settings, environment_value
from conductor.stores.base import (
    NO_ATTACHMENTS,
    Attachments,
    Claim,
    Meta,
    SessionKey,
    SessionLog,
    Stored,
    StoreOptions,
    new_token,
    retry,
    settle,
    sweep_regularly,
    too_many,
)
from conductor.tools import ToolError, tool
from conductor.tools.base import CallContext, Toolset, ToolSpec
from conductor.tools.judge import Answer, AnswerKind, ApprovalJudge
from conductor.tools.outcomes import Caution, NotStarted, ToolOutcome, failed, succeeded

__all__ = [
    "NO_ATTACHMENTS",
    "Answer",
    "AnswerKind",
    "ApprovalJudge",
    "AssistantMessage",
    "Attachments",
    "Authenticator",
    "CallContext",
    "Caution",
    "Claim",
    "Conflict",
    "Fenced",
    "Finished",
    "Handshake",
    "Meta",
    "ModelError",
    "ModelEvent",
    "ModelFailure",
    "ModelProfile",
    "ModelProvider",
    "ModelRequest",
    "NotStarted",
    "Note",
    "Principal",
    "Rollback",
    "SessionKey",
    "SessionLog",
    "Settings",
    "SettingsError",
    "StoreOptions",
    "StoreUnavailable",
    "Stored",
    "TextDelta",
    "ToolCall",
    "ToolDefinition",
    "ToolError",
    "ToolOutcome",
    "ToolResult",
    "ToolSpec",
    "Toolset",
    "Usage",
    "UserMessage",
    "environment_value",
    "failed",
    "failure",
    "new_token",
    "person_id",
    "retry",
    "settle",
    "succeeded",
    "sweep_regularly",
    "tool",
    "too_many",
]
