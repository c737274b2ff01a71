"""Notices for the model about agents that have ended."""

from __future__ import annotations

from conductor.conversation.phrases import MAX_NOTICE_BYTES, agent_notice
from conductor.events.client import AgentCompleted


def test_a_notice_names_the_agent_and_its_outcome() -> None:
    notice = agent_notice(AgentCompleted("a1", "done", name="Otter", summary="Fixed it."))
    assert notice == ("The coding agent a1 has ended with status 'done'.\nName: Otter\nSummary: Fixed it.")


def test_each_text_about_an_agent_is_truncated_by_itself() -> None:
    notice = agent_notice(AgentCompleted("a1", "done", prompt="p" * 10_000, summary="s" * 10_000))
    task, _, summary = notice.partition("\nTask: ")[2].partition("\nSummary: ")
    for text in (task, summary):
        assert len(text) <= MAX_NOTICE_BYTES and text.endswith("bytes are missing]")
    assert task.startswith("ppp") and summary.startswith("sss")
