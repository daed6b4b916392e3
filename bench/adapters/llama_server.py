"""llama.cpp through its own llama-server over HTTP, token ids in and out. The model is a GGUF file.

Options: server (path of llama-server), threads, fa (auto, on, off), extra (more arguments), and kv:
    streams   one KV stream per slot, prompt cache in RAM off
    unified   one KV cache for all slots, prompt cache on
    default   nothing said; with a number of slots that is streams too, prompt cache on
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

KV_ARGUMENTS = {"streams": ["--no-kv-unified", "--cache-ram", "0"], "unified": ["--kv-unified"], "default": []}
START_TIMEOUT_S = 60


class Engine:
    def __init__(
        self,
        model: str,
        server: str = "llama-server",
        threads: str = "",
        kv: str = "streams",
        fa: str = "auto",
        extra: str = "",
    ) -> None:
        threads = threads or str(len(os.sched_getaffinity(0)))
        self.command = [server, "-m", model, "--host", "127.0.0.1", "-t", threads, "-tb", threads, "-fa", fa]
        self.command += ["-b", "2048", "-ub", "512", "--no-webui", "--no-warmup", "-fit", "off"]
        self.command += [*KV_ARGUMENTS[kv], *extra.split()]
        self.process: subprocess.Popen[bytes] | None = None

    def prepare(self, case: Any) -> None:
        """A server sized for this case: one slot per request."""
        self.close()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        slot_len = (case.max_len + 32 + 255) // 256 * 256  # llama.cpp rounds a slot's context to 256
        num_slots = case.num_requests
        sizes = ["--port", str(self.port), "-np", str(num_slots), "-c", str(slot_len * num_slots)]
        self.process = subprocess.Popen([*self.command, *sizes])
        self.pool = ThreadPoolExecutor(num_slots)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_healthy():
            if self.process.poll() is not None:
                raise RuntimeError(f"llama-server ended with status {self.process.returncode}")
            if time.monotonic() > deadline:
                raise RuntimeError("llama-server did not start")
            time.sleep(0.01)

    def _is_healthy(self) -> bool:
        try:
            return self._request("GET", "/health", None)[0] == 200
        except OSError:
            return False

    def _request(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=900)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _one(self, prompt: list[int], new_len: int) -> list[int]:
        body = {"prompt": prompt, "n_predict": new_len, "ignore_eos": True, "temperature": 0.0, "top_k": 1}
        body |= {"samplers": ["top_k"], "return_tokens": True, "cache_prompt": True, "stream": False}
        status, answer = self._request("POST", "/completion", body)
        if status != 200:
            raise RuntimeError(answer[:200])
        tokens: list[int] = json.loads(answer)["tokens"]
        return tokens

    def generate(self, prompts: list[list[int]], new_len: int) -> list[list[int]]:
        return list(self.pool.map(lambda prompt: self._one(prompt, new_len), prompts))

    def close(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
            self.process = None
