"""Command-line flags made from the fields of a struct, so that an option is defined in one place only.

A command declares keyword parameters of type `Given`; `with_flags` replaces each by the flags of its group, and hands
the command a dict of those that the user gave, converted and checked against the field's own type.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

import msgspec
import typer

Given = dict[str, Any]
Command = Callable[..., None]

METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", dict: "JSON"}
WANTED = {int: "a whole number", float: "a number", str: "text", dict: "a JSON object"}


@dataclass(frozen=True)
class Flag:
    """One flag. `names` come first: the field's own, then others that mean the same.

    kind: the type of a value (of one element, if `many`); many: may be given repeatedly; hidden: not in the help
    """

    field: str
    names: tuple[str, ...]
    type: Any
    kind: type
    help: str
    shown_default: str | None = None
    many: bool = False
    hidden: bool = False
    envvar: str | None = None

    @property
    def is_switch(self) -> bool:
        return self.kind is bool and not self.many

    def parameter(self, panel: str) -> inspect.Parameter:
        """As typer wants it. The default is always None: the struct's defaults are applied by the struct."""
        names = ["/".join((name, f"--no-{name[2:]}")) if self.is_switch else name for name in self.names]
        option = typer.Option(
            *names,
            help=f"{self.help} [{self.shown_default}]" if self.shown_default else self.help,
            show_default=False,
            metavar=None if self.is_switch else METAVARS.get(self.kind, "TEXT"),
            rich_help_panel=panel,
            hidden=self.hidden,
            envvar=self.envvar,
        )
        kind: Any = bool if self.is_switch else list[str] if self.many else str
        return inspect.Parameter(
            self.field, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
        )

    def convert(self, value: Any) -> Any:
        """Raises typer.BadParameter that names the flag."""
        if self.is_switch:
            return value
        if self.many:
            parts = value if self.kind is str else [part for text in value for part in text.split(",")]
            return [self._scalar(part) for part in parts]
        return self._scalar(value)

    def _scalar(self, text: str) -> Any:
        try:
            if self.kind is dict:
                return msgspec.json.decode(text, type=self.type)
            return msgspec.convert(text, self.kind if self.many else self.type, strict=False)
        except (msgspec.ValidationError, msgspec.DecodeError):
            wanted = WANTED.get(self.kind, "text")
            raise typer.BadParameter(f"must be {wanted}, got {text!r}", param_hint=self.names[0]) from None


@dataclass(frozen=True)
class FlagGroup:
    """The flags of `struct`'s fields, without those in `excluded`.

    help: a line for each field; also_called: other names, each with the field it stands for
    defaults: values that the command line gives to fields that were not given
    shown: what the help says about the default, where it is not the field's own
    variables: environment variables that can set a field
    accepted: options that `struct` knows without having a field, with harmless values; they get hidden flags, so that
        whoever brings them hears what `struct` has to say
    """

    panel: str
    struct: type[msgspec.Struct]
    help: Mapping[str, str]
    excluded: frozenset[str] = frozenset()
    also_called: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    shown: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    accepted: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def flags(self) -> Iterable[Flag]:
        for item in msgspec.structs.fields(self.struct):
            if item.name not in self.excluded:
                yield self._flag(item)
        for name, neutral in self.accepted.items():
            kind = bool if any(isinstance(value, bool) for value in neutral) else str
            yield Flag(name, (spell(name),), Any, kind, "not supported yet", hidden=True)

    def _flag(self, item: Any) -> Flag:
        others = [spell(other) for other, name in self.also_called.items() if name == item.name]
        kind, many = _kind(item.type)
        return Flag(
            field=item.name,
            names=(spell(item.name), *others),
            type=item.type,
            kind=kind,
            help=self.help.get(item.name, ""),
            shown_default=self.shown.get(item.name) or _shown(self.defaults.get(item.name, item.default)),
            many=many,
            envvar=self.variables.get(item.name),
        )

    def collect(self, values: Given) -> Given:
        """Take this group's flags out of `values`; returns those that were given, and the group's defaults."""
        found: Given = dict(self.defaults)
        for flag in self.flags():
            value = values.pop(flag.field)
            if value is not None and value != [] and value != ():  # an unused list is None or empty, by typer's version
                found[flag.field] = _guess(value) if flag.hidden else flag.convert(value)
        return found


def with_flags(**groups: FlagGroup) -> Callable[[Command], Command]:
    """Replace the parameters named like `groups` by the flags of these groups."""

    def decorate(command: Command) -> Command:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name not in groups]
        made = [flag.parameter(group.panel) for group in groups.values() for flag in group.flags()]

        @wraps(command)
        def run(**values: Any) -> None:
            given = {name: group.collect(values) for name, group in groups.items()}
            command(**values, **given)

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *made)]
        # typer reads both; neither is a declared attribute of a function's type.
        run.__dict__["__signature__"] = inspect.Signature(parameters)
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


def spell(name: str) -> str:
    """max_tokens -> --max-tokens"""
    return "--" + name.replace("_", "-")


def _kind(annotation: Any) -> tuple[type, bool]:
    """The type of one value, and whether there can be many: `str | list[str] | None` is (str, True)."""
    members = [member for member in get_args(annotation) or (annotation,) if member is not NoneType]
    if get_origin(annotation) in (list, dict):
        members = [annotation]
    lists = [member for member in members if get_origin(member) is list]
    if lists:
        return get_args(lists[0])[0], True
    return get_origin(members[0]) or members[0], False


def _shown(default: Any) -> str | None:
    if default is None or default is msgspec.NODEFAULT:
        return None
    if isinstance(default, bool):
        return "on" if default else None
    return str(default)


def _guess(value: Any) -> Any:
    try:
        return json.loads(value)
    except (TypeError, ValueError):
        return value
