"""OpenAI's batch files: a request a line in, a result a line out, many requests at once.

The form is that of the Batch API: {"custom_id", "method", "url", "body"} in, and out
{"id", "custom_id", "response", "error"}, of which either response or error is null.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llama3jit.errors import (
    CancelledError,
    DeviceError,
    InvalidArgumentError,
    Llama3JitError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

# url -> the method of Llama that answers it.
ENDPOINTS = {
    "/v1/chat/completions": "create_chat_completion",
    "/v1/completions": "create_completion",
    "/v1/embeddings": "create_embedding",
}
WRONG, TWIN = "invalid_request", "duplicate_custom_id"  # codes of errors


@dataclass(frozen=True, slots=True)
class Task:
    """A line of a batch file. `code` and `problem` say why it cannot be run; "" if it can."""

    id: str  # of the result line; the same for the same line at the same place
    custom_id: str | None
    method: str  # of Llama
    body: dict[str, Any]
    code: str = ""
    problem: str = ""


@dataclass(slots=True)
class Totals:
    """How far a batch is. done: lines written now, failed ones among them."""

    lines: int
    before: int = 0  # lines whose results were there
    done: int = 0
    failed: int = 0
    tokens: int = 0  # prompt and completion, as the results count them


def read_tasks(lines: Sequence[bytes]) -> list[Task]:
    """The tasks of a batch file's lines, blank ones left out. A custom_id counts once."""
    tasks: list[Task] = []
    first: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        task = _read_task(number, line)
        if task.custom_id is not None and not task.code:
            earlier = first.setdefault(task.custom_id, number)
            if earlier != number:
                problem = f"line {number}: the custom_id is that of line {earlier} already"
                task = Task(task.id, task.custom_id, "", {}, TWIN, problem)
        tasks.append(task)
    return tasks


def _read_task(number: int, line: bytes) -> Task:
    id = "batch_req_" + hashlib.sha256(b"%d %s" % (number, line.strip())).hexdigest()[:24]
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Task(id, None, "", {}, WRONG, f"line {number} is no JSON: {error}")
    if not isinstance(found, dict):
        return Task(id, None, "", {}, WRONG, f"line {number} is no JSON object")
    custom_id, body = found.get("custom_id"), found.get("body")
    named = custom_id if isinstance(custom_id, str) and custom_id else None
    problem = ""
    if named is None:
        problem = f"custom_id is {custom_id!r:.60}; expected a string"
    elif found.get("method", "POST") != "POST":
        problem = f"method is {found['method']!r:.60}; expected POST"
    elif found.get("url") not in ENDPOINTS:
        problem = f"url is {found.get('url')!r:.60}; expected {', '.join(ENDPOINTS)}"
    elif not isinstance(body, dict):
        problem = f"body is {body!r:.60}; expected an object"
    elif body.get("stream"):
        problem = "stream is asked for, which a batch cannot do"
    if problem:
        return Task(id, named, "", {}, WRONG, f"line {number}: {problem}")
    assert isinstance(body, dict)
    return Task(id, named, ENDPOINTS[found["url"]], body)


def mend(out: Path) -> set[str]:
    """The ids and custom_ids of the results in `out`, whose last line is cut off if it was only
    half written. The file need not exist.

    Raises InvalidArgumentError for a file that holds something else, which is left as it is.
    """
    try:
        data = out.read_bytes()
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise InvalidArgumentError(f"{out} cannot be read: {error.strerror}") from None
    lines = data.split(b"\n")
    done: set[str] = set()
    for number, line in enumerate(lines, 1):
        if line.strip():
            names = _result_names(line)
            if names is None and number < len(lines):
                raise InvalidArgumentError(
                    f"{out}: line {number} is not the result of a batch; give a new file to -o"
                )
            done |= names or set()
    last = lines[-1]
    if last.strip() and _result_names(last) is None:
        with out.open("rb+") as file:
            file.truncate(len(data) - len(last))
    elif last:
        with out.open("ab") as file:
            file.write(b"\n")
    return done


