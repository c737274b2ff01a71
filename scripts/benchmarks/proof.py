"""Measures consent, loss, tau2's tasks and latency, and writes docs/evidence.md.

Each measurement is kept in build/proof, with its command, commit and machine. The page shows the last ones of
all parts, so that a part can be measured alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from string import Template
from typing import Any, TypeAlias

from benchmarks.chaos_nodes import CONTROLS, SHOWN_BY
from benchmarks.nodes import postgres_program
from benchmarks.tau2 import CONTROLS as TAU2_CONTROLS
from benchmarks.tau2_score import FAULTS
from conductor.plugins.judges import QuestionWords
from conductor.tools.judge import Answer
from tests.unit.tools.phrase_sets import answers, is_argued, is_unsafe, judge_answer, said

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "proof"
PAGE = ROOT / "docs" / "evidence.md"
TEMPLATE = Path(__file__).with_name("evidence.md")
PHRASES = ROOT / "tests" / "unit" / "tools" / "phrases"
PARTS = ("consent", "chaos", "tau2", "latency")
STORES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
LEGS = {
    ("first", "p50_ms"): "the model's first token to the first partial, p50",
    ("first", "p99_ms"): "the same, p99",
    ("speech", "p50_ms"): "the model's first sentence to the first speech, p50",
    ("round", "p50_ms"): "a device's result to the next request, p50",
    ("barge", "max_ms"): "an interruption to the closed request, longest",
    ("pause", "interrupted_speech_p99_ms"): "the first sound of an interruption to the last speech sent, p99",
    ("pause", "paused_speech_p99_ms"): "the same with a pause, p99",
    ("pause", "interrupted_words_p99_ms"): "the words of an interruption to their turn, p99",
    ("pause", "paused_words_p99_ms"): "the same with a pause, p99",
    ("halves", "without_p50_ms"): "a whole sentence to the first partial, p50",
    ("halves", "without_p99_ms"): "the same, p99",
    ("halves", "waiting_p50_ms"): "a whole sentence of an app whose half sentences wait, p50",
    ("halves", "waiting_p99_ms"): "the same, p99",
    ("durable_sqlite", "step_p50_ms"): "a commit to SQLite, p50",
    ("durable_redis", "step_p50_ms"): "a commit to Redis, p50",
    ("durable_postgres", "step_p50_ms"): "a commit to PostgreSQL, p50",
    ("turns_50", "cpu_ms_a_turn"): "CPU of a turn with three device calls, 50 sessions",
}
OLDER = "24 older sets, English"
LIMIT_S = 1_500
"""A measurement that takes longer is ended."""
BASELINE = re.compile(r"\W*(yes|yeah|yep|sure|ok|okay|go ahead|do it|confirm|please do)\b", re.IGNORECASE)
"""The consent of an agent without a grammar: an answer that begins with a yes."""
_NO = re.compile(r"\W*(no|nope|don't|do not|stop|cancel|never)\b", re.IGNORECASE)


@dataclass
class Measurement:
    """A command, and its figures; ``status`` is its exit status, or a sentence if it has none."""

    part: str
    name: str
    command: str
    status: int | str = ""
    commit: str = ""
    machine: str = ""
    load: str = ""
    began: str = ""
    seconds: int = 0
    figures: Any = field(default_factory=dict)

    @property
    def file(self) -> Path:
        """Where it is kept."""
        return FOLDER / f"{self.part}-{self.name.replace(' ', '-')}.json"

    def last(self) -> Measurement:
        """Give its last run, if it was run."""
        return Measurement(**json.loads(self.file.read_text())) if self.file.exists() else self


def plan(seed: int, *, full: bool) -> list[Measurement]:
    """List the measurements, in the order of the document."""
    some = "--kills 120 --freezes 10 --cuts 60 --stops 5 --every 0.3"
    many = "--kills 1000 --freezes 50 --cuts 500 --stops 20"
    chaos = f"scripts/chaos {many if full else some} --store-kills 0 --seed {seed}"
    broken = "--controls --store sqlite --kills 192 --freezes 40 --cuts 12 --stops 0 --every 0.1"
    tau2 = "scripts/tau2 " + (
        "--kills 200 --freezes 50 --cuts 200" if full else "--tasks 60 --kills 36 --freezes 8 --cuts 30"
    )
    return [
        Measurement("consent", "phrases", "scripts/proof consent"),
        *(Measurement("chaos", store, f"{chaos} --store {store}") for store in STORES),
        Measurement("chaos", "controls", f"scripts/chaos {broken} --seed {seed}"),
        *(Measurement("tau2", store, f"{tau2} --store {store} --seed {seed}") for store in STORES),
        *(
            Measurement(
                "tau2",
                f"control {control}",
                f"scripts/tau2 --control {control} --tasks 24 --kills 8 --cuts 16 --every 0.3 --seed {seed}",
            )
            for control in TAU2_CONTROLS
        ),
        Measurement(
            "latency",
            "legs",
            "scripts/bench --seconds 5 --sessions 50 turns round first speech barge pause halves durable",
        ),
    ]


# -- measuring


def measure(measurement: Measurement) -> None:
    """Run a measurement, and keep it."""
    measurement.commit = output("git", "rev-parse", "--short", "HEAD") + (
        ", changed" if output("git", "status", "--porcelain", "--untracked-files=no") else ""
    )
    measurement.machine = f"{processor()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    measurement.began = f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
    began, load = time.monotonic(), os.getloadavg()[0]
    if measurement.part == "consent":
        measurement.figures = consent()
        measurement.status = int(any(row["unsafe grammar"] for row in measurement.figures["sets"].values()))
    elif "postgres" in measurement.name and postgres_program("initdb") is None:
        measurement.status = "PostgreSQL is not installed here"
    else:
        _run(measurement)
    measurement.seconds = round(time.monotonic() - began)
    measurement.load = f"{load:.1f} to {os.getloadavg()[0]:.1f}"
    FOLDER.mkdir(parents=True, exist_ok=True)
    measurement.file.write_text(json.dumps(vars(measurement), indent=1) + "\n")


def _run(measurement: Measurement) -> None:
    script, *arguments = shlex.split(measurement.command)
    figures = FOLDER / "figures.json"
    figures.unlink(missing_ok=True)
    figures.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", f"benchmarks.{Path(script).name}", *arguments, "--json", str(figures)]
    with (FOLDER / f"{measurement.file.stem}.log").open("w") as log:
        try:
            ended = subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, timeout=LIMIT_S)
            measurement.status = ended.returncode
        except subprocess.TimeoutExpired:
            measurement.status = f"ended after {LIMIT_S} s"
    if figures.exists():
        measurement.figures = json.loads(figures.read_text())
    elif measurement.status != 0:
        measurement.status = f"no figures; see {Path(log.name).relative_to(ROOT)}"


def output(*command: str) -> str:
    """Give the output of a command."""
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def processor() -> str:
    """Name the processor."""
    info = Path("/proc/cpuinfo")
    match = re.search(r"model name\s*: (.+)", info.read_text()) if info.exists() else None
    return match[1] if match else platform.machine()


def match_baseline(words: str, _: QuestionWords) -> Answer:
    """Judge an answer by the `BASELINE`."""
    if BASELINE.match(words):
        return Answer("allow", "once", words)
    return Answer("deny" if _NO.match(words) else "unclear", "once", words)


JUDGES: Mapping[str, Callable[[str, QuestionWords], Answer]] = {
    "grammar": judge_answer,
    "baseline": match_baseline,
}


def consent() -> dict[str, Any]:
    """Judge all sets of phrases; counts by set and by kind."""
    sets: dict[str, Counter[str]] = {}
    kinds: dict[str, Counter[str]] = {}
    for path in sorted(PHRASES.glob("*.jsonl")):
        name = path.stem if path.stem.startswith("native_") else OLDER
        for judge, classify in JUDGES.items():
            for phrase, tool, answer in answers(path.with_suffix(".tools.json"), path, classify):
                meaning = "consent" if phrase["meaning"] == "session" else phrase["meaning"]
                kind = f"{phrase['meaning']}, {tool['risk']} risk"
                for count in (sets.setdefault(name, Counter()), kinds.setdefault(kind, Counter())):
                    count["answers"] += judge == "grammar"
                    count[f"{meaning} {judge}"] += 1
                    count[f"{meaning} {answer.kind} {judge}"] += 1
                    if is_unsafe(phrase["meaning"], answer):
                        is_rule = judge == "grammar" and is_argued(path.stem, phrase["tool"], said(phrase))
                        count["argued" if is_rule else f"unsafe {judge}"] += 1
    return {"sets": sets, "kinds": dict(sorted(kinds.items()))}


# -- the page

Records: TypeAlias = Mapping[str, Measurement]
"""Measurements with figures, by part and name."""


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Write a table; without rows it was not measured."""
    if not rows:
        return "Not measured."
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def consent_rows(records: Records, by: str) -> str:
    """Show the unsafe answers, and the shares that are understood."""
    rows: dict[str, Counter[str]] = {}
    for name, counts in (
        records["consent phrases"].figures[by].items() if "consent phrases" in records else ()
    ):
        rows[name] = Counter(counts)
    if rows and by == "sets":
        rows["all"] = sum(rows.values(), Counter())
    shares = ("consents understood", "baseline", "refusals understood", "baseline")
    return table(
        (by.removesuffix("s"), "answers", "unsafe", "argued", "baseline", *shares),
        [(name, *_consent_row(count)) for name, count in rows.items()],
    )


