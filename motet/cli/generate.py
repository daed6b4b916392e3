"""`motet generate`: one prompt, streamed to the terminal, or a file of prompts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from motet.cli.answers import stream
from motet.cli.batch import check_output, read_lines, run_lines
from motet.cli.engine import open_engine
from motet.cli.flags import Given, with_flags
from motet.cli.options import ENGINE, SAMPLING
from motet.cli.prompts import PromptMaker, PromptStyle, read_template, sampling_defaults
from motet.cli.terminal import note, write_now
from motet.core.params import SamplingParams

if TYPE_CHECKING:
    from motet.engine.engine import Engine


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

    A prompt is put to the model as a user's message, through its chat template, if it has one; --raw continues the
    text as it stands. Sampling follows the model's generation_config.json; where it recommends nothing, temperature is
    0.7 and top_p 0.9.

    Lines of --input are JSON: a string, or an object with "prompt", "prompt_token_ids" or "messages", and optionally
    an "id" and sampling parameters of its own ("max_tokens": 20). Answers are written in the same order. A bad line
    gets an "error" in its answer, the others are not affected, and the exit status is 1.
    """
    if (prompt is None) == (input is None):
        raise typer.BadParameter("give a prompt or --input FILE, and not both")
    SamplingParams(**sampling)  # refuses bad values before anything is loaded
    style = PromptStyle(raw, system, read_template(chat_template))
    if input is not None:
        check_output(input, output)
        lines = read_lines(input)
        opened = open_engine(engine)
        prompts, params = PromptMaker(opened.facts.tokenizer, style), sampling_defaults(opened, sampling)
        if run_lines(opened, prompts, params, lines, output, token_ids, quiet).num_failed:
            raise typer.Exit(1)
        return
    for name, is_given in (("--output", output), ("--token-ids", token_ids), *_file_only(sampling)):
        if is_given:
            raise typer.BadParameter("is for --input FILE", param_hint=name)
    _answer(open_engine(engine), style, sys.stdin.read() if prompt == "-" else str(prompt), sampling, quiet)


def _file_only(sampling: Given) -> list[tuple[str, bool]]:
    """What a terminal has no place for."""
    return [("--logprobs", "logprobs" in sampling), ("--prompt-logprobs", "prompt_logprobs" in sampling)]


def _answer(engine: Engine, style: PromptStyle, text: str, sampling: Given, quiet: bool) -> None:
    """Stream one answer; several are printed one after the other when all are there."""
    params = sampling_defaults(engine, sampling)
    prompt = PromptMaker(engine.facts.tokenizer, style).from_text(text)
    answer = stream(engine, prompt, params, write_now if params.n == 1 else lambda piece: None)
    if params.n > 1:
        for number, whole in enumerate(answer.texts, start=1):
            write_now(f"[{number}] {whole.strip()}\n")
    elif not answer.texts[0].endswith("\n"):
        write_now("\n")
    if not quiet:
        note(answer.summary())
    if answer.finish_reason == "abort":
        raise KeyboardInterrupt
