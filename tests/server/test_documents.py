"""The documents: links lead somewhere, programs run, frames are valid, and made pages are up to date."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from protocol_schema import PAYLOADS, sent_by

from conductor.cli import COMMANDS, GROUPS
from conductor.events.codec import decode_event
from tests.conftest import ROOT, environment
from tests.stand_ins.programs import launched
from tests.system.clients.programs import STARTING, node_packages, program
from tests.system.test_javascript_client import address, demo

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "clients/js/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Make the anchors of a page's headings as GitHub does."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#{1,6} (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            yield target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert list(broken_links(page)) == []


def test_the_site_names_every_page() -> None:
    pages = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text().split("nav:")[1]))
    assert pages == {
        str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")
    }


def test_the_pages_of_settings_and_commands_are_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "docs"))
    page = script["settings_page"]((ROOT / ".env.example").read_text(encoding="utf-8"))
    assert (ROOT / "docs" / "settings.md").read_text(encoding="utf-8") == page, "run scripts/docs"
    page = script["commands_page"]()
    assert (ROOT / "docs" / "commands.md").read_text(encoding="utf-8") == page, "run scripts/docs"


def code_of(page: Path) -> list[str]:
    """List the code spans of a page, and the lines of its shell blocks, without prompts."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL))
    return [*spans, *(line for block in blocks for line in block.replace("\\\n", " ").splitlines())]


TOP = {
    path.name
    for path in ROOT.iterdir()
    if path.is_dir() and path.name not in ("build", "data") and not path.name.startswith((".venv", ".git"))
}


def missing_paths(code: str) -> Iterator[str]:
    """List the paths in code that begin with a folder of the project, and do not exist."""
    for word in re.findall(r"[^\s'\"(),;:=<>]+", code):
        if word.split("/")[0] in TOP and re.fullmatch(r"(?:[\w.-]+/)+[\w.-]*", word):
            is_example = re.search(r"\b[A-Z]{4,}\b", word)  # such as NAME
            if not (is_example or (ROOT / word).exists() or (ROOT / f"{word}.py").exists()):
                yield word


def unknown_commands(code: str) -> Iterator[str]:
    """List the command lines of the program whose command or options are not in its parser."""
    for line in re.findall(r"(?:^|\s|bin/)(?:conductor )+([a-z][^|&;`]*)", code):
        words = line.split()
        words = words[1:] if words[0] == "help" else words
        name = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else " ".join(words[:1])
        if name in GROUPS or not name or name.isupper():
            continue
        options = (
            {part for argument in COMMANDS[name][2].split() for part in argument.split("/")}
            if name in COMMANDS
            else None
        )
        if options is None:
            yield line
        else:
            used = (word.partition("=")[0] for word in words if word.startswith("--"))
            yield from (f"{name} {option}" for option in used if option not in options)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_path_and_command_in_code_exists(page: Path) -> None:
    code = code_of(page)
    assert [path for text in code for path in missing_paths(text)] == []
    assert [command for text in code for command in unknown_commands(text)] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) < 9_000


PROGRAM = re.compile(
    r"[Ss]ave this as `([\w.]+)`[^`]*?^```\w+\n(.*?)^```$(?:\n\n```sh\n(.*?)^```$)", re.MULTILINE | re.DOTALL
)


def programs(page: str) -> dict[str, tuple[str, list[str]]]:
    """Give each program of a page by the name of its file: its text, and the lines to type."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return {name: (code, lines.splitlines()) for name, code, lines in PROGRAM.findall(text)}


async def run_as_written(folder: Path, page: str, name: str) -> str:
    """Save a program of a page in a new clone, and type its lines; gives the output of the last.

    The clone has the files that the lines name. npm takes ``ws`` from this machine, without the network.
    """
    text, lines = programs(page)[name]
    (folder / name).write_text(text, encoding="utf-8")
    shutil.copytree(ROOT / "clients" / "js", folder / "clients" / "js")
    (folder / ".venv").symlink_to(sys.prefix)
    output = b""
    async with demo() as listener:
        for line in lines:
            if line.startswith("npm install"):
                line = line.replace(" ws ", f" {node_packages()}/ws ")
            # pytest-asyncio warns about its own defaults.
            warnings = "default" if "pytest" in line else "error"
            names = {"npm_config_offline": "true", "PYTHONWARNINGS": warnings, **address(listener)}
            options = {"stdout": asyncio.subprocess.PIPE, "cwd": folder, "env": environment(**names)}
            async with launched("sh", "-c", line, **options) as process:
                output, _ = await asyncio.wait_for(process.communicate(), STARTING)
            assert process.returncode == 0, line
    return output.decode()


@pytest.mark.extended
async def test_the_javascript_program_of_the_readme_runs_as_written(tmp_path: Path) -> None:
    program("node")
    output = await run_as_written(tmp_path, "README.md", "lamp.mjs")
    assert output.startswith("May I") and output.endswith("\nThe lamp in the hall is on\n")


async def test_the_python_program_of_its_page_runs_as_written(tmp_path: Path) -> None:
    output = await run_as_written(tmp_path, "docs/clients/python.md", "lamp.py")
    assert re.fullmatch(r".*\blamp\b.*\bon\b.*\n", output)


async def test_the_program_of_the_first_voice_app_runs_as_written(tmp_path: Path) -> None:
    output = await run_as_written(tmp_path, "docs/your-first-voice-app.md", "app.py")
    card, *others = output.splitlines()
    assert card.startswith("card: May I") and others[-2] == "the lamp in the hall is on"
    assert others[-1].startswith("voice: ")


@pytest.mark.parametrize(
    ("name", "output"), [("embedded.py", "17% of 2340 is 397.8."), ("test_voice.py", "1 passed")]
)
async def test_the_server_runs_in_another_program_and_in_its_tests(
    tmp_path: Path, name: str, output: str
) -> None:
    assert output in await run_as_written(tmp_path, "docs/embedding.md", name)


def test_the_programs_of_the_pages_are_short() -> None:
    texts = [
        text
        for page in ("README.md", "docs/clients/python.md", "docs/your-first-voice-app.md")
        for text, _ in programs(page).values()
    ]
    assert len(texts) == 3
    assert all(text.count("\n") <= 70 for text in texts)


def test_the_frames_of_the_documents_are_valid() -> None:
    text = (ROOT / "docs" / "your-first-voice-app.md").read_text(encoding="utf-8")
    (frame,) = re.findall(r"^```json\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert decode_event(frame.replace("\n", "").encode()).type == "session.start"
    events = {event.type: event for direction in ("client", "server") for event in sent_by(direction)}
    frames = re.findall(r"^[→←] (\S+) +(\{.*\})$", text, re.MULTILINE)
    assert len(frames) > 10
    for event_type, payload in frames:
        schema = PAYLOADS[events[event_type].struct.__name__]
        fields = json.loads(payload)
        assert set(fields) <= set(schema["properties"]), payload
        assert set(schema["required"]) <= set(fields), payload


@pytest.mark.parametrize("folder", ["conversation", "session", "events", "server"])
def test_the_page_on_architecture_names_every_module_of_the_core(folder: str) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(rf"^\| (`{folder}/.*?) \|", text, re.MULTILINE)
    names = [name.removeprefix(f"{folder}/") for row in rows for name in re.findall(r"`([^`]+)`", row)]
    modules = {path.stem for path in (ROOT / "conductor" / folder).glob("*.py")} - {"__init__"}
    assert sorted(names) == sorted(modules)