def _consent_row(count: Counter[str]) -> Sequence[object]:
    shares = []
    for meaning, kind in (("consent", "allow"), ("refusal", "deny")):
        for judge in JUDGES:
            part, total = count[f"{meaning} {kind} {judge}"], count[f"{meaning} {judge}"]
            shares.append(f"{part} of {total}" if total else "")
    unsafe = [count[f"unsafe {judge}"] for judge in JUDGES]
    return (count["answers"], unsafe[0], count["argued"], *unsafe[1:], *shares)


def chaos_rows(records: Records) -> str:
    """Show the lost, doubled and unknown calls under faults."""
    rows: list[Sequence[object]] = []
    for store, title in STORES.items():
        for figures in records[f"chaos {store}"].figures if f"chaos {store}" in records else ():
            bad, totals = figures["bad"], figures["figures"]
            remaining = sum(bad.values()) - bad["lost"] - bad["doubled"] + figures["invalid"]
            unknown = sum(figures["unknown"].values())
            counts = (totals["transcripts"], totals["calls"], bad["lost"], bad["doubled"], remaining, unknown)
            rows.append((title, faults_of(figures["faults"]), *counts))
    head = ("store", "faults", "transcripts", "calls", "lost", "doubled", "remaining", "unknown")
    return table(head, rows)


