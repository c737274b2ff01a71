"""Runs other projects' model servers on loopback: Apple's ``mlx_lm.server`` and llama-cpp-python's server.

They serve the tiny models of ``tiny_models/``, which were trained on a few sentences: they switch a lamp, say
hello, and count to sixty. The servers are installed in an environment of their own, ``build/models``. Without
them the tests are skipped and say so; with ``CI_REQUIRE_MLX=1``, which ``.ci/run`` sets, a skip of MLX's is a
failure. llama-cpp-python compiles for minutes, so nothing installs it by itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT
from tests.services.redis_server import free_port

if TYPE_CHECKING:
    import numpy as np

PYTHON = ROOT / "build" / "models" / "venv" / "bin" / "python"
MODELS = Path(__file__).parent / "tiny_models"
_PACKAGES = {"mlx_lm": "mlx-lm 'mlx[cpu]'", "llama_cpp": "'llama-cpp-python[server]'"}
_REQUIRED = {"mlx_lm": "CI_REQUIRE_MLX"}


@dataclass
class LocalServer:
    """A server that runs. ``base_url`` ends in ``/v1``; ``model`` is the name that it answers to."""

    process: Process
    base_url: str
    model: str


def require(package: str) -> None:
    """Skip the test without the server, or fail where it is required."""
    find = f"import importlib.util, sys; sys.exit(not importlib.util.find_spec({package!r}))"
    if PYTHON.exists() and not subprocess.run([PYTHON, "-c", find]).returncode:
        return
    reason = f"not installed in build/models: build/models/venv/bin/pip install {_PACKAGES[package]}"
    pytest.fail(reason) if os.environ.get(_REQUIRED.get(package, "")) == "1" else pytest.skip(reason)


@asynccontextmanager
async def mlx_server(model: str) -> AsyncIterator[LocalServer]:
    """Run ``mlx_lm.server`` with one of the tiny models."""
    require("mlx_lm")
    folder, port = str(MODELS / model), free_port()
    options = ["--model", folder, "--host", "127.0.0.1", "--port", str(port), "--prefill-step-size", "256"]
    async with _running([PYTHON, "-m", "mlx_lm.server", *options], port, folder) as server:
        yield server


@asynccontextmanager
async def llama_cpp_server(model: str, folder: Path) -> AsyncIterator[LocalServer]:
    """Run ``llama_cpp.server`` with one of the tiny models, which is written into ``folder`` as GGUF."""
    require("llama_cpp")
    path, port = write_gguf(MODELS / model, folder / f"{model}.gguf"), free_port()
    options = ["--model", str(path), "--host", "127.0.0.1", "--port", str(port)]
    options += ["--n_ctx", "4096", "--interrupt_requests", "false", "--n_threads", "1"]
    async with _running([PYTHON, "-m", "llama_cpp.server", *options], port, "tiny") as server:
        yield server


@asynccontextmanager
async def _running(command: Sequence[str | Path], port: int, model: str) -> AsyncIterator[LocalServer]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = await asyncio.create_subprocess_exec(
        *command, stdout=DEVNULL, stderr=DEVNULL, env={**environment, "HF_HUB_OFFLINE": "1"}
    )
    try:
        async with asyncio.timeout(60):
            await _listening(process, port)
        yield LocalServer(process, f"http://127.0.0.1:{port}/v1", model)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _listening(process: Process, port: int) -> None:
    while process.returncode is None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
    raise AssertionError(f"the server ended with code {process.returncode} before it listened")


def write_gguf(folder: Path, path: Path) -> Path:
    """Write a tiny model for llama.cpp."""
    import gguf
    import numpy as np

    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    special = {token["id"] for token in tokenizer["added_tokens"]}
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    heads, width = config["num_attention_heads"], config["hidden_size"]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(width)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(width // heads)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_file_type(0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if number in special else 1 for number in range(len(tokens))])
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template((folder / "chat_template.jinja").read_text())
    for name, values in _tensors(folder / "model.safetensors").items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            # llama.cpp rotates neighbours, these weights rotate halves.
            values = values.reshape(heads, 2, -1, width).swapaxes(1, 2).reshape(values.shape)
        writer.add_tensor(_gguf_name(name), np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(path: Path) -> dict[str, np.ndarray]:
    """Read a file of safetensors: the length of a JSON header, the header, and the half floats."""
    import numpy as np

    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(data[start + begin : start + end], np.float16)
        .reshape(entry["shape"])
        .astype(np.float32)
        for name, entry in header.items()
        for begin, end in [entry["data_offsets"]]
    }


def _gguf_name(name: str) -> str:
    renamed = name.removeprefix("model.")
    for old, new in (
        ("embed_tokens", "token_embd"),
        ("layers.", "blk."),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.", "attn_"),
        ("mlp.", "ffn_"),
        ("_proj", ""),
    ):
        renamed = renamed.replace(old, new)
    return "output_norm.weight" if renamed == "norm.weight" else renamed
