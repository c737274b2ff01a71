"""What the demo model understands of one utterance: text to wishes, with no knowledge of history or tools."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from conductor.models.demo_agents import (
    AN_AGENT,
    MAX_UNDERSTOOD,
    THE_AGENT,
    Wish,
    agent_meant,
    agent_wanted,
    repository_of,
)
from conductor.models.demo_places import place
from conductor.models.demo_sums import digits, sum_of

UNCLEAR = Wish("unclear")
Make: TypeAlias = Callable[[re.Match[str]], Wish]

_POLITE = re.compile(
    r"(?:(?:please|hey|hi|hello|ok|okay|so|well|now|and|then|also|conductor|thanks|thank you"
    r"|can you|could you|would you|will you|i want you to|i would like you to|i'd like you to)\b"
    r"[\s,.!:]*){1,6}",
    re.IGNORECASE,
)
_CUT = re.compile(
    r"(?:[;?!]|[.,](?=\s)|\s(?:and|then|also)(?=\s))(?:\s+(?:and|then|also|please)(?=\s))*\s*", re.IGNORECASE
)
_NOW = re.compile(r"(?i)\b(?:now|right now|today|please|at the moment)\b")
_THANKS = re.compile(r"(?i)[\s,]+(?:please|thanks|thank you)$")


def understand(text: str) -> tuple[Wish, ...]:
    """Return what the utterance asks for, in its order; `UNCLEAR` stands where words made no sense."""
    text = text.strip()
    if match := _POLITE.match(text):
        text = text[match.end() :]
    if (whole := _takes_all(text, 0)) is not None:
        return (whole,)
    if repository := repository_of(text):
        return (Wish("repository", values={"repository": repository}),)
    text = _joined_sums(" ".join(text[:MAX_UNDERSTOOD].split()))
    wishes: list[Wish] = []
    start = 0
    for cut in [*_CUT.finditer(text), None]:
        clause = text[start : cut.start()] if cut else text[start:]
        start = cut.end() if cut else len(text)
        if wish := _clause(clause, wishes[-1] if wishes else None):
            wishes.append(wish)
        if cut and (rest := _takes_all(text, start)) is not None:
            wishes.append(rest)
            break
    return tuple(wish for index, wish in enumerate(wishes) if wish not in wishes[:index]) or (UNCLEAR,)


def _takes_all(text: str, position: int) -> Wish | None:
    for pattern, make in _TAKES_ALL:
        if match := pattern.match(text, position):
            return make(match)
    return None


def _joined_sums(text: str) -> str:
    """Put "the sum of 3 and 4" in a form that survives the cut at "and"."""
    for pattern, replacement in _TWO_NUMBERS:
        text = pattern.sub(replacement, text)
    return text


def _clause(clause: str, before: Wish | None) -> Wish | None:
    """Return the clause's wish, or None for nothing but politeness."""
    clause = clause.strip(" ,.?!")
    if match := _POLITE.match(clause):
        clause = clause[match.end() :]
    clause = _THANKS.sub("", clause).strip(" ,.?!")
    if not clause or clause.casefold() == "please":
        return None
    if found := sum_of(clause):
        return Wish("call", "calculator", {"expression": found[1]}, found[0])
    for pattern, make in _CLAUSES:
        if match := pattern.match(digits(clause) if clause[:5].casefold() == "count" else clause):
            return make(match)
    if before and before.tool.endswith("list") and (named := re.fullmatch(r"(?i)(?:my |the )?(\w+)", clause)):
        return _clause(f"list {named[1]}", None)
    if before and (before.tool == "get_current_time" or before.kind == "place"):
        # "…in Tokyo, Paris and in New York": a place goes on with the question before it.
        name = re.sub(r"(?i)^in\s+", "", clause)
        if place(name) or len(name.split()) <= 2:
            return _time_at(name)
    return UNCLEAR


# -- from a match to a wish


def _call(tool: str, *roles: str, **fixed: Any) -> Make:
    """Make a wish for ``tool`` of the groups named ``roles`` that took part in the match."""
    return lambda match: Wish(
        "call", tool, {role: match[role].strip(" .") for role in roles if match[role]} | fixed
    )


def _agent_call(tool: str) -> Make:
    return lambda match: Wish("call", tool, {"agent": agent_meant(match["agent"])})


def _followup(match: re.Match[str]) -> Wish:
    values = {"agent": agent_meant(match["agent"]), "prompt": match["prompt"].strip()}
    return Wish("call", "agent.followup", values)


def _any_tool(match: re.Match[str]) -> Wish:
    given = (match["arguments"] or "").strip()
    name = match["tool"] if given else match["tool"].rstrip(".")
    return Wish("call", name, None, given[: given.rfind("}") + 1] or given or "{}")


def _count(match: re.Match[str]) -> Wish:
    return Wish("count", values={"first": int(match["first"] or 1), "last": int(match["last"])})


def _time_at(name: str) -> Wish:
    name = _NOW.sub("", name).strip(" ,.?!")
    if not name or name.casefold() in ("here", "it"):
        return Wish("call", "get_current_time", {})
    if found := place(name):
        return Wish("call", "get_current_time", {"zone": found[1]}, found[0])
    return Wish("place", said=name)


def _time(match: re.Match[str]) -> Wish:
    return _time_at(match["place"] or "")


def _date(_: re.Match[str]) -> Wish:
    return Wish("call", "get_current_time", {}, "date")


# -- the patterns; a blank stands for white space


