"""What a payload must fulfil that no field of it can say alone, as JSON Schema beside the structs' own.

The structs check the same when they are made (`conductor.events.client`, ``__post_init__``).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_ARGUMENTS = {"editedArguments": {"type": "object"}}
_NO_ARGUMENTS = {"editedArguments": {"type": "null"}}
_EDITS = [
    {
        "if": {"properties": {"decision": {"const": "edit"}}, "required": ["decision"]},
        "then": {"properties": _ARGUMENTS, "required": ["editedArguments"]},
    },
    {
        "if": {"properties": {"decision": {"const": "allow"}}, "required": ["decision"]},
        "then": {"properties": _NO_ARGUMENTS},
    },
]
_ONE = ("approvalId", "argumentsDigest", "decision")

CONDITIONS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "Decision": {"allOf": _EDITS},
        "ApprovalResponse": {
            "allOf": _EDITS,
            # Null is as good as left out, so `required` alone would say too little and too much.
            "oneOf": [
                {
                    "title": "one decision",
                    "properties": {"decisions": {"type": "null"}}
                    | {name: {"type": "string"} for name in _ONE},
                    "required": list(_ONE),
                },
                {
                    "title": "several decisions",
                    "properties": {"decisions": {"type": "array"}}
                    | {name: {"type": "null"} for name in _ONE},
                    "required": ["decisions"],
                },
            ],
        },
    }
)
"""Name of a struct -> keywords that are added to its schema."""
