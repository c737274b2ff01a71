"""Run pipecat's worker behind a voice of the Live API: ``pipecat_worker.py VOICE_URL MODEL_URL``.

Its backend is pipecat's own, too, with the model at the second address. What it hears of the person and its
errors are lines of JSON on standard output. It ends when the person says goodbye, or the voice is lost.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module
from typing import Any


def pipecat(module: str) -> Any:
    """Import a module of pipecat, which is in an environment of its own."""
    return import_module(f"pipecat.{module}")


def tell(**seen: Any) -> None:
    """Write a line."""
    sys.stdout.write(f"{json.dumps(seen)}\n")
    sys.stdout.flush()


async def main(voice_url: str, model_url: str) -> None:
    """Talk until the person says goodbye."""
    import_module("loguru").logger.remove()
    frames = pipecat("frames.frames")
    live = pipecat("services.openai.live.llm").OpenAILiveLLMService
    chat = pipecat("services.openai.llm").OpenAILLMService
    context = pipecat("processors.aggregators.llm_context").LLMContext
    model = chat(api_key="test-key", base_url=model_url, settings=chat.Settings(model="test-model"))
    backend = pipecat("workers.llm.backend_llm_worker").BackendLLMWorker(llm=model)
    voice = live(
        api_key="test-key",
        base_url=voice_url,
        settings=live.Settings(system_instruction="You are the voice."),
        delegation=live.ClientDelegation(backend=backend),
    )
    pipeline = pipecat("pipeline.pipeline").Pipeline([voice])
    worker = pipecat("pipeline.worker").PipelineWorker(pipeline, enable_rtvi=False)
    worker.set_reached_upstream_filter((frames.TranscriptionFrame,))

    @worker.event_handler("on_frame_reached_upstream")  # type: ignore[untyped-decorator]  # of Any
    async def hear(_: Any, frame: Any) -> None:
        tell(heard=frame.text)
        if "goodbye" in frame.text:
            await worker.end()

    @worker.event_handler("on_pipeline_error")  # type: ignore[untyped-decorator]  # of Any
    async def fail(_: Any, frame: Any) -> None:
        tell(error=frame.error, isOver=not frame.processor.is_usable)
        if not frame.processor.is_usable:
            await worker.cancel()

    history = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello, you."}]
    await worker.queue_frame(frames.LLMContextFrame(context(history)))
    runner = pipecat("workers.runner").WorkerRunner()
    await runner.add_workers(worker)
    await runner.run()


asyncio.run(main(*sys.argv[1:]))
