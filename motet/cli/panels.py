"""Help with the options of a command under headings, in plain text."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class PanelCommand(TyperCommand):
    def format_options(self, ctx: Any, formatter: Any) -> None:
        """One section for each panel, in the order of first mention; the command's own options come first."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                title = "Arguments" if parameter.param_type_name == "argument" else "Options"
                panels.setdefault(vars(parameter).get("rich_help_panel") or title, []).append(record)
        for title, records in panels.items():
            with formatter.section(title):
                formatter.write_dl(records)