def _result_names(line: bytes) -> set[str] | None:
    """What a result line is known by; None if it is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not {"id", "custom_id", "response", "error"} <= set(found):
        return None
    # The error of a second line with the same custom_id is not the result of the first.
    twin = isinstance(found["error"], dict) and found["error"].get("code") == TWIN
    names = (found["id"], None if twin else found["custom_id"])
    return {str(name) for name in names if name is not None}


def left_to_do(tasks: Iterable[Task], done: set[str]) -> list[Task]:
    """The tasks without a result among those of `mend`."""
    return [
        task
        for task in tasks
        if task.id not in done and (task.code == TWIN or task.custom_id not in done)
    ]


def run_batch(
    llm: Any,
    tasks: Iterable[Task],
    out: Path,
    totals: Totals,
    *,
    at_once: int,
    report: Callable[[], None] = lambda: None,
) -> None:
    """Run the tasks, `at_once` together, and append each result to `out` as it is there.

    llm: an open Llama.  report: called after each line, when `totals` has changed.
    A task that fails for a reason of its own gets an error line. KeyboardInterrupt and errors of
    the device end the run and close `llm`; what is written stays, and tasks under way have no line.
    """
    with out.open("ab", buffering=0) as file:
        run = _Run(llm, deque(tasks), file, totals, report)
        workers = [threading.Thread(target=run.work, daemon=True) for _ in range(at_once)]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        except BaseException:
            run.stop()
            for worker in workers:
                if worker.ident is not None:
                    worker.join()
            raise
    if run.fatal is not None:
        raise run.fatal


@dataclass(slots=True)
class _Run:
    """What the workers share."""

    llm: Any
    waiting: deque[Task]
    file: Any
    totals: Totals
    report: Callable[[], None]
    fatal: BaseException | None = None
    stopped: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def work(self) -> None:
        while not self.stopped:
            try:
                task = self.waiting.popleft()
            except IndexError:
                return
            try:
                answer = _answer(self.llm, task)
            except BaseException as error:
                self.stop(error)
                return
            with self.lock:
                if self.stopped:
                    return
                try:
                    self._write(*answer)
                except BaseException as error:  # a full disk: nothing may follow half a line
                    self.fatal, self.stopped = error, True
            if self.stopped:
                self.stop()

    def stop(self, error: BaseException | None = None) -> None:
        """Write nothing from now on, and end the requests that are under way."""
        with self.lock:
            if not self.stopped:
                self.fatal, self.stopped = error, True
        self.llm.close()

    def _write(self, line: bytes, failed: bool, tokens: int) -> None:
        rest = memoryview(line)
        while rest:
            rest = rest[self.file.write(rest) :]
        self.totals.done += 1
        self.totals.failed += failed
        self.totals.tokens += tokens
        self.report()


def _answer(llm: Any, task: Task) -> tuple[bytes, bool, int]:
    """(the result line, whether it is an error, the tokens that were used)."""
    if task.code:
        return _line(task, None, task.code, task.problem), True, 0
    try:
        body = getattr(llm, task.method)(**task.body)
        line = _line(task, body)
    except (CancelledError, DeviceError):
        raise
    except InvalidArgumentError as error:
        return _line(task, None, WRONG, str(error)), True, 0
    except Llama3JitError as error:
        code = type(error).__name__.removesuffix("Error")
        return _line(task, None, _snake(code), str(error)), True, 0
    except (TypeError, ValueError) as error:  # an argument that the method does not have
        return _line(task, None, WRONG, str(error)), True, 0
    usage = body.get("usage") or {}
    return line, False, int(usage.get("total_tokens") or 0)


def _line(task: Task, body: Any, code: str = "", message: str = "") -> bytes:
    response = {"status_code": 200, "request_id": task.id, "body": body}
    result = {
        "id": task.id,
        "custom_id": task.custom_id,
        "response": None if code else response,
        "error": {"code": code, "message": message} if code else None,
    }
    return json.dumps(result, allow_nan=False).encode() + b"\n"


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
