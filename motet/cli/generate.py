"""`motet generate`: one prompt, streamed to the terminal, or a file of prompts."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from motet.cli.answers import stream
from motet.cli.batch import run_file
from motet.cli.engine import open_engine
from motet.cli.flags import Given, with_flags
from motet.cli.options import ENGINE, SAMPLING
from motet.cli.prompts import make_prompts, read_template, sampling_defaults
from motet.cli.terminal import note, write_now
from motet.core.params import SamplingParams


@with_flags(sampling=SAMPLING, engine=ENGINE)
def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - reads it from standard input.")] = None,
    input: Annotated[
        str | None,
        typer.Option("--input", metavar="FILE", help="JSON lines with one prompt each; - is standard input."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", metavar="FILE", help="Where answers to --input go. Default: standard output."),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text of the prompt, without the model's chat template.")
    ] = False,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="System message.")] = None,
    chat_template: Annotated[
        str | None, typer.Option("--chat-template", metavar="FILE", help="A jinja2 file, instead of the model's own.")
    ] = None,
    token_ids: Annotated[bool, typer.Option("--token-ids", help="Write token ids to the output file, too.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No speed, no progress: only answers and errors.")
    ] = False,
    *,
    sampling: Given,
    engine: Given,
) -> None:
    """Answer a prompt, or every prompt of a file.

    A prompt is put to the model as a user's message, through its chat template, if it has one; --raw continues the text
    as it stands. Sampling follows the model's generation_config.json; where it recommends nothing, temperature is 0.7 and
    top_p 0.9.

    Lines of --input are JSON: a string, or an object with "prompt", "prompt_token_ids" or "messages", and optionally an
    "id" and sampling parameters of its own ("max_tokens": 20). Answers are written in the same order. A bad line gets an
    "error" in its answer, the others are not affected, and the exit status is 1.
    """
    if (prompt is None) == (input is None):
        raise typer.BadParameter("give a prompt or --input FILE, and not both", param_hint="PROMPT")
    SamplingParams(**sampling)  # refuses bad values before anything is loaded
    if input is not None:
        template = read_template(chat_template)
        run_file(
            input, output, engine, sampling, raw=raw, system=system, template=template, token_ids=token_ids, quiet=quiet
        )
        return
    for name, given in (("--output", output), ("--token-ids", token_ids), *_file_only(sampling)):
        if given:
            raise typer.BadParameter("is for --input FILE", param_hint=name)
    _answer(sys.stdin.read() if prompt == "-" else prompt or "", engine, sampling, raw, system, chat_template, quiet)


def _file_only(sampling: Given) -> list[tuple[str, bool]]:
    """What a terminal has no place for."""
    return [("--logprobs", "logprobs" in sampling), ("--prompt-logprobs", "prompt_logprobs" in sampling)]
