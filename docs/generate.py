"""Rewrites the generated parts of docs/: `make docs`. With --check, only says whether they differ.

A part stands between `<!-- generated: NAME -->` or `<!-- generated: NAME ARGUMENT -->` and
`<!-- end -->`.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
PART = re.compile(r"(<!-- generated: (\w+)(?: (\w+))? -->\n).*?(<!-- end -->)", re.DOTALL)
HEAD_ROWS, TAIL_ROWS = 19, 12  # lines shown of a plan: to the end of the first layer, and the end


def commands() -> dict[str, Any]:
    """The commands by name, as the parser sees them."""
    from typer.main import get_command

    from llama3jit.cli.app import build

    group: Any = get_command(build())
    found: dict[str, Any] = dict(group.commands)
    return found


def usage(parameter: Any) -> str:
    """`--top-k` with its other names, or an argument's name."""
    if parameter.param_type_name == "argument":
        return f"`{(parameter.metavar or parameter.name).upper()}`"
    return " ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))


def cell(text: str | None) -> str:
    """Text that fits into a table."""
    return " ".join((text or "").split()).replace("|", "\\|")


def command_part(name: str) -> str:
    """What a command does, and a table of what it takes."""
    command = commands()[name]
    lines = [command.help.strip(), "", "| argument or option | meaning |", "| --- | --- |"]
    lines += [f"| {cell(usage(each))} | {cell(each.help)} |" for each in command.params]
    return "\n".join(lines) + "\n"


def variable_table() -> str:
    """Every variable that stands for an option, and the commands that read it."""
    readers: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, command in commands().items():
        for parameter in command.params:
            if parameter.envvar:
                readers[parameter.envvar, usage(parameter)].append(name)
    lines = ["| variable | stands for | commands |", "| --- | --- | --- |"]
    for (variable, what), names in sorted(readers.items()):
        lines.append(f"| `{variable}` | {cell(what)} | {', '.join(names)} |")
    return "\n".join(lines) + "\n"


def plan_table() -> str | None:
    """The first layer and the end of the default model's plan; None without the model."""
    from llama3jit.errors import ModelNotFoundError
    from llama3jit.files.catalogue import DEFAULT_MODEL
    from llama3jit.files.gguf import open_gguf
    from llama3jit.files.store import resolve
    from llama3jit.model.build import build_plan
    from llama3jit.model.config import read_config
    from llama3jit.model.plan import format_plan

    try:
        path = resolve(DEFAULT_MODEL)
    except ModelNotFoundError:
        return None
    with open_gguf(path) as gguf:
        rows = format_plan(build_plan(read_config(gguf), gguf.tensors)).splitlines()
    left_out = len(rows) - HEAD_ROWS - TAIL_ROWS
    shown = [*rows[:HEAD_ROWS], f"     ... {left_out} rows ...", *rows[-TAIL_ROWS:]]
    return "\n".join(["```", *(row.rstrip() for row in shown), "```"]) + "\n"


def format_table() -> str:
    """Every block format that runs: its size, its layout, and what multiplies by it on the CPU."""
    from kernels_cpu import TUNED
    from llama3jit.files.formats import FORMATS
    from llama3jit.ops.dequantise import FORMATS as READ

    lines = ["| type | bits a weight | values | bytes | layout | kernels |"]
    lines.append("| --- | --: | --: | --: | --- | --- |")
    for variant, functions in READ.items():
        form = FORMATS[variant.upper()]
        bits = 8 * form.block_bytes / form.block_size
        tuned = [
            activations
            for op, activations in (("matmul_int8", "int8"), ("matmul", "float32"))
            if variant in TUNED[op][1]
        ]
        kernels = f"tuned: {', '.join(tuned)}" if tuned else "portable"
        sizes = f"{bits:g} | {form.block_size} | {form.block_bytes}"
        layout = cell(functions["dequantise"].__doc__)
        lines.append(f"| {form.name} | {sizes} | {layout} | {kernels} |")
    return "\n".join(lines) + "\n"


WRITERS: dict[str, Callable[..., str | None]] = {
    "command": command_part,
    "variables": variable_table,
    "plan": plan_table,
    "formats": format_table,
}


def rewritten(text: str) -> str:
    """A page with its generated parts made anew; a part that cannot be made stays."""

    def part(match: re.Match[str]) -> str:
        made = WRITERS[match[2]](*filter(None, [match[3]]))
        return match[0] if made is None else match[1] + made + match[4]

    return PART.sub(part, text)


def main() -> int:
    differs = []
    for page in sorted(DOCS.glob("*.md")):
        old = page.read_text(encoding="utf-8")
        new = rewritten(old)
        if new != old:
            differs.append(page.name)
            if "--check" not in sys.argv:
                page.write_text(new, encoding="utf-8")
    print(f"{'differ' if '--check' in sys.argv else 'rewritten'}: {', '.join(differs) or 'none'}")
    return int("--check" in sys.argv and bool(differs))


if __name__ == "__main__":
    sys.exit(main())
