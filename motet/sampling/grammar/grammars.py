"""Grammars of an engine: from a client's parameters to what follows a row."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NoReturn, Protocol, TypeVar

from motet.core.config import StructuredOutputsConfig
from motet.core.errors import InputError
from motet.core.structured import GrammarSpec, StructuredOutputsParams
from motet.sampling.grammar.protocol import Grammar, GrammarBackend, GrammarMatcher, Vocabulary
from motet.sampling.grammar.rows import RowGrammar
from motet.sampling.grammar.trial import Trial

NUM_KEPT = 128  # specs, and compiled grammars, of which clients may send many
NUM_THREADS = 2  # fill masks while the forward runs
K = TypeVar("K")
V = TypeVar("V")


class Grammars(Protocol):
    def check(self, params: StructuredOutputsParams) -> str:
        """The grammar for RowSampling, once it is known to be harmless. Takes up to seconds. Raises InputError."""

    def open(self, grammar: str) -> RowGrammar:
        """Follow a new row. Returns at once; what fails is that row's error."""

    def close(self) -> None: ...


class NoGrammars:
    """For an engine that cannot have any, for the reason given."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def check(self, params: StructuredOutputsParams) -> NoReturn:
        raise InputError(f"structured_outputs {self.reason}")

    def open(self, grammar: str) -> NoReturn:
        raise InputError(f"structured_outputs {self.reason}")

    def close(self) -> None:
        pass


NO_GRAMMARS = NoGrammars("need a tokenizer, but the engine runs with skip_tokenizer_init=True")


class CompiledGrammars:
    """Tries each spec once, compiles each grammar once. Threads, helper and backend start with the first of them."""

    def __init__(
        self,
        config: StructuredOutputsConfig,
        vocabulary: Callable[[], Vocabulary],
        make_backend: Callable[[Vocabulary], GrammarBackend],
    ) -> None:
        """vocabulary: may raise InputError; called once at most."""
        self._config = config
        self._make_vocabulary, self._make_backend = vocabulary, make_backend
        self._lock = threading.RLock()
        self._vocabulary: Vocabulary | None = None
        self._backend: GrammarBackend | None = None
        self._trial = Trial(self._words)
        self._verdicts: Kept[GrammarSpec, str | InputError] = Kept()
        self._compiled: Kept[str, Grammar] = Kept()
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="motet-grammar")

    def check(self, params: StructuredOutputsParams) -> str:
        config = self._config
        spec = params.spec(not config.disable_any_whitespace, not config.disable_additional_properties)
        verdict = self._verdicts.get(spec, self._try)
        if isinstance(verdict, InputError):
            raise InputError(str(verdict))
        return verdict

    def _try(self, spec: GrammarSpec) -> str | InputError:
        try:
            grammar = self._trial.translate(spec)
            self._grammar(grammar)
            return grammar
        except InputError as error:
            return error

    def open(self, grammar: str) -> RowGrammar:
        return RowGrammar(self._pool, lambda: self._matcher(grammar), self._words().num_words)

    def _matcher(self, grammar: str) -> GrammarMatcher:
        return self._grammar(grammar).matcher()

    def _grammar(self, grammar: str) -> Grammar:
        return self._compiled.get(grammar, self._compile)

    def _compile(self, grammar: str) -> Grammar:
        with self._lock:
            if self._backend is None:
                self._backend = self._make_backend(self._words())
        return self._backend.compile(grammar)

    def _words(self) -> Vocabulary:
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = self._make_vocabulary()
            return self._vocabulary

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        self._trial.close()


class Kept(Generic[K, V]):
    """The NUM_KEPT values used last. Two threads may make the same one; they wait for nobody."""

    def __init__(self) -> None:
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K, make: Callable[[K], V]) -> V:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make(key)
        with self._lock:
            self._values[key] = value
            while len(self._values) > NUM_KEPT:
                self._values.popitem(last=False)
        return value
