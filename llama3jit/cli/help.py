"""`--help` with the options in groups."""

from typing import Any

from typer.core import TyperCommand


class GroupedCommand(TyperCommand):
    """A command whose help has a section for each group of its options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections, those named in GROUPS after what is in none."""
        from llama3jit.cli.sampling import GROUPS

        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                is_argument = param.param_type_name == "argument"
                group = "Arguments" if is_argument else GROUPS.get(param.name or "", "Options")
                sections.setdefault(group, []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
