"""Tuned kernels to PTX and cubins on a machine with no GPU."""

from __future__ import annotations

import re
import subprocess
import tempfile
import warnings
from importlib import util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kernels_cuda


def arguments_of(kernel: Any) -> list[str]:
    code = kernel.__code__
    return list(code.co_varnames[: code.co_argcount])


SCALARS = {"eps", "scale", "magnitude"}  # parameters that are float32


def ptx_of(op: str, variant: str, arch: str = "sm_90a") -> str:
    """The PTX of a kernel, whose entry is named `op`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from numba import cuda
        from numba.cuda import api, dispatcher, types

        match = re.fullmatch(r"sm_(\d+)(\d)(a?)", arch)
        assert match
        capability = (int(match[1]), int(match[2]))
        device = SimpleNamespace(compute_capability=capability, id=0)
        dispatcher.get_current_device = api.get_current_device = lambda: device
        from kernels_cuda import ptx

        ptx.CAPABILITY[0] = capability
        kernel = kernels_cuda.kernel(op, variant)
        names = arguments_of(kernel)
        signature = tuple(types.float32 if n in SCALARS else types.int64 for n in names)
        cc = (*capability, "a") if match[3] else capability
        text, _ = cuda.compile(
            kernel, signature, cc=cc, device=False, abi="numba", output="ptx", fastmath=False
        )
    entry = re.search(r"\.entry (\S+?)\(", text)
    assert entry
    text = str(text).replace(entry[1], op)
    threads = getattr(kernel, "threads", None)
    if threads is None:
        return text
    end = text.index(")", text.index(f".entry {op}("))
    return f"{text[: end + 1]} .maxntid {threads}, 1, 1{text[end + 1 :]}"


def ptxas() -> Path | None:
    """The assembler of the cuda-jit extra."""
    spec = util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or [] if spec else []:
        found = Path(folder) / "cuda_nvcc/bin/ptxas"
        if found.exists():
            return found
    return None


def assemble(text: str, arch: str = "sm_90a") -> tuple[bytes, dict[str, int]]:
    """A cubin, and what it takes: registers, spill bytes, stack bytes, shared bytes."""
    tool = ptxas()
    assert tool is not None
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "k.ptx", Path(folder) / "k.cubin"
        source.write_text(text)
        command = [str(tool), "-v", f"-arch={arch}", "-O3", str(source), "-o", str(out)]
        said = subprocess.run(command, check=False, capture_output=True, text=True)
        assert said.returncode == 0, said.stderr
        figures = {
            name: sum(int(n) for n in re.findall(pattern, said.stderr))
            for name, pattern in (
                ("registers", r"Used (\d+) registers"),
                ("stack", r"(\d+) bytes stack frame"),
                ("spills", r"(\d+) bytes spill"),
                ("shared", r"(\d+) bytes smem"),
            )
        }
        return out.read_bytes(), figures
