"""`llama3jit doctor`: this machine, and what will be used of it."""

from llama3jit.cli import options


def doctor(as_json: options.Json = False) -> None:
    """Show what this machine has, what will be used of it, and why."""
    import json

    from llama3jit.doctor import examine

    found = examine()
    if as_json:
        print(json.dumps(found, indent=1))
        return
    for subject, facts in found.items():
        print(subject)
        for name, value in facts.items():
            print(f"  {name}: {_text(value)}")


def _text(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key} ({_text(part)})" for key, part in value.items()) or "nothing"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
