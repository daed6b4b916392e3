"""Offline use: `LLM`, with vLLM's names."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any, NoReturn

from motet.core.config import EngineArgs
from motet.core.errors import EngineDeadError, InputError, UnsupportedError
from motet.core.lora import LoadedAdapter, LoRARequest
from motet.core.outputs import RequestOutput
from motet.core.params import RequestOutputKind, SamplingParams
from motet.engine.engine import Engine
from motet.engine.inputs import Prompt, own_params
from motet.text.tokenizer import Tokenizer

Messages = list[dict[str, Any]]


class LLM:
    """A model and an engine in this process.

    model: a folder, a GGUF file, the name of a packaged model ("smollm2") or a hub id; options: EngineArgs' fields.
    Raises ConfigError, UnsupportedError, LoadError or CapacityError.
    """

    def __init__(self, model: str, **options: Any) -> None:
        self.engine = Engine(EngineArgs.from_options({"model": model, **options}).resolve())

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        priority: list[int] | None = None,
    ) -> list[RequestOutput]:
        """Answer all prompts; outputs come in the order of the prompts.

        prompts: texts, lists of token ids, or dicts with `prompt` or `prompt_token_ids` and optionally `cache_salt`.
        lora_request: the adapter of all prompts, or one (or None) for each.
        A prompt or parameter that cannot be served raises InputError before anything runs. A request that fails while
        it runs has finish_reason "error"; the others are not affected.
        """
        prompt_list = _as_list(prompts)
        params_list = self._params_list(sampling_params, len(prompt_list))
        priorities = priority or [0] * len(prompt_list)
        if len(priorities) != len(prompt_list):
            raise InputError(f"{len(prompt_list)} prompts, but {len(priorities)} priorities")
        engine = self.engine
        parsed = [engine.parse(prompt, params) for prompt, params in zip(prompt_list, params_list, strict=True)]
        adapters = self._adapters(lora_request, len(parsed))
        keys: list[str] = []
        done: dict[str, RequestOutput] = {}
        try:
            for prompt, params, urgency, adapter in zip(parsed, params_list, priorities, adapters, strict=True):
                keys.append(engine.add(prompt, params, priority=urgency, adapter=adapter))
            with _progress(len(parsed), use_tqdm) as advance:
                while engine.has_work:
                    for key, output in engine.step():
                        done[key] = output
                        advance(len(output.prompt_token_ids), sum(len(answer.token_ids) for answer in output.outputs))
        except EngineDeadError:
            raise
        except BaseException:  # Ctrl-C among them: leave nothing of these requests behind
            with suppress(EngineDeadError):
                engine.abort(keys)
                while engine.has_work:
                    engine.step()
            raise
        return [done[key] for key in keys]

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of several, through the model's chat template."""
        if chat_template_content_format != "auto":
            raise UnsupportedError(f"chat_template_content_format={chat_template_content_format!r} is not supported")
        is_one = isinstance(messages, Mapping) or not messages or isinstance(messages[0], Mapping)
        conversations: list[Messages] = [messages] if is_one else list(messages)  # type: ignore[list-item, arg-type]
        tokenizer = self.get_tokenizer()
        options = {
            "tools": tools,
            "chat_template": chat_template,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            **(chat_template_kwargs or {}),  # which may name one of the above again, as with vLLM
        }
        prompts: list[Prompt] = []
        for conversation in conversations:
            text = tokenizer.apply_chat_template(conversation, **options)
            # The template writes BOS itself where the model wants one.
            prompts.append({"prompt": text, "prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)})
        return self.generate(prompts, sampling_params, use_tqdm, lora_request)

    def _params_list(
        self, params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
    ) -> list[SamplingParams]:
        if params is None:
            params = self.engine.default_params
        params_list = list(params) if isinstance(params, Sequence) else [params] * num_prompts
        if len(params_list) != num_prompts:
            raise InputError(
                f"{num_prompts} prompts, but {len(params_list)} sampling_params; give one, or one per prompt"
            )
        return [own_params(params, RequestOutputKind.FINAL_ONLY) for params in params_list]

    def _adapters(
        self, requests: LoRARequest | Sequence[LoRARequest | None] | None, num_prompts: int
    ) -> list[LoadedAdapter | None]:
        if isinstance(requests, str) or not isinstance(requests, Sequence):
            return [self.engine.adapter(requests)] * num_prompts
        if len(requests) != num_prompts:
            raise InputError(f"{num_prompts} prompts, but {len(requests)} lora_request; give one, or one per prompt")
        return [self.engine.adapter(request) for request in requests]

    def get_tokenizer(self) -> Tokenizer:
        if self.engine.facts.tokenizer is None:
            raise InputError("there is no tokenizer: the engine runs with skip_tokenizer_init=True")
        return self.engine.facts.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The sampling parameters that the model's generation_config.json recommends."""
        return self.engine.default_params.clone()

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix. Returns False while requests hold blocks."""
        return self.engine.reset_prefix_cache()

    def sleep(self, level: int = 1) -> None:
        """Give back the memory of the KV cache (level 1), or of the weights too (level 2), until `wake_up`."""
        self.engine.sleep(level)

    def wake_up(self) -> None:
        self.engine.wake_up()

    def shutdown(self) -> None:
        self.engine.close()

    def _unsupported(self, name: str) -> NoReturn:
        raise UnsupportedError(f"LLM.{name} is not supported: Motet generates text")

    def encode(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._unsupported("encode")

    def embed(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._unsupported("embed")

    def classify(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._unsupported("classify")

    def score(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._unsupported("score")

    def beam_search(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._unsupported("beam_search")


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many: a list of ints is one prompt."""
    if isinstance(prompts, (str, Mapping)) or not isinstance(prompts, Sequence):
        return [prompts]
    if len(prompts) > 0 and isinstance(prompts[0], int):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _progress(total: int, wanted: bool) -> Any:
    """A context that gives a function to call with the prompt and output tokens of each finished request."""
    if not wanted or not sys.stderr.isatty():
        return nullcontext(lambda num_prompt_tokens, num_output_tokens: None)
    from motet.engine.progress import RequestProgress

    return RequestProgress(total)
