"""`@op`: an op and its faces. numba is imported when a compiled face is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llama3jit.ops import faces
from llama3jit.ops.signature import Signature, parse

Variants = Mapping[str, Mapping[str, Any]]
PLAIN: Variants = {"": {}}

# Sums may be split over vector lanes; NaN and infinity stay what they are, since "nnan" and "ninf",
# which would remove their tests, are left out.
REASSOCIATE = frozenset({"reassoc", "nsz", "arcp", "contract", "afn"})
# Sums keep their order; a product and a sum may become one fused operation.
CONTRACT = frozenset({"contract"})
# Float arithmetic as it is written.
AS_WRITTEN: frozenset[str] = frozenset()


class Op:
    """One op: the function as it was written, its signature, and its variants.

    A variant binds the op's function parameters and its open dtypes: `matmul` has one for each
    block format. An op without such parameters has the one variant "".
    """

    def __init__(
        self,
        function: Callable[..., None],
        variants: Variants,
        fastmath: frozenset[str],
        outputs: int,
    ) -> None:
        self.function = function
        self.name = function.__name__
        self.signature: Signature = parse(function)
        self.variants = variants
        self.fastmath = fastmath
        self.outputs = outputs
        self.numpy: Callable[..., None] | None = None
        self._faces: dict[tuple[str, str], Callable[..., None]] = {}

    def __call__(self, *arguments: Any) -> None:
        """The plain Python function, for tiny shapes; the last argument is the range of items."""
        self.function(*arguments)

    def reference(self, function: Callable[..., None]) -> Callable[..., None]:
        """Decorate the op's NumPy reference: the same parameters by name, without `items`."""
        self.numpy = function
        return function

    def njit(self, variant: str = "") -> Callable[..., None]:
        """The `numba.njit(parallel=True)` face: arrays and scalars, then the count of items."""
        return self._face("njit", variant, faces.njit_face)

    def cuda(self, variant: str = "") -> Callable[..., None]:
        """The `numba.cuda.jit` face, a kernel: arrays and scalars, then the count of items."""
        return self._face("cuda", variant, faces.cuda_face)

    def _face(self, name: str, variant: str, make: Callable[..., Any]) -> Callable[..., None]:
        if (name, variant) not in self._faces:
            self._faces[name, variant] = make(self, variant)
        return self._faces[name, variant]

    def __repr__(self) -> str:
        return f"<op {self.name}>"


def op(
    function: Callable[..., None] | None = None,
    *,
    variants: Variants = PLAIN,
    fastmath: frozenset[str] = REASSOCIATE,
    outputs: int = 1,
) -> Any:
    """Make an op of a function whose first `outputs` parameters are written; `fastmath` says what
    the compiler may do to its float arithmetic."""
    if function is None:
        return lambda function: Op(function, variants, fastmath, outputs)
    return Op(function, variants, fastmath, outputs)
