"""Runs llama.cpp's own server over the tiny model, on loopback, in a child of its own.

Without the package xllamacpp (the extra ``local``) the tests that need it are skipped and say so; with
``CI_REQUIRE_LLAMA=1``, which ``.ci/run`` sets, a skip is a failure.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tests.stand_ins.programs import missing

CONTEXT = 4096

_PROGRAM = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port, params.hostnames = sys.argv[1], 0, ["127.0.0.1"]
params.n_ctx, params.n_parallel, params.verbosity, params.ui = int(sys.argv[2]), 1, 0, False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


def needs_llama_cpp() -> None:
    """Skip the test without llama.cpp, or fail where it is required."""
    for package in ("xllamacpp", "gguf"):
        if find_spec(package) is None:
            missing(f"the Python package {package}", "LLAMA")


@contextmanager
def llama_server(model: Path) -> Iterator[str]:
    """Run the server while the block lasts; gives its address."""
    command = [sys.executable, "-c", _PROGRAM, str(model), str(CONTEXT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().decode().strip()
        finally:
            process.kill()  # freeing a server that served nothing may hang
