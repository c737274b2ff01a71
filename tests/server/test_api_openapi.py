"""The OpenAPI document: valid, complete, and good enough for a generated client."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from conductor.models.base import TextDelta
from conductor.plugins.api.openapi import openapi_of
from conductor.plugins.api.routes import ROUTES
from tests.conftest import ROOT
from tests.server.api import KEYS, backend
from tests.stand_ins.programs import launched
from tests.system.clients.programs import STARTING, missing

TOOLS = ROOT / "build" / "openapi" / "venv" / "bin"


async def run(*command: str | Path, folder: Path) -> str:
    """Run a program of the venv; its test is skipped without it."""
    if not (TOOLS / "openapi-python-client").exists():
        missing("openapi-python-client")
    pipe, same = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
    async with launched(*command, cwd=folder, stdout=pipe, stderr=same) as process:
        output, _ = await asyncio.wait_for(process.communicate(), STARTING)
    assert process.returncode == 0, output.decode()
    return output.decode()


async def test_the_server_gives_the_document() -> None:
    async with backend() as served:
        answer = await served.ask("GET", "/v1/openapi.json", key="read")
        assert answer.body == json.loads(json.dumps(openapi_of(ROUTES)))


def test_every_endpoint_has_its_scope_its_parameters_and_a_summary() -> None:
    document = openapi_of(ROUTES)
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert len(operations) == len(ROUTES)
    assert len({operation["operationId"] for operation in operations}) == len(ROUTES)
    for operation, route in zip(operations, sorted(ROUTES, key=lambda r: _place(r.path)), strict=True):
        assert f"`{route.scope}`" in operation["description"] and operation["summary"].endswith(".")
    references = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(document)))
    assert references == set(document["components"]["schemas"])


def _place(path: str) -> int:
    return list(dict.fromkeys(route.path for route in ROUTES)).index(path)


@pytest.mark.extended
async def test_the_document_is_valid_and_a_generated_client_works(tmp_path: Path) -> None:
    (tmp_path / "openapi.json").write_text(json.dumps(openapi_of(ROUTES)))
    await run(TOOLS / "openapi-spec-validator", "openapi.json", folder=tmp_path)
    generate = ("generate", "--path", "openapi.json", "--meta", "none", "--output-path", "generated")
    await run(TOOLS / "openapi-python-client", *generate, folder=tmp_path)
    async with backend([[TextDelta("Good morning.")]]) as served, served.phone() as phone:
        await phone.ask("Hello.")
        (tmp_path / "program.py").write_text(
            f"""
from generated import AuthenticatedClient
from generated.api.default import list_sessions, say, show_session
from generated.models import TextBody

client = AuthenticatedClient("http://127.0.0.1:{served.listener.port}", token="{KEYS["all"]}")
(session,) = list_sessions.sync(client=client, limit=5).sessions
print(session.id, [message.text for message in show_session.sync(session.id, client=client).history])
print(say.sync(session.id, client=client, body=TextBody("Bye."), idempotency_key="a").repeated)
"""
        )
        output = await run(TOOLS / "python", "program.py", folder=tmp_path)
        assert output == "s-1 ['Hello.', 'Good morning.']\nFalse\n"
        await phone.until("assistant.speech.final", text="Bye.")
