"""Whether a wheel alone answers: a new environment, no compiler on PATH, no home to write to.

    python bench/fresh.py dist/llama3jit-*.whl --model MODEL.gguf [--python python3.12]

Makes a virtual environment in a temporary folder, installs the wheel and what it depends on, and
runs one prompt with PATH and HOME taken away. Prints what the process answered, which compilers it
imported (none are allowed), where its kernels came from, and how long it took, twice. `make wheel`
makes the wheel.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = """
import sys
import llama3jit
with llama3jit.load(sys.argv[1], n_ctx=512) as llm:
    print(repr(llm.generate("The capital of France is", max_tokens=8, temperature=0).text))
print("compilers imported:", sorted({"numba", "llvmlite"} & set(sys.modules)) or "none")
print("package:", llama3jit.__file__)
"""


def environment(folder: Path) -> dict[str, str]:
    """Neither a PATH with anything on it nor a home that can be written."""
    home, empty = folder / "home", folder / "empty"
    for path in (home, empty):
        path.mkdir()
        path.chmod(0o555)
    # Root may write to a read-only folder; what is below a file nobody can make.
    unwritable = home if os.geteuid() else Path("/dev/null/home")
    return {"PATH": str(empty), "HOME": str(unwritable), "LANG": "C.UTF-8"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Try a wheel where there is nothing else.")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="llama3jit-fresh-") as name:
        folder = Path(name)
        subprocess.run([given.python, "-m", "venv", str(folder / "venv")], check=True)
        python = str(folder / "venv" / "bin" / "python")
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, str(given.wheel.resolve())], check=True)
        bare = environment(folder)
        for run in ("first", "second"):
            began = time.monotonic()
            done = subprocess.run(
                [python, "-W", "error", "-c", PROGRAM, str(given.model.resolve())],
                env=bare,
                cwd=folder,
                capture_output=True,
                text=True,
            )
            print(f"{run} run: {time.monotonic() - began:.2f} s, status {done.returncode}")
            print(done.stdout + done.stderr, end="")
            if done.returncode or "compilers imported: none" not in done.stdout:
                raise SystemExit("the wheel alone does not do")
        for arguments in (["doctor"], ["generate", str(given.model.resolve()), "-p", "Hi"]):
            subprocess.run(
                [python, "-m", "llama3jit", *arguments, *(["-n", "4"] if arguments[1:] else [])],
                env=bare,
                cwd=folder,
                check=True,
            )


if __name__ == "__main__":
    main()
