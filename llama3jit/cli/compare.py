"""`llama3jit compare`: a model on the CPU and on the GPU, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from llama3jit.cli import options
from llama3jit.errors import InvalidArgumentError

if TYPE_CHECKING:
    from llama3jit.compare import Comparison

PROMPT = (
    "The history of computing is longer than that of computers. Long before there were machines "
    "that followed a program, people who worked with numbers looked for ways to save effort: "
)


def compare(
    model: options.OptionalModel = None,
    prompt: Annotated[
        str | None, options.option("--prompt", "-p", help="The text to continue.")
    ] = None,
    max_tokens: Annotated[
        int, options.option("--max-tokens", "-n", min=1, help="Tokens to generate. [default: 128]")
    ] = 128,
    devices: Annotated[
        str,
        options.option(
            "--device",
            help="Devices, the first is the measure. [default: cpu,cuda]",
            metavar="LIST",
        ),
    ] = "cpu,cuda",
    json: options.Json = False,
    n_ctx: options.ContextSize = None,
    threads: options.Threads = None,
    kv_dtype: options.KVDtype = "f16",
    precision: options.Precision = "fast",
) -> None:
    """Compare devices: speed, memory, and how far apart their results are.

    Both continue the prompt greedily; then both read the prompt and the first one's text, and their
    logits are compared.
    """
    from dataclasses import asdict
    from json import dumps

    from llama3jit.cli.loading import Progress, model_or_default
    from llama3jit.compare import compare as run

    names = device_names(devices)
    shown = Progress()
    try:
        found = run(
            model_or_default(model),
            names,
            PROMPT if prompt is None else prompt,
            max_tokens=max_tokens,
            progress=shown,
            n_ctx=n_ctx,
            threads=threads,
            kv_dtype=kv_dtype,
            precision=precision,
        )
    finally:
        shown.clear()
    print(dumps(asdict(found), indent=1) if json else table(found))


def device_names(text: str) -> list[str]:
    """The devices of a list. Raises InvalidArgumentError if there are not two or more."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if len(names) < 2 or len(set(names)) < len(names):
        raise InvalidArgumentError(
            f"--device is {text!r}: expected two devices or more, as in cpu,cuda"
        )
    return names


def table(found: Comparison) -> str:
    """A column for each device, a row for each figure."""
    first = found.sides[0].device
    by_device = {difference.device: difference for difference in found.differences}
    rows = [["", *(side.device for side in found.sides)]]
    for title, digits, name in (
        ("load, s", 2, "load_s"),
        ("first token, s", 3, "first_token_s"),
        ("prefill, tok/s", 1, "prefill_tokens_per_s"),
        ("decode, tok/s", 1, "decode_tokens_per_s"),
        ("memory, MiB", 0, "memory_mib"),
    ):
        values = [getattr(side, name) for side in found.sides]
        rows.append([title, *("-" if v is None else f"{v:.{digits}f}" for v in values)])
    for title, name, form in (
        (f"text parts from {first}'s at token", "parted_at", "{}"),
        (f"mean KL to {first}, nats", "mean_kl", "{:.2e}"),
        (f"largest KL to {first}", "max_kl", "{:.2e}"),
        ("mean difference of a logit", "mean_difference", "{:.2e}"),
        ("largest difference of a logit", "max_difference", "{:.2e}"),
    ):
        values = [getattr(by_device.get(side.device), name, None) for side in found.sides]
        never = "never" if name == "parted_at" else "-"
        shown = [never if v is None else form.format(v) for v in values]
        rows.append([title, "-", *shown[1:]])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            [
                f"{row[0]:<{widths[0]}}",
                *(f"{c:>{w}}" for c, w in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in rows
    ]
    return "\n".join(lines)
