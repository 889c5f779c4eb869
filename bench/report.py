"""What every table of bench/ says about where and when it was measured, and how it is kept."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

from llama3jit.bench import cpu_name

HERE = Path(__file__).parent


def commit() -> str:
    """The checkout's, with a + if files differ from it."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=10", "--exclude=*"]
    found = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


def about(**more: object) -> dict[str, str]:
    """Machine, commit and date, and what else is given."""
    return {
        **{key: str(value) for key, value in more.items()},
        "machine": cpu_name(),
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def publish(title: str, text: str, facts: dict[str, str], save: Path | None = None) -> None:
    """Print a table with what there is to know about it; put the same at the end of a file."""
    known = "; ".join(f"{key}: {value}" for key, value in facts.items())
    print(f"{text}\n\n{known}", flush=True)
    if save is not None:
        with save.open("a") as file:
            file.write(f"\n## {title}\n\n{known}\n\n{text}\n")


def table(head: list[str], rows: list[list[str]], words: int = 1) -> str:
    """A table in markdown; all columns but the first `words` are numbers."""
    lines = [head, ["---"] * words + ["---:"] * (len(head) - words), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