def _table(rows: Sequence[tuple[str, Make]]) -> Sequence[tuple[re.Pattern[str], Make]]:
    flags = re.IGNORECASE | re.DOTALL
    return tuple((re.compile(pattern.replace(" ", r"\s+"), flags), make) for pattern, make in rows)


_IS = r"(?:'s|\u2019s| is| are)?"
_LIST = rf"(?:.*\b)?(?:list|show|name|read|what{_IS}|which) (?:me )?(?:all )?(?:of )?(?:on )?(?:(?:my|the) )?"
_DONE = r"(?:done|completed?|finished)$"
_TASK = r"task[\s_]+(?P<task>\w+)"

# Requests that take all that follows.
_TAKES_ALL = _table(
    [
        (
            r"(?:repeat after me|say)\b(?! (?:that|it) again)[:,]? (?P<words>\S.*)",
            lambda match: Wish("say", said=match["words"]),
        ),
        (
            r"call (?:the )?(?:tool )?(?P<tool>[\w.-]+)(?: tool)?(?: with\b\s*(?P<arguments>.*)|[.!?\s]*)$",
            _any_tool,
        ),
        (
            rf"(?:start|spawn|launch|run|create|kick off) {AN_AGENT}(?P<rest>.*)",
            lambda match: agent_wanted(match["rest"]),
        ),
        (
            rf"(?:tell|ask|message) {THE_AGENT}(?: (?P<agent>\S.{{0,60}}?))?? (?:to|that) (?P<prompt>\S.*)",
            _followup,
        ),
        (
            r"add (?:a |another )?(?:new )?task\b[:,]? (?:to |called )?(?P<title>\S.*)",
            _call("add_task", "title"),
        ),
        (
            r"create (?:a |the )?(?:new )?(?:text )?file (?:called |named )?(?P<path>[\w./-]*\w)"
            r" (?:containing|saying|with(?: the (?:text|content|words))?)[:,]? (?P<content>\S.*)",
            _call("create_file", "path", "content"),
        ),
    ]
)

# Requests that are one clause of a sentence.
_CLAUSES = _table(
    [
        (
            r"(?:repeat(?: (?:that|it|yourself))?|say (?:that|it) again|what did you (?:just )?say)$",
            lambda _: Wish("repeat"),
        ),
        (r"what did i (?:just )?say$", lambda _: Wish("recall")),
        (r"(?:help(?: me)?|what can (?:you do|i (?:say|ask)))$", lambda _: Wish("help")),
        (r"count (?:from (?P<first>\d{1,9}) )?(?:up )?to (?P<last>\d{1,9})$", _count),
        (rf".*\bstatus (?:of|for|on) (?:{THE_AGENT}|(?=it$))(?P<agent>.*)", _agent_call("agent.status")),
        (rf"(?:how{_IS}|check(?: on)?) {THE_AGENT}(?P<agent>.*)", _agent_call("agent.status")),
        (rf"(?:cancel|stop|kill|abort) {THE_AGENT}(?P<agent>.*)", _agent_call("agent.cancel")),
        (rf"{_LIST}agents\b", _call("agent.list")),
        (rf"{_LIST}repo(?:sitorie)?s\b", _call("repositories.list")),
        (
            r"(?:let me )?(?:pick|choose|select) (?:(?:a|the|my|another|one|from) ){0,3}repo(?:sitory)?"
            r"(?: (?:matching|called|named|with|like) (?P<filter>\S.*))?$",
            _call("repositories.select", "filter"),
        ),
        (r"let me (?:pick|choose|select)(?: (?:one|it))?$", _call("repositories.select")),
        (rf"{_LIST}(?:tasks\b|task list\b)", _call("list_tasks")),
        (rf"(?:mark|set) {_TASK} (?:as |to )?{_DONE}", _call("update_task", "task", status="completed")),
        (rf"(?:finish|complete) {_TASK}$", _call("update_task", "task", status="completed")),
        (rf"{_TASK} is {_DONE}", _call("update_task", "task", status="completed")),
        (rf"(?:start|begin) {_TASK}$", _call("update_task", "task", status="in_progress")),
        (rf"{_LIST}(?:file tree|files)\b(?: in (?P<path>\S+))?", _call("get_file_tree", "path")),
        (
            r"read (?:me )?(?:the )?(?:file )?(?P<path>[\w./-]*[./][\w./-]*\w)$",
            _call("read_file", "path"),
        ),
        (
            rf".*\bwhat{_IS} (?:the )?time\b(?: is it| it is)?(?: (?:right )?now)?"
            r"(?: (?:in|at) (?P<place>.*))?",
            _time,
        ),
        (
            r"(?:.*\b(?:tell|give) me )?(?:the )?(?:current )?time(?: (?:in|at) (?P<place>.*))?$",
            _time,
        ),
        (rf".*\bwhat{_IS} (?:the |today's )?(?:day|date)\b", _date),
    ]
)

_THE = r"\b(?:the )?"
_TWO_NUMBERS = tuple(
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        (rf"{_THE}sum of (\S+) and (\S+)", r"\1 plus \2"),
        (rf"{_THE}product of (\S+) and (\S+)", r"\1 times \2"),
        (rf"{_THE}difference between (\S+) and (\S+)", r"\1 minus \2"),
        (r"\badd ([\w.]+) (?:and|to) ([\w.]+)", r"\1 plus \2"),
        (r"\bmultiply (\S+) (?:and|by) (\S+)", r"\1 times \2"),
        (r"\bdivide (\S+) by (\S+)", r"\1 divided by \2"),
        (r"\bsubtract (\S+) from (\S+)", r"\2 minus \1"),
        (r"\b(hundred|thousand|million) and (?=[a-z])", r"\1 "),
    )
)
