"""The `motet` command. Nothing heavy is imported until a command needs it: `motet --help` does not know torch."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from difflib import get_close_matches
from typing import Annotated, Any

import typer

from motet import __version__
from motet.cli.bench import bench_app
from motet.cli.bench_step import step as _step  # noqa: F401  registers itself
from motet.cli.chat import chat
from motet.cli.env import env
from motet.cli.generate import generate
from motet.cli.inspect_model import inspect_model
from motet.cli.panels import PanelCommand
from motet.cli.terminal import report_error
from motet.core.errors import MotetError

INTERRUPTED = 130  # as shells report a process that Ctrl-C has ended
CONTEXT = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="motet",
    help="Motet: an inference engine for language models.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,  # importing rich takes longer than all the rest of `motet --help`
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"motet {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


for _name, _command in (("generate", generate), ("chat", chat), ("inspect", inspect_model), ("env", env)):
    app.command(_name, cls=PanelCommand, context_settings=CONTEXT)(_command)
app.add_typer(bench_app, name="bench")

# The class of every complaint about the command line, wherever this version of typer keeps it.
UsageError: type[Any] = typer.BadParameter.__mro__[1]


def main(argv: list[str] | None = None) -> None:
    """Run one command and end the process: 0, 1 after an error, 2 for a wrong command line, 130 after Ctrl-C."""
    sys.exit(run_app(app, argv))


def run_app(commands: typer.Typer, argv: list[str] | None = None) -> int:
    """Run one command; returns the exit status. Errors that are meant for users become one line on stderr."""
    try:
        status = commands(argv, standalone_mode=False, prog_name="motet")
        sys.stdout.flush()
    except MotetError as error:
        return _fail(str(error))
    except UsageError as error:
        return _usage(error)
    except BrokenPipeError:  # whoever read our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f": {error.filename!r}" if error.filename else ""
        return _fail(f"{error.strerror or error}{where}")
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    if status == INTERRUPTED:
        _leave_interrupted()
    return status if isinstance(status, int) else 0


def _fail(message: str) -> int:
    if logging.getLevelName(os.environ.get("MOTET_LOGGING_LEVEL", "").upper()) == logging.DEBUG:
        traceback.print_exc()
    report_error(message)
    return 1


def _usage(error: Any) -> int:
    """Also for `motet` alone, whose "error" is the help."""
    message = error.format_message().strip()
    if "\n" in message:
        print(message, file=sys.stderr)
        return int(error.exit_code)
    details = vars(error)
    if details.get("possibilities") is not None:
        option = details["option_name"]
        close = get_close_matches(option, details["possibilities"], n=1)
        message = f"unknown option {option}" + (f"; did you mean {close[0]}?" if close else "")
    for opening in ("Invalid value for ", "Invalid value: "):
        message = message.removeprefix(opening)
    command = error.ctx.command_path if error.ctx is not None else "motet"
    report_error(f"{message[:1].lower()}{message[1:].rstrip('.')} (see {command} --help)")
    return int(error.exit_code)


def _leave_interrupted() -> None:
    """End at once: a step that is still running on the runner's thread would hold up a regular exit."""
    report_error("interrupted")
    sys.stdout.flush()
    os._exit(INTERRUPTED)
