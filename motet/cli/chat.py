"""`motet chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from motet.cli.answers import stream
from motet.cli.engine import open_engine
from motet.cli.flags import Given, with_flags
from motet.cli.options import CHAT_SAMPLING, ENGINE
from motet.cli.prompts import PromptMaker, PromptStyle, read_template, sampling_defaults
from motet.cli.terminal import BOLD, YELLOW, has_colour, note, report_error, write_now
from motet.core.errors import InputError, RequestError
from motet.core.params import SamplingParams

if TYPE_CHECKING:
    from motet.engine.engine import Engine

HELP = """/system TEXT  set the system message (alone: remove it) and begin again
/reset        forget the conversation
/help         this list
/exit         leave, as Ctrl-D does
Ctrl-C stops an answer; twice in a row, it leaves."""
# Room that is kept for an answer: so many tokens, or this share of a small context.
ANSWER_ROOM, ANSWER_SHARE = 256, 4


class Conversation:
    """Messages so far, and one engine that answers them. The prefix cache makes each turn cost only what is new."""

    def __init__(self, engine: Engine, params: SamplingParams, prompts: PromptMaker, system: str | None) -> None:
        self._engine = engine
        self._params = params
        self._prompts = prompts
        self.system = system
        self._turns: list[tuple[str, str]] = []

    def reset(self) -> None:
        self._turns = []

    def ask(self, text: str) -> tuple[bool, str]:
        """Stream the answer to `text`. A stopped one stays in the conversation, too.

        Returns whether Ctrl-C stopped it, and a line about it. Raises InputError, RequestError.
        """
        num_forgotten = self._make_room(text)
        prompt = self._prompts.from_messages(self._messages(text))
        answer = stream(self._engine, prompt, self._params, write_now)
        write_now("\n")
        self._turns.append((text, answer.texts[0]))
        forgotten = f", {num_forgotten} earliest turns no longer fit the context" if num_forgotten else ""
        return answer.finish_reason == "abort", answer.summary() + forgotten

    def _messages(self, text: str) -> list[dict[str, Any]]:
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for question, answer in self._turns:
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return [*messages, {"role": "user", "content": text}]

    def _make_room(self, text: str) -> int:
        """Drop the earliest turns until `text` and an answer fit; returns how many."""
        max_model_len = self._engine.facts.max_model_len
        limit = max_model_len - min(ANSWER_ROOM, max_model_len // ANSWER_SHARE)
        num_turns = len(self._turns)
        while self._turns and self._num_tokens(text) > limit:
            del self._turns[0]
        return num_turns - len(self._turns)

    def _num_tokens(self, text: str) -> int:
        prompt = self._prompts.from_messages(self._messages(text))
        assert isinstance(prompt, dict)
        return len(prompt["prompt_token_ids"])


@with_flags(sampling=CHAT_SAMPLING, engine=ENGINE)
def chat(
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="System message.")] = None,
    chat_template: Annotated[
        str | None, typer.Option("--chat-template", metavar="FILE", help="A jinja2 file, instead of the model's own.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No line about speed after an answer.")] = False,
    *,
    sampling: Given,
    engine: Given,
) -> None:
    """Talk to a model. It remembers the conversation; /help lists what else can be typed."""
    SamplingParams(**sampling)  # refuses bad values before anything is loaded
    style = PromptStyle(chat_template=read_template(chat_template))
    opened = open_engine(engine)
    prompts = PromptMaker(opened.facts.tokenizer, style)
    if not prompts.has_template:
        raise InputError("this model has no chat template; give --chat-template FILE, or use `motet generate --raw`")
    if sys.stdin.isatty():
        import readline  # noqa: F401  line editing and history for input()

        note(f"{opened.config.model.model}, context {opened.facts.max_model_len} tokens. /help lists commands.")
    _talk(Conversation(opened, sampling_defaults(opened, sampling), prompts, system), quiet)


def _talk(conversation: Conversation, quiet: bool) -> None:
    """Until the end of input, /exit, or a second Ctrl-C in a row."""
    was_interrupted = False
    while True:
        try:
            text = _read()
        except KeyboardInterrupt:
            write_now("\n")
            if was_interrupted:
                return
            note("Ctrl-C again leaves.")
            was_interrupted = True
            continue
        was_interrupted = False
        if text is None:
            return
        if text and not _obey(conversation, text):
            was_interrupted = _ask(conversation, text, quiet)


def _ask(conversation: Conversation, text: str, quiet: bool) -> bool:
    """Whether Ctrl-C stopped the answer."""
    try:
        was_stopped, summary = conversation.ask(text)
    except (InputError, RequestError) as error:  # of this question alone: the talk goes on
        report_error(str(error))
        return False
    if not quiet:
        note(summary + "\n" if sys.stdin.isatty() else summary)
    return was_stopped


def _read() -> str | None:
    """The next line, None at the end of input."""
    is_terminal = sys.stdin.isatty()
    # \x01 and \x02 tell readline what takes no width.
    prompt = f"\x01\x1b[{BOLD}m\x02> \x01\x1b[0m\x02" if has_colour(sys.stdout) else "> "
    try:
        return input(prompt if is_terminal else "").strip()
    except EOFError:
        write_now("\n" if is_terminal else "")
        return None


def _obey(conversation: Conversation, text: str) -> bool:
    """Carry out a command; False when `text` is none."""
    if not text.startswith("/"):
        return False
    command, _, rest = text.partition(" ")
    if command in ("/exit", "/quit", "/bye"):
        raise typer.Exit
    if command == "/help":
        note(HELP)
    elif command == "/reset":
        conversation.reset()
        note("The conversation begins again.")
    elif command == "/system":
        conversation.system = rest.strip() or None
        conversation.reset()
        note("System message set; the conversation begins again." if rest.strip() else "No system message any more.")
    else:
        note(f"Unknown command {command}; /help lists them.", YELLOW)
    return True
