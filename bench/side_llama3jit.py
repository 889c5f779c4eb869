"""Our side of peers_cpu.py: the measuring function of `llama3jit bench`."""

from __future__ import annotations

from importlib.metadata import version

from side import arguments, serve

from llama3jit import bench
from llama3jit.devices.choose import open_runner
from llama3jit.files.gguf import open_gguf
from llama3jit.model.config import read_config
from llama3jit.version import __version__


def main() -> None:
    given = arguments()
    with open_gguf(given.model) as gguf:
        runner = open_runner(
            gguf,
            read_config(gguf),
            device="cpu",
            n_ctx=given.n_ctx,
            threads=given.threads,
            max_sequences=1,
        )
        first_id = gguf.metadata.get("tokenizer.ggml.bos_token_id")
        names = ("numba", "llvmlite", "numpy")
        about = {
            "name": f"llama3jit {__version__}",
            "build": ", ".join(f"{name} {version(name)}" for name in names),
            "cpu": bench.cpu_name(),
        }

        def sample(n_prompt: int, n_gen: int, n_depth: int) -> int:
            """One untimed run, then the timed one."""
            return bench.measure(runner, bench.Test(n_prompt, n_gen, n_depth), 1, first_id)[0]

        serve(about, given.threads, sample)
        runner.close()


if __name__ == "__main__":
    main()
