"""Use from asyncio: `AsyncLLM`, in process."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any

from motet.core.config import EngineArgs, EngineConfig
from motet.core.errors import EngineDeadError, MotetError
from motet.core.lora import LoadedAdapter, LoRARequest
from motet.core.outputs import RequestOutput
from motet.core.params import SamplingParams
from motet.engine.engine import Engine
from motet.engine.inputs import ParsedPrompt, Prompt, own_params
from motet.text.tokenizer import Tokenizer


class OutputStream:
    """Carries the outputs of one request from the engine's thread to the event loop that asked for it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[RequestOutput | MotetError] = asyncio.Queue()
        self.key: str | None = None  # set by the engine's thread

    def put(self, item: RequestOutput | MotetError) -> None:
        """From any thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)

    async def get(self) -> RequestOutput:
        item = await self._items.get()
        if isinstance(item, MotetError):
            raise item
        return item


class AsyncLLM:
    """An engine on a thread of its own; any number of coroutines may ask at the same time.

        engine = AsyncLLM.from_options(model="smollm2")
        async for output in engine.generate("Hello", SamplingParams(max_tokens=8), "request-1"):
            print(output.outputs[0].text)

    Leaving the loop early, or cancelling the task, aborts the request.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.engine = Engine(config)
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._streams: dict[str, OutputStream] = {}
        self._death: EngineDeadError | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="motet-engine", daemon=True)
        self._thread.start()

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> AsyncLLM:
        return cls(engine_args.resolve())

    @classmethod
    def from_options(cls, **options: Any) -> AsyncLLM:
        """Options: the fields of EngineArgs."""
        return cls(EngineArgs.from_options(options).resolve())

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs as they come, in the form that `sampling_params.output_kind` says.

        Raises InputError before anything is queued (LoadError, of an adapter), EngineDeadError when the engine stops.
        """
        self._check_alive()
        params = own_params(sampling_params)
        if params.structured_outputs is not None:  # may compile for a second; `parse` finds the verdict again
            await asyncio.to_thread(self.engine.inputs.check_params, params)
        parsed = self.engine.parse(prompt, params)
        adapter = await asyncio.to_thread(self.engine.adapter, lora_request) if lora_request else None
        stream = OutputStream()
        self._commands.put(lambda: self._add(stream, parsed, params, request_id, priority, adapter))
        if self._death is not None:  # it died meanwhile, perhaps without looking at this command
            stream.put(self._death)
        finished = False
        try:
            while not finished:
                output = await stream.get()
                finished = output.finished
                yield output
        finally:
            if not finished:
                self._commands.put(lambda: self._abort(stream))

    async def abort(self, request_id: str) -> None:
        """End every open request of this id; their loops receive a last output with finish_reason "abort"."""
        self._commands.put(lambda: self._abort_id(request_id))

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Read and check an adapter before a request needs it. Raises InputError, LoadError."""
        return await asyncio.to_thread(self.engine.add_lora, lora_request)

    async def remove_lora(self, lora_id: int) -> bool:
        """Forget an adapter; requests that have it go on. False when the id is unknown."""
        return self.engine.remove_lora(lora_id)

    async def list_loras(self) -> set[int]:
        return self.engine.list_loras()

    async def get_tokenizer(self) -> Tokenizer | None:
        return self.engine.facts.tokenizer

    async def check_health(self) -> None:
        """Raises EngineDeadError when the engine has stopped."""
        self._check_alive()

    async def reset_prefix_cache(self) -> None:
        self._commands.put(self._reset_prefix_cache)

    def shutdown(self) -> None:
        """Stop the engine; open requests get EngineDeadError."""
        self._commands.put(self._stop)
        self._thread.join()

    def _check_alive(self) -> None:
        if self._death is not None:
            raise self._death

    # The rest runs on the engine's thread.

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._take_commands()
                for key, output in self.engine.step():
                    self._deliver(key, output)
            self._die(EngineDeadError("the engine was shut down"))
        except EngineDeadError as error:
            self._die(error)
        except BaseException as error:
            self._die(EngineDeadError(f"the engine stopped after an error: {type(error).__name__}: {error}"))
        self.engine.close()

    def _take_commands(self) -> None:
        """All commands that are there; waits for one while there is nothing else to do."""
        while True:
            try:
                self._commands.get(block=not self.engine.has_work and not self._stopping)()
            except queue.Empty:
                return

    def _deliver(self, key: str, output: RequestOutput) -> None:
        stream = self._streams.get(key)
        if stream is not None:
            stream.put(output)
        if output.finished:
            self._streams.pop(key, None)

    def _add(
        self,
        stream: OutputStream,
        prompt: ParsedPrompt,
        params: SamplingParams,
        request_id: str,
        priority: int,
        adapter: LoadedAdapter | None,
    ) -> None:
        if self._death is not None:
            stream.put(self._death)
            return
        try:
            stream.key = self.engine.add(prompt, params, request_id, priority, adapter)
            self._streams[stream.key] = stream
        except MotetError as error:
            stream.put(error)

    def _abort(self, stream: OutputStream) -> None:
        if stream.key is not None:
            for key, output in self.engine.abort([stream.key]):
                self._deliver(key, output)

    def _abort_id(self, request_id: str) -> None:
        for key, output in self.engine.abort(self.engine.keys_of(request_id)):
            self._deliver(key, output)

    def _reset_prefix_cache(self) -> None:
        self.engine.reset_prefix_cache()

    def _stop(self) -> None:
        self._stopping = True

    def _die(self, error: EngineDeadError) -> None:
        self._death = error
        for stream in self._streams.values():
            stream.put(error)
        self._streams.clear()
        while not self._commands.empty():  # requests that were queued too late get the same answer
            self._commands.get_nowait()()
