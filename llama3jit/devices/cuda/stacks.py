"""Which weights lie one under the other, so that one product can do several: q, k and v, and gate
and up, where they are of one format and their packed forms have no rows between them."""

from __future__ import annotations

from kernels_cuda import TUNED
from kernels_cuda.layouts import packed_shape
from llama3jit.model.plan import Plan, Row

# How many products, and what follows them.
FOLLOWED_BY = (
    (3, ["rope", "rope", "kv_append"]),
    (3, ["rope", "rope", "hadamard", "hadamard", "hadamard", "kv_append"]),
    (2, ["swiglu"]),
)


def stacks(plan: Plan) -> dict[str, list[str]]:
    """For each weight in a stack, the names of all weights of it in order."""
    found: dict[str, list[str]] = {}
    for at in range(len(plan.rows)):
        for count, following in FOLLOWED_BY:
            rows = plan.rows[at : at + count]
            after = plan.rows[at + count : at + count + len(following)]
            if [row.op for row in after] == following and _fit(rows, plan):
                names = [str(row.operands["weight"]) for row in rows]
                found |= dict.fromkeys(names, names)
    return found


def _fit(rows: list[Row], plan: Plan) -> bool:
    first = rows[0]
    if first.op != "matmul" or first.variant not in TUNED.get("pack", ("", ()))[1]:
        return False
    for row in rows:
        if row.op != "matmul" or row.variant != first.variant:
            return False
        n = int(plan.operands[str(row.operands["weight"])].shape[0])
        if row.operands["x"] != first.operands["x"] or packed_shape(row.variant, n, 256)[0] != n:
            return False
    return True
