"""What the papers say is so: examples run, names exist, generated parts are up to date."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import serving

ROOT = Path(__file__).parent.parent
CLI = ROOT / "docs/cli.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)#:]+)\)")
FOLDERS = ("llama3jit/", "kernels_cpu/", "kernels_cuda/", "tests/", "bench/", "docs/", ".ci/")


def prose(page):
    """A page without its blocks of code."""
    return BLOCK.sub("", page.read_text())


def blocks(page, language):
    return [code for found, code in BLOCK.findall(page.read_text()) if found == language]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_exist(page):
    for name in LINK.findall(prose(page)):
        assert (page.parent / name).exists(), name
    for name in QUOTED.findall(prose(page)):
        if name.startswith(FOLDERS) and not re.search(r"[\s:*]", name):
            assert (ROOT / name).exists(), name


def test_the_tree_of_the_readme_is_that_of_the_checkout():
    tree = next(code for code in blocks(ROOT / "README.md", "") if "kernels_cpu/" in code)
    names = [line.split()[0] for line in tree.splitlines()]
    for name in names:
        folder = ROOT if (ROOT / name).exists() else ROOT / "llama3jit"
        assert (folder / name).is_dir(), name
    parts = {f"{path.name}/" for path in (ROOT / "llama3jit").iterdir() if path.is_dir()}
    assert parts - {"__pycache__/"} <= set(names)


def test_every_test_named_among_the_faults_exists():
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / "docs/faults.md").read_text())
    assert len(named) > 50
    for file, name in named:
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), f"{file}::{name}"


def test_generated_parts_are_up_to_date():
    command = [sys.executable, "docs/generate.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=here(ROOT))
    assert done.returncode == 0, f"run `make docs`: {done.stdout}{done.stderr}"


def test_every_variable_is_in_the_papers():
    text = (ROOT / "docs/cli.md").read_text()
    for path in (ROOT / "llama3jit").rglob("*.py"):
        for name in re.findall(r'environ\b[^\n]*"(LLAMA3JIT_\w+)"', path.read_text()):
            assert f"`{name}`" in text, f"{path.name}: {name}"


def test_the_example_of_the_readme_runs():
    from llama3jit.errors import ModelNotFoundError
    from llama3jit.files.catalogue import DEFAULT_MODEL
    from llama3jit.files.store import resolve

    try:
        resolve(DEFAULT_MODEL)
    except ModelNotFoundError:
        pytest.skip(f"{DEFAULT_MODEL} is not pulled")
    (example,) = blocks(ROOT / "README.md", "python")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=here(ROOT),
    )
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert "The quick brown fox (4, 49152)" in done.stdout


def test_the_op_and_the_format_that_are_added_in_the_papers_run(tmp_path):
    pytest.importorskip("gguf")
    if shutil.which("git") is None:
        pytest.skip("needs git to apply patches")
    page = ROOT / "docs/add-an-op.md"
    for folder in ("llama3jit", "kernels_cpu"):
        leave = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=leave)
    for code in blocks(page, "python"):
        name = code.split("\n", 1)[0].removeprefix("# ")
        (tmp_path / name).write_text(code)
    for patch in blocks(page, "diff"):
        done = subprocess.run(
            ["git", "apply", "-C1", "-"], cwd=tmp_path, input=patch, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{done.stderr}{patch}"
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/docs_added_op.py"), str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=here(tmp_path),
    )
    assert done.returncode == 0, done.stderr


def examples(page):
    """(command, what it prints) of a page's console blocks, in order."""
    for code in blocks(page, "console"):
        for part in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
            end = part.index("\nEND\n") + 5 if "<<'END'" in part else part.index("\n") + 1
            yield part[:end].rstrip("\n"), part[end:]


def pattern(expected):
    """`...` stands for anything, and a line of it for any number of lines."""
    lines = expected.splitlines(keepends=True)
    parts = [
        "(?:.*\n)?" if line == "...\n" else re.escape(line).replace(r"\.\.\.", ".*?")
        for line in lines
    ]
    return re.compile("".join(parts), re.DOTALL)


def test_every_command_has_a_section_with_examples():
    from llama3jit.cli.app import COMMANDS

    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## )", CLI.read_text(), re.M | re.S))
    assert set(COMMANDS) <= set(sections)
    for name in COMMANDS:
        assert f"<!-- generated: command {name} -->" in sections[name]
        assert re.search(rf"^\$ .*llama3jit {name}\b", sections[name], re.MULTILINE), name


def test_the_examples_of_the_command_line_run(tmp_path):
    from llama3jit.errors import ModelNotFoundError
    from llama3jit.files.catalogue import DEFAULT_MODEL
    from llama3jit.files.store import resolve

    if os.name != "posix":
        pytest.skip("the examples are of a POSIX shell")
    try:
        model = resolve(DEFAULT_MODEL)
    except ModelNotFoundError:
        pytest.skip(f"{DEFAULT_MODEL} is not pulled")
    for folder in ("bin", "models", "work/demo"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / f"models/{DEFAULT_MODEL}.gguf").symlink_to(model)
    (tmp_path / "work/demo/SmolLM2-demo-Q4_1.gguf").symlink_to(model)
    command = tmp_path / "bin/llama3jit"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m llama3jit "$@"\n')
    command.chmod(0o755)
    with serving(
        "someone/SmolLM2-demo-GGUF", {"SmolLM2-demo-Q4_1.gguf": model.read_bytes()}
    ) as hub:
        environment = {
            name: value for name, value in here(ROOT).items() if "proxy" not in name.lower()
        }
        environment |= {
            "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "LLAMA3JIT_MODELS": str(tmp_path / "models"),
            "HF_ENDPOINT": hub.url(),
            "HF_HOME": str(tmp_path / "hub"),
        }

        def shell(text):
            return subprocess.run(
                ["sh", "-c", text],
                cwd=tmp_path / "work",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=300,
            )

        for precision in ("fast", "exact"):  # what is compiled now need not be said later
            shell(f"llama3jit generate -p x --max-tokens 1 --precision {precision}")
        for text, expected in examples(CLI):
            done = shell(text)
            printed = done.stdout + (f"[{done.returncode}]\n" if done.returncode else "")
            assert pattern(expected).fullmatch(printed), f"$ {text}\n{printed}"


def here(root):
    """An environment in which the package is the one at `root`."""
    return {**os.environ, "PYTHONPATH": str(root)}


def test_the_examples_of_sampling_run(monkeypatch, capsys):
    pytest.importorskip("llguidance")
    from tests.scripted import noise, scripted_llama

    llama = scripted_llama(noise).llama
    monkeypatch.setattr("llama3jit.load", lambda name: llama)
    names = {}
    with llama:
        for code in blocks(ROOT / "docs/sampling.md", "python"):
            exec(compile(code, "docs/sampling.md", "exec"), names)
    assert len(capsys.readouterr().out.splitlines()) >= 2


def test_every_sampling_argument_is_in_the_papers():
    from llama3jit.arguments import Sampling

    text = (ROOT / "docs/sampling.md").read_text()
    elsewhere = {"max_tokens", "stop", "on_overflow"}
    for name in set(Sampling.__annotations__) - elsewhere:
        assert name in text, name
