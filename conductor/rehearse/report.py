"""What came of rehearsals: each step compared with its expectations, as a table and as JUnit XML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, TextIO, TypeAlias
from xml.etree import ElementTree

from conductor.commands.output import as_json, write_table
from conductor.rehearse.player import Scene, holds
from conductor.rehearse.script import Call

_HEADINGS = ("rehearsal", "step", "outcome", "s", "rounds", "tokens in", "out", "expected", "was")


Check: TypeAlias = tuple[str, str]
"""What was expected, and what was instead; empty if it was so."""


@dataclass(frozen=True, slots=True)
class Performance:
    """One rehearsal that was played."""

    name: str
    file: str
    scenes: Sequence[Scene]

    @property
    def failed(self) -> bool:
        return any(not scene.reached or failures(scene) for scene in self.scenes)


def failures(scene: Scene) -> list[str]:
    """Say in sentences what was not as expected."""
    return scene.problems + [f"expected {expected}, was {was}" for expected, was in checks(scene) if was]


def checks(scene: Scene) -> Iterator[Check]:
    """Compare a step with its expectations."""
    expect, limits = scene.step.expect, scene.step.limits
    used = _used(scene) or "no call"
    for call in expect.called:
        times = sum(one.tool == call.tool and _fits(one.arguments, call) for one in scene.used)
        right = times >= 1 if call.times is None else times == call.times
        count = "" if call.times is None else " once" if call.times == 1 else f" {call.times} times"
        yield _written(call.tool, call.arguments) + count, "" if right else used
    for name in expect.not_called:
        called = any(one.tool == name for one in scene.used)
        yield f"no {name}", used if called else ""
    spoken = " ".join(scene.spoken)
    said = _said(scene) or "nothing said"
    if expect.said is not None:
        yield f"said /{expect.said}/", "" if _found(expect.said, spoken) else said
    if expect.not_said is not None:
        yield f"not said /{expect.not_said}/", said if _found(expect.not_said, spoken) else ""
    if expect.state is not None:
        yield _equal("state", [expect.state], [scene.state])
    if expect.approvals is not None:
        yield _equal("approvals", expect.approvals, scene.approvals)
    if expect.errors or scene.errors:
        yield _equal("errors", expect.errors, scene.errors)
    if scene.verdict is not None:
        yes = re.match(r"\W*yes\b", scene.verdict, re.IGNORECASE)
        yield f"yes to {expect.judge!r}", "" if yes else scene.verdict or "no answer"
    for name, most, found in (
        ("s", limits.seconds, scene.seconds),
        ("tokens in", limits.input_tokens, scene.usage["input"]),
        ("tokens out", limits.output_tokens, scene.usage["output"]),
    ):
        if most is not None:
            yield f"at most {most:g} {name}", f"{found:.4g}" if found > most else ""


def _used(scene: Scene) -> str:
    return ", ".join(_written(one.tool, one.arguments) for one in scene.used)


def _summary(scene: Scene) -> str:
    cut = f"cut at the {scene.cut}" if scene.was_cut else ""
    interrupted = "interrupted" if scene.was_interrupted else ""
    return "; ".join(part for part in (cut, _used(scene), _said(scene), interrupted) if part)


def _said(scene: Scene) -> str:
    spoken = " ".join(scene.spoken)
    return f"said {spoken!r}" if spoken else ""


def _fits(arguments: Any, call: Call) -> bool:
    return not call.arguments or (arguments is not None and holds(arguments, call.arguments))


def _written(tool: str, arguments: Any) -> str:
    return f"{tool} {as_json(arguments).strip()}" if arguments else tool


def _found(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE | re.DOTALL) is not None


def _equal(name: str, expected: Sequence[str], was: Sequence[str]) -> Check:
    same = list(expected) == list(was)
    return f"{name} {', '.join(expected) or 'none'}", "" if same else ", ".join(was) or "none"


def write_report(out: TextIO, played: Sequence[Performance]) -> None:
    """Write a row for each step."""
    rows = []
    for one in played:
        for number, scene in enumerate(one.scenes, 1):
            found = failures(scene)
            expected = "; ".join(expected for expected, _ in checks(scene))
            was = "; ".join(found) or _summary(scene)
            rows.append((one.name, str(number), _outcome(scene), *_figures(scene), expected, was))
    write_table(out, _HEADINGS, rows, ("step", "s", "rounds", "tokens in", "out"), ("rehearsal", "expected"))


def _plain(text: str) -> str:
    # XML has no place for most control characters.
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


def _outcome(scene: Scene) -> str:
    if not scene.reached:
        return "not reached"
    return "FAILED" if failures(scene) else "ok"


def _figures(scene: Scene) -> tuple[str, ...]:
    if not scene.reached:
        return ("-", "-", "-", "-")
    used = [str(scene.usage[name]) for name in ("input", "output")]
    return (f"{scene.seconds:.2f}", str(scene.usage["rounds"] or "-"), *used)


def write_junit(out: BinaryIO, played: Sequence[Performance]) -> None:
    """Write JUnit XML: a suite for each rehearsal, a case for each step."""
    suites = ElementTree.Element("testsuites")
    for one in played:
        name = _plain(one.name)
        suite = ElementTree.SubElement(suites, "testsuite", name=name, tests=str(len(one.scenes)))
        for number, scene in enumerate(one.scenes, 1):
            case = ElementTree.SubElement(
                suite,
                "testcase",
                classname=name,
                name=_plain(f"{number} {scene.step.say}"),
                file=one.file,
                time=f"{scene.seconds:.3f}",
            )
            properties = ElementTree.SubElement(case, "properties")
            for kind, count in scene.usage.items():
                ElementTree.SubElement(properties, "property", name=kind, value=str(count))
            found = failures(scene)
            if not scene.reached:
                ElementTree.SubElement(case, "skipped", message="not reached")
            elif found:
                failure = ElementTree.SubElement(case, "failure", message=_plain(found[0]))
                failure.text = _plain("\n".join(found))
        suite.set("failures", str(len(suite.findall("testcase/failure"))))
        suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
        suite.set("time", f"{sum(scene.seconds for scene in one.scenes):.3f}")
    ElementTree.ElementTree(suites).write(out, encoding="utf-8", xml_declaration=True)
