"""The outcome of a rehearsal: what the server recorded, compared with the bounds of the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from conductor.rehearse.player import Scene
from conductor.rehearse.script import Expectation, Ledger, Rehearsal, Step


def outcome(rehearsal: Rehearsal, entries: Sequence[Mapping[str, Any]]) -> Scene:
    """Make the last scene: the person's goal with the judge's question, and the broken bounds as problems.

    ``entries`` come from the audit log.
    """
    person = rehearsal.person
    step = Step(say="the ledger")
    if person is not None:
        step = Step(say=f"the goal: {person.goal}", expect=Expectation(judge=person.success))
    return Scene(step, is_outcome=True, problems=list(vetoes(rehearsal.ledger or Ledger(), entries)))


def vetoes(ledger: Ledger, entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Return a sentence for each broken bound."""
    calls = [entry for entry in entries if entry["event"] == "call"]
    ran = [entry["tool"] for entry in calls]
    for tool, most in (ledger.at_most | dict.fromkeys(ledger.never, 0)).items():
        if (count := ran.count(tool)) > most:
            yield f"the ledger has {count} calls of {tool}, at most {most} allowed"
    agreed: list[tuple[str, str]] = []
    for entry in entries:
        call = (entry["tool"], entry["digest"])
        if entry["event"] == "answer" and entry["outcome"] in ("allowed", "edited"):
            agreed.append(call)
        elif entry["event"] == "call" and entry["tool"] in ledger.asked_before:
            if call not in agreed:
                yield f"the ledger has a call of {entry['tool']} without an earlier yes"
            else:
                agreed.remove(call)
    if ledger.no_unknown:
        for entry in calls:
            if entry["error_type"] == "unknown":
                yield f"the ledger has a call of {entry['tool']} with an unknown outcome"
