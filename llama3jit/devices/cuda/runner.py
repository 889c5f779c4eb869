"""A model on a GPU: weights uploaded, and for each shape of a batch one graph of the whole pass."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kernels_cuda.leading import LEADING, ROOM, WORDS
from llama3jit.compile.cuda.library import find_code
from llama3jit.compile.cuda.units import Chip, is_tuned, signature_of, symbol
from llama3jit.compile.units import Unit
from llama3jit.devices import Leading, Limits
from llama3jit.devices.check import check_batch
from llama3jit.devices.cuda.arrange import arranged
from llama3jit.devices.cuda.blocks import Blocks, Cache
from llama3jit.devices.cuda.lower import (
    Counts,
    Lowered,
    Ways,
    dims_of,
    fit_limits,
    launch_of,
    lower,
    lower_all,
    n_leading,
    pack_unit,
    packers,
)
from llama3jit.devices.cuda.memory import check_memory, place_operands
from llama3jit.devices.cuda.shapes import Shape, largest_shape, nbytes_of, shape_of, sizes_of
from llama3jit.devices.cuda.split import split
from llama3jit.devices.cuda.upload import Uploader
from llama3jit.errors import CancelledError, DeviceError, InvalidArgumentError
from llama3jit.model import weights
from llama3jit.model.batch import Batch
from llama3jit.model.config import ModelConfig
from llama3jit.model.plan import Operand, Plan, Row

if TYPE_CHECKING:
    from llama3jit.compile.build import Progress

# The graph of a pass, the arrays in pinned memory that it reads a batch from, and where it leaves
# the logits.
Captured = tuple[Any, dict[str, NDArray[Any]], int]
NO_SEQUENCE = -1  # that of a token which only fills a batch up
T = TypeVar("T")


class CudaRunner:
    """See Runner in llama3jit.devices."""

    def __init__(
        self,
        gguf: Any,
        config: ModelConfig,
        plan: Plan,
        limits: Limits,
        gpu: Any,
        kernels: Mapping[Unit, Any],
        *,
        ways: Ways,
        lowered: Lowered | None = None,
    ) -> None:
        """`gpu` is a driver.Gpu, which the runner owns from now on; `lowered` is what `lower_all`
        makes of the plan; `kernels` has a loaded kernel for each unit of it, and for those that
        pack."""
        self.limits = limits
        self.device = f"cuda:{gpu.ordinal}"
        self.n_leading = n_leading(ways, limits.vocab_size)
        self._plan = plan
        self._ways = ways
        self.lowered = lowered or lower_all(plan, ways, limits)
        self.gpu = gpu
        self._kernels = kernels
        self._cancelled = threading.Event()
        self._graphs: dict[tuple[Shape, bool], Captured] = {}
        self._logits_address = 0  # where the last pass left them
        # A batch whose logits are on the device, though only the largest were asked for.
        self._left: tuple[Batch, int] | None = None
        self._failure: str | None = None
        self._open = True
        try:
            self._places, self.memory = place_operands(self.lowered, limits)
            self._bases = {use: gpu.allocate(size) for use, size in self.memory.items()}
            self._arena = self._bases["buffers"], self.memory["buffers"]
            self._stage()
            self._blocks = Blocks(gpu, self._caches())
            self._upload(gguf, config)
        except BaseException:
            gpu.close()
            raise

    def _address(self, name: str) -> int:
        if name in self.lowered.views:
            parent, offset = self.lowered.views[name]
            return self._address(parent) + offset
        place = self._places[name]
        return int(self._bases[place.use]) + place.offset

    def _stage(self) -> None:
        """Memory for the arrays of a batch and for logits, on both sides."""
        sizes = sizes_of(largest_shape(self.limits), self.limits)
        batch = [op for op in self.lowered.operands.values() if op.kind == "batch"]
        nbytes = sum(nbytes_of(operand, sizes) for operand in batch)
        self._batch_host = self.gpu.pinned(nbytes)
        self._batch_address = self.gpu.allocate(nbytes)
        self._logits_host = self.gpu.pinned(nbytes_of(self.lowered.operands["logits"], sizes))

    def _upload(self, gguf: Any, config: ModelConfig) -> None:
        uploader = Uploader(self.gpu)
        try:
            for name, operand in self.lowered.operands.items():
                if operand.kind == "weight":
                    uploader.upload(self._address(name), weights.matrix(gguf, name, operand))
                    gguf.release(name)
                elif operand.kind == "vector":
                    uploader.upload(self._address(name), weights.vector(gguf, name))
                elif operand.kind == "table":
                    uploader.upload(self._address(name), weights.frequencies(gguf, config))
            self._pack(gguf, uploader)
        finally:
            uploader.close()
        self.gpu.synchronize()

    def _pack(self, gguf: Any, uploader: Uploader) -> None:
        """Upload weights one by one to where there is room for the largest, and pack them."""
        parts = [
            (self._address(name) + part.offset, part)
            for name, packed in self.lowered.packed.items()
            for part in packed
        ]
        if not parts:
            return
        room = self.gpu.allocate(max(gguf.tensors[part.weight].nbytes for _, part in parts))
        for address, part in parts:
            tensor = gguf.tensors[part.weight]
            n = int(tensor.shape[1])
            row_bytes = tensor.nbytes // n
            raw = Operand("weight", "u8", (n, row_bytes))
            uploader.upload(room, weights.matrix(gguf, part.weight, raw))
            gguf.release(part.weight)
            unit, dims = (
                pack_unit(part.variant),
                {"size": part.nbytes, "N": n, "row_bytes": row_bytes},
            )
            arguments = [address, room, *dims.values()]
            self.gpu.launch(self._kernels[unit], launch_of(unit, dims, self._ways.chip), arguments)
        self.gpu.synchronize()
        self.gpu.release(room)

    def forward(self, batch: Batch) -> NDArray[np.float32]:
        """See Runner."""
        check_batch(batch, self.limits)
        parts = self._parts(batch)
        if len(parts) == 1:
            return self._forward(batch)
        logits = np.empty((len(batch.logits_rows), self.limits.vocab_size), np.float32)
        for part, rows in parts:
            logits[rows] = self._forward(part)
        return logits

    def _parts(self, batch: Batch) -> list[tuple[Batch, Any]]:
        return split(batch) if self._ways.tuned else [(batch, slice(None))]

    def _forward(self, batch: Batch) -> NDArray[np.float32]:
        if self._left is not None and self._left[0] is batch:
            self._fetch_rows(self._left[1], len(batch.logits_rows))
        else:
            self._run(batch, leading=False)
        n_rows, n_vocab = len(batch.logits_rows), self.limits.vocab_size
        logits: NDArray[np.float32] = self._logits_host.view(np.float32)
        return logits[: n_rows * n_vocab].reshape(n_rows, n_vocab)

    def leading(self, batch: Batch) -> Leading | None:
        """See Runner."""
        check_batch(batch, self.limits)
        parts = self._parts(batch)
        if len(parts) == 1:
            return self._leading(batch)
        ids = np.empty((len(batch.logits_rows), LEADING), np.int32)
        logits = np.empty(ids.shape, np.float32)
        for part, rows in parts:
            found = self._leading(part)
            if found is None:
                return None
            ids[rows], logits[rows] = found.ids, found.logits
        return Leading(ids, logits)

    def _leading(self, batch: Batch) -> Leading | None:
        self._run(batch, leading=True)
        n_rows = len(batch.logits_rows)
        found = self._logits_host.view(np.int32)[: n_rows * WORDS].reshape(n_rows, WORDS)
        if ((found[:, 0] < LEADING) | (found[:, 0] > ROOM)).any():
            self._left = batch, self._logits_address
            return None
        ids, bits = found[:, 1 : 1 + LEADING], found[:, 1 + LEADING :]
        return Leading(ids, bits.view(np.float32))

    def _fetch_rows(self, address: int, n_rows: int) -> None:
        """Copy logits that are still on the device."""
        self._left = None
        self.gpu.enter()
        try:
            self.gpu.download(self._logits_host[: 4 * n_rows * self.limits.vocab_size], address)
            self.gpu.synchronize()
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> DeviceError:
        """The driver reports an error of a kernel with every later call, so this is the end."""
        self._failure = str(error)
        return DeviceError(f"{error}; load the model again, or use device='cpu'")

    def _run(self, batch: Batch, *, leading: bool) -> None:
        """One pass, after which what was asked for is in pinned memory."""
        self._left = None
        self._check_sound()
        shape = self.shape_of(batch)
        leading = leading and len(batch.logits_rows) > 0
        try:
            self._stop_if_cancelled()
            self.gpu.enter()
            made = self._graphs.get((shape, leading)) or self._captured(shape, leading)
            graph, held, self._logits_address = made
            fill(held, batch)
            self.gpu.run(graph)
            self.gpu.synchronize()
            self._stop_if_cancelled()
        except CancelledError:
            raise
        except Exception as error:
            raise self._failed(error) from error
        finally:
            self.begin()

    def shape_of(self, batch: Batch) -> Shape:
        """The shape of the pass that takes a batch."""
        n_tokens, n_blocks = len(batch.tokens), batch.block_tables.shape[1]
        alone = n_tokens == len(batch.context_lens) > 1
        return shape_of(self.limits, n_tokens, len(batch.logits_rows), n_blocks, alone)

    def lower(self, shape: Shape, leading: bool = False) -> Lowered:
        """The rows of a pass of this shape."""
        counts = Counts(shape.n_tokens, shape.n_rows, shape.alone, leading, shape.n_blocks)
        return lower(self._plan, self._ways, counts)

    def _captured(self, shape: Shape, leading: bool) -> Captured:
        """Capture the pass of a shape."""
        held, addresses, nbytes = self._batch_arrays(shape)
        lowered = self.lower(shape, leading)
        addresses |= self.buffers(lowered, shape)
        sizes = sizes_of(shape, self.limits)
        name, width = ("leading", WORDS) if leading else ("logits", self.limits.vocab_size)
        found = self._logits_host[: 4 * shape.n_rows * width]

        def work() -> None:
            self.gpu.upload(self._batch_address, self._batch_host[:nbytes])
            overlap = False  # the first waits for the copy
            for row, unit in zip(lowered.rows, lowered.units, strict=True):
                dims = dims_of(row, lowered.operands, sizes)
                self.launch(row, unit, addresses, dims, overlap=overlap)
                overlap = True
            if found.nbytes:
                self.gpu.download(found, addresses[name])

        graph = self.gpu.capture(work)
        self._graphs[shape, leading] = graph, held, addresses.get("logits", 0)
        return self._graphs[shape, leading]

    def buffers(self, lowered: Lowered, shape: Shape) -> dict[str, int]:
        """The addresses of the buffers of a pass. Passes share their memory; should one need more,
        it gets memory of its own."""
        offsets, total = arranged(lowered, sizes_of(shape, self.limits))
        base, size = self._arena
        if total > size:
            base, size = self.gpu.allocate(total), total
            self._arena = base, size
        return {name: base + offset for name, offset in offsets.items()}

    def _batch_arrays(self, shape: Shape) -> tuple[dict[str, NDArray[Any]], dict[str, int], int]:
        """The arrays of a batch one after the other: host views, device addresses, bytes in all."""
        sizes = sizes_of(shape, self.limits)
        held, addresses, at = {}, {}, 0
        for name, operand in self.lowered.operands.items():
            if operand.kind == "batch":
                dims = [sizes[str(dim)] for dim in operand.shape]
                nbytes = nbytes_of(operand, sizes)
                held[name] = self._batch_host[at : at + nbytes].view(np.int32).reshape(dims)
                addresses[name] = self._batch_address + at
                at += nbytes
        return held, addresses, at

    def launch(
        self,
        row: Row,
        unit: Unit,
        passing: Mapping[str, int],
        dims: Mapping[str, int],
        *,
        overlap: bool,
    ) -> None:
        """Launch a row's kernel. With `overlap` a tuned one may start before the one in front has
        ended."""
        launch = launch_of(unit, dims, self._ways.chip)
        arguments = self._arguments(row, passing, dims)
        overlap = overlap and is_tuned(unit)
        self.gpu.launch(self._kernels[unit], launch, arguments, overlap=overlap)

    def _arguments(
        self, row: Row, passing: Mapping[str, int], dims: Mapping[str, int]
    ) -> list[int | np.float32]:
        """The arguments of a row's kernel; `passing` has the addresses of what is the pass's own:
        the arrays of the batch and the buffers."""
        signature = signature_of(row.op)
        arguments: list[int | np.float32] = []
        for parameter in signature.parameters:
            value = row.operands.get(parameter.name)
            if parameter.is_array:
                name = str(value)
                arguments.append(passing[name] if name in passing else self._address(name))
            elif not parameter.is_function:
                number = float(value)  # type: ignore[arg-type]
                arguments.append(int(number) if parameter.dtype == "i64" else np.float32(number))
        return [*arguments, *(dims[name] for name in signature.dims)]

    def _caches(self) -> list[Cache]:
        n_blocks = self.limits.n_blocks
        return [
            Cache(self._address(name), self._places[name].nbytes // n_blocks)
            for name, operand in self.lowered.operands.items()
            if operand.kind == "cache"
        ]

    def copy_block(self, source: int, target: int) -> None:
        """See Runner."""
        self._with_blocks(self._blocks.copy, source, target)

    def read_block(self, block: int) -> NDArray[np.uint8]:
        """See Runner."""
        return self._with_blocks(self._blocks.read, block)

    def write_block(self, block: int, data: NDArray[np.uint8]) -> None:
        """See Runner."""
        self._with_blocks(self._blocks.write, block, data)

    def _with_blocks(self, work: Callable[..., T], *given: Any) -> T:
        self._check_sound()
        self.gpu.enter()
        try:
            return work(*given)
        except InvalidArgumentError:
            raise
        except Exception as error:
            raise self._failed(error) from error

    def _check_sound(self) -> None:
        if not self._open:
            raise DeviceError("the model is closed")
        if self._failure is not None:
            raise DeviceError(f"{self._failure}; load the model again, or use device='cpu'")

    def _stop_if_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise CancelledError("the forward pass was cancelled")

    def begin(self) -> None:
        """See Runner."""
        self._cancelled.clear()

    def cancel(self) -> None:
        """See Runner. A pass that the device has begun is run to its end."""
        self._cancelled.set()

    def close(self) -> None:
        """See Runner."""
        self._open = False
        for graph, _, _ in self._graphs.values():
            self.gpu.forget(graph)
        self._graphs.clear()
        self.gpu.close()


def fill(held: Mapping[str, NDArray[Any]], batch: Batch) -> None:
    """Write a batch into arrays that may be larger; what is left over does nothing."""
    for name, array in held.items():
        given: NDArray[np.int32] = getattr(batch, name)
        if given.ndim == 1:
            array[: len(given)] = given
            array[len(given) :] = NO_SEQUENCE if name == "seq_of" else 0
        else:
            array[: given.shape[0], : given.shape[1]] = given


def open_on_gpu(
    gguf: Any,
    config: ModelConfig,
    plan: Plan,
    limits: Limits,
    gpu: Any,
    *,
    exact: bool,
    portable: bool = False,
    progress: Progress | None = None,
) -> CudaRunner:
    """Load a model on an open device, which is closed if that fails. `exact` keeps activations in
    float32; `portable` takes none of the tuned kernels.

    Raises MemoryLimitError before anything is compiled or uploaded, CompileError, DeviceError.
    """
    ways = Ways(Chip(gpu.capability, gpu.processors), exact, portable)
    try:
        limits = fit_limits(plan, ways, limits)
        lowered = lower_all(plan, ways, limits)
        check_memory(place_operands(lowered, limits)[1], limits, gpu.memory()[0], gpu.name)
        code = find_code([*lowered.units, *packers(lowered)], gpu.capability, progress)
        kernels = {
            unit: gpu.load(image, code.is_ptx[unit], symbol(unit))
            for unit, image in code.images.items()
        }
        return CudaRunner(gguf, config, plan, limits, gpu, kernels, ways=ways, lowered=lowered)
    except BaseException:
        gpu.close()
        raise
