"""How long a fresh process takes to its first token, and with what: `motet bench startup`.

The parent starts `python -m motet.cli.startup`, which takes the way of `motet generate` and writes down the time at
each milestone. Both read the clock of the machine, which on Linux is one for all processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Annotated

ENTERED = time.monotonic()

import typer  # noqa: E402  its import is part of what is measured

from motet.cli.flags import Given, spell, with_flags  # noqa: E402
from motet.cli.options import ENGINE  # noqa: E402
from motet.core.errors import LoadError  # noqa: E402

PHASES = {
    "interpreter": "start the interpreter",
    "command_line": "import and read the command line",
    "import_torch": "import torch",
    "import_motet": "import the rest",
    "load": "load the model, warm up",
    "first_step": "tokenise, first step",
}


def measure(engine: Given, prompt: str) -> dict[str, float]:
    """Run one fresh process. Returns seconds by phase, and "total". Raises LoadError with its last line if it fails."""
    command = [sys.executable, "-m", "motet.cli.startup", prompt, *to_arguments(engine)]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise LoadError(lines[-1].removeprefix("error: "))
    times: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    times["interpreter"] = times["entered"] - start
    return {**{phase: times[phase] for phase in PHASES}, "total": times["first_token"] - start}


def to_arguments(given: Given) -> list[str]:
    """Flags that `with_flags` would turn into `given`."""
    words: list[str] = []
    for name, value in given.items():
        if isinstance(value, bool):
            words.append(spell(name if value else f"no_{name}"))
        else:
            words += [spell(name), value if isinstance(value, str) else json.dumps(value)]
    return words


class ImportTimer(PathFinder):
    """Notes how long the first import of `name` takes, from wherever it happens. Goes first in sys.meta_path."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seconds = 0.0

    def find_spec(  # type: ignore[override]  # an instance instead of the class
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def timed(module: ModuleType) -> None:
                start = time.monotonic()
                run(module)
                self.seconds = time.monotonic() - start

            spec.loader.exec_module = timed  # type: ignore[method-assign]
        return spec


@with_flags(engine=ENGINE)
def probe(prompt: Annotated[str, typer.Argument()], *, engine: Given) -> None:
    """Print the milestones of one run as JSON."""
    from motet.cli.answers import stream
    from motet.cli.engine import collector_paused, import_engine
    from motet.cli.prompts import PromptMaker, PromptStyle
    from motet.core.config import EngineArgs
    from motet.core.params import SamplingParams

    config = EngineArgs.from_options(engine).resolve()
    parsed = time.monotonic()
    with collector_paused():
        make = import_engine()
        imported = time.monotonic()
        opened = make(config)
        loaded = time.monotonic()
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    stream(opened, PromptMaker(opened.facts.tokenizer, PromptStyle()).from_text(prompt), params, lambda text: None)
    first_token = time.monotonic()
    torch_s = TORCH.seconds
    print(
        json.dumps(
            {
                "entered": ENTERED,
                "command_line": parsed - ENTERED,
                "import_torch": torch_s,
                "import_motet": imported - parsed - torch_s,
                "load": loaded - imported,
                "first_step": first_token - loaded,
                "first_token": first_token,
            }
        )
    )


TORCH = ImportTimer("torch")

if __name__ == "__main__":
    sys.meta_path.insert(0, TORCH)
    from motet.cli.main import run_app

    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(probe)
    sys.exit(run_app(app, sys.argv[1:]))
