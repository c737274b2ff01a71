"""The report of rehearsals: steps compared with their expectations, as a table and as JUnit XML."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any, BinaryIO
from xml.etree import ElementTree

from conductor.commands.output import as_json, escape, write, write_table
from conductor.rehearse.player import Scene
from conductor.rehearse.script import holds

PASS_K = 4
"""The k of pass@k and pass^k, if there are as many runs."""

_HEADINGS = ("rehearsal", "step", "outcome", "s", "rounds", "tokens in", "out", "expected", "was")


@dataclass(frozen=True, slots=True)
class Performance:
    """The result of one rehearsal, with the name and the version of its system prompt."""

    name: str
    file: str
    scenes: Sequence[Scene]
    prompt: tuple[str, str]

    @property
    def failed(self) -> bool:
        return any(not scene.reached or failures(scene) for scene in self.scenes)


def failures(scene: Scene) -> list[str]:
    """List the failures in sentences."""
    return scene.problems + [f"expected {expected}, was {was}" for expected, was in checks(scene) if was]


def checks(scene: Scene) -> Iterator[tuple[str, str]]:
    """Compare a step with its expectations: each, and the actual result, which is empty if they agree."""
    expect, limits = scene.step.expect, scene.step.limits
    calls, spoken = _results(scene)
    tools, actual = calls or "no call", spoken or "nothing said"
    for call in expect.called:
        times = sum(
            use.tool == call.tool and holds(use.arguments or {}, call.arguments) for use in scene.tools
        )
        right = times >= 1 if call.times is None else times == call.times
        count = "" if call.times is None else " once" if call.times == 1 else f" {call.times} times"
        yield _format_call(call.tool, call.arguments) + count, "" if right else tools
    for name in expect.not_called:
        yield f"no {name}", tools if any(use.tool == name for use in scene.tools) else ""
    speech = " ".join(scene.speeches)
    if expect.said is not None:
        yield f"said /{expect.said}/", "" if _search(expect.said, speech) else actual
    if expect.not_said is not None:
        yield f"not said /{expect.not_said}/", actual if _search(expect.not_said, speech) else ""
    if expect.state is not None:
        yield _equal("state", [expect.state], [scene.state])
    if expect.approvals is not None:
        yield _equal("approvals", expect.approvals, scene.approvals)
    if expect.errors or scene.errors:
        yield _equal("errors", expect.errors, scene.errors)
    if scene.verdict is not None:
        yes = re.match(r"\W*yes\b", scene.verdict, re.IGNORECASE)
        yield f"yes to {expect.judge!r}", "" if yes else scene.verdict or "no answer"
    for name, most, value in (
        ("s", limits.seconds, scene.seconds),
        ("tokens in", limits.input_tokens, scene.usage["input"]),
        ("tokens out", limits.output_tokens, scene.usage["output"]),
    ):
        if most is not None:
            yield f"at most {most:g} {name}", f"{value:.4g}" if value > most else ""


def _summary(scene: Scene) -> str:
    cut = f"cut at the {scene.cut}" if scene.was_cut else ""
    interrupted = "interrupted" if scene.was_interrupted else ""
    return "; ".join(filter(None, (cut, *_results(scene), interrupted, scene.verdict)))


def _results(scene: Scene) -> tuple[str, str]:
    # The calls, and the spoken text.
    speech = " ".join(scene.speeches)
    calls = ", ".join(_format_call(use.tool, use.arguments) for use in scene.tools)
    return calls, f"said {speech!r}" if speech else ""


def _format_call(tool: str, arguments: Any) -> str:
    return f"{tool} {as_json(arguments)}" if arguments else tool


def _search(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE | re.DOTALL) is not None


def _equal(name: str, expected: Sequence[str], was: Sequence[str]) -> tuple[str, str]:
    same = list(expected) == list(was)
    return f"{name} {', '.join(expected) or 'none'}", "" if same else ", ".join(was) or "none"


def write_report(performances: Sequence[Performance]) -> None:
    """Write a row for each step."""
    rows = []
    for performance in performances:
        for number, scene in enumerate(performance.scenes, 1):
            problems = failures(scene)
            expected = "; ".join(expected for expected, _ in checks(scene))
            was = "; ".join(problems) or _summary(scene)
            figures: tuple[object, ...] = ("-", "-", "-", "-")
            outcome = "FAILED" if problems else "ok"
            if scene.reached:
                usage = scene.usage
                figures = f"{scene.seconds:.2f}", usage["rounds"] or "-", usage["input"], usage["output"]
            else:
                outcome = "not reached"
            rows.append((performance.name, number, outcome, *figures, expected, was))
    write_table(_HEADINGS, rows, ("step", "s", "rounds", "tokens in", "out"), ("rehearsal", "expected"))
    _write_prompts(performances)
    for performance in performances:
        differences = (
            f"first difference of {performance.name}: step {number}, {problem}"
            for number, scene in enumerate(performance.scenes, 1)
            for problem in failures(scene)
        )
        if (first := next(differences, None)) is not None:
            write(first)


def _write_prompts(performances: Sequence[Performance]) -> None:
    """Write the system prompts, with the names of their rehearsals if there are several."""
    names: dict[tuple[str, str], list[str]] = {}
    for performance in performances:
        names.setdefault(performance.prompt, []).append(performance.name)
    for (prompt, version), used_by in names.items():
        of = f" of {', '.join(dict.fromkeys(used_by))}" if len(names) > 1 else ""
        write(f"prompt{of}: {prompt}, version {version}")


def pass_rates(performances: Sequence[Performance]) -> dict[str, float]:
    """Return the part of the runs that passed, from 0 to 1, by file."""
    results: dict[str, list[bool]] = {}
    for performance in performances:
        results.setdefault(performance.file, []).append(not performance.failed)
    return {file: sum(outcomes) / len(outcomes) for file, outcomes in results.items()}


def pass_at(runs: Sequence[Performance]) -> dict[str, float]:
    """Estimate, without bias, that of k runs at least one passes (pass@k), and that all do (pass^k)."""
    k, successes = min(PASS_K, len(runs)), sum(not run.failed for run in runs)
    draws = comb(len(runs), k)
    return {f"pass@{k}": 1 - comb(len(runs) - successes, k) / draws, f"pass^{k}": comb(successes, k) / draws}


def write_rates(performances: Sequence[Performance]) -> None:
    """Write a row for each file: how many of its runs passed, and its failures with their number."""
    rows = []
    for file, rate in pass_rates(performances).items():
        runs = [performance for performance in performances if performance.file == file]
        problems = Counter(
            f"step {number}: {problem}"
            for run in runs
            for number, scene in enumerate(run.scenes, 1)
            for problem in failures(scene)
        )
        failed = "; ".join(f"{count} times {problem}" for problem, count in problems.most_common())
        estimates = ", ".join(f"{name} {value:.2f}" for name, value in pass_at(runs).items())
        rows.append((runs[0].name, f"{round(rate * len(runs))} of {len(runs)}", estimates, failed))
    write_table(("rehearsal", "passed", "estimate", "failures"), rows, ("passed",))
    _write_prompts(performances)


def _plain(text: str) -> str:
    # XML allows few control characters.
    return "\n".join(map(escape, text.split("\n")))


def write_junit(out: BinaryIO, performances: Sequence[Performance]) -> None:
    """Write JUnit XML: a suite for each rehearsal, a case for each step."""
    suites = ElementTree.Element("testsuites")
    for performance in performances:
        name = _plain(performance.name)
        suite = ElementTree.SubElement(suites, "testsuite", name=name, tests=str(len(performance.scenes)))
        facts = ElementTree.SubElement(suite, "properties")
        for kind, text in zip(("prompt", "prompt version"), performance.prompt, strict=True):
            ElementTree.SubElement(facts, "property", name=kind, value=_plain(text))
        for kind, value in pass_at([run for run in performances if run.file == performance.file]).items():
            ElementTree.SubElement(facts, "property", name=kind, value=f"{value:.4f}")
        for number, scene in enumerate(performance.scenes, 1):
            title, seconds = _plain(f"{number} {scene.step.say}"), f"{scene.seconds:.3f}"
            attributes = {"classname": name, "name": title, "file": performance.file, "time": seconds}
            case = ElementTree.SubElement(suite, "testcase", attributes)
            properties = ElementTree.SubElement(case, "properties")
            for kind, count in scene.usage.items():
                ElementTree.SubElement(properties, "property", name=kind, value=str(count))
            problems = failures(scene)
            if not scene.reached:
                ElementTree.SubElement(case, "skipped", message="not reached")
            elif problems:
                failure = ElementTree.SubElement(case, "failure", message=_plain(problems[0]))
                failure.text = _plain("\n".join(problems))
        for kind, tag in (("failures", "failure"), ("skipped", "skipped")):
            suite.set(kind, str(len(suite.findall(f"testcase/{tag}"))))
        suite.set("time", f"{sum(scene.seconds for scene in performance.scenes):.3f}")
    ElementTree.ElementTree(suites).write(out, encoding="utf-8", xml_declaration=True)