def control_rows(records: Records) -> str:
    """Show how each broken server is found."""
    rows = []
    if "chaos controls" in records:
        for control, figures in zip(sorted(CONTROLS), records["chaos controls"].figures, strict=True):
            signs = [f"{n} {column}" for column in SHOWN_BY[control] if (n := figures["bad"][column])]
            part = (CONTROLS[control].__doc__ or "").strip()
            rows.append((control, part, faults_of(figures["faults"]), ", ".join(signs) or "**not found**"))
    return table(("control", "broken part", "faults", "found as"), rows)


def faults_of(counts: Mapping[str, int]) -> str:
    """Sum faults by kind."""
    kinds = Counter[str]()
    for name, count in counts.items():
        kinds[name.partition(":")[0]] += count
    return ", ".join(f"{count} {kind}s" for kind, count in sorted(kinds.items()))


def tau2_rows(records: Records) -> str:
    """Show tau2's databases after its actions ran under faults."""
    rows: list[Sequence[object]] = []
    for measurement in records.values():
        if measurement.part == "tau2":
            figures = measurement.figures
            counts = [figures[key] for key in ("tasks", "actions", "writes", *FAULTS, "unknown")]
            times = f"{figures['p50_ms']:.0f}, {figures['p99_ms']:.0f}"
            title = STORES.get(measurement.name, measurement.name)
            rows.append((title, faults_of(figures["faults"]), *counts, times))
    head = ("", "faults", "tasks", "actions", "writes", *FAULTS, "unknown", "call p50, p99 (ms)")
    return table(head, rows)


def latency_rows(records: Records) -> str:
    """Show the server's own part of a turn's time."""
    figures = records["latency legs"].figures if "latency legs" in records else {}
    rows = [(leg, figures[name][key]) for (name, key), leg in LEGS.items() if key in figures.get(name, {})]
    return table(("leg", "ms"), rows)


def run_row(measurement: Measurement) -> Sequence[object]:
    """Show a measurement's command and circumstances."""
    failure = "a limit was missed" if measurement.part == "latency" else "a fault was found"
    results = {0: "as it should be", 1: f"**{failure}**", "": "not run"}
    return (
        f"{measurement.part} {measurement.name}",
        f"`{measurement.command}`",
        results.get(measurement.status, measurement.status),
        measurement.commit,
        measurement.began,
        measurement.seconds if measurement.began else "",
        measurement.load,
    )


def page(measurements: Sequence[Measurement]) -> str:
    """Write the page."""
    records = {f"{m.part} {m.name}": m for m in measurements if m.figures}
    head = ("measurement", "command", "result", "commit", "began (UTC)", "seconds", "load")
    return Template(TEMPLATE.read_text()).substitute(
        consent_sets=consent_rows(records, "sets"),
        consent_kinds=consent_rows(records, "kinds"),
        chaos=chaos_rows(records),
        chaos_controls=control_rows(records),
        tau2=tau2_rows(records),
        latency=latency_rows(records),
        runs=table(head, [run_row(measurement) for measurement in measurements]),
        machine="; ".join(sorted({m.machine for m in measurements if m.machine})),
    )


def main(arguments: Sequence[str]) -> int:
    """Measure, and write the page; 1 if a fault was found, or a measurement failed."""
    parser = argparse.ArgumentParser(prog="scripts/proof", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--full", action="store_true", help="all tasks of tau2, and many more faults")
    parser.add_argument("--seed", type=int, default=1, help="of the faults (1)")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; the parts are {', '.join(PARTS)}")
    measurements = plan(options.seed, full=options.full)
    selection = [m for m in measurements if m.part in (options.parts or PARTS)]
    for measurement in selection:
        print(f"{measurement.part} {measurement.name}: {measurement.command}", file=sys.stderr, flush=True)
        measure(measurement)
        print(f"  {measurement.status}, {measurement.seconds} s", file=sys.stderr, flush=True)
    PAGE.write_text(page([measurement.last() for measurement in measurements]))
    print(f"written: {PAGE.relative_to(ROOT)}", file=sys.stderr)
    return int(any(isinstance(m.status, int) and m.status != 0 for m in selection))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
