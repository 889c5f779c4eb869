"""Rows of a plan to rows for a GPU, several at a time where one kernel does them all.

Each rule looks at the rows from one on; it appends what stands for them and says how many those
were, or 0 if they are not of its kind.
"""

from __future__ import annotations

from kernels_cuda.layouts import packed_shape
from llama3jit.compile.cuda.units import portable_unit, tuned_unit
from llama3jit.compile.units import Unit
from llama3jit.devices.cuda.lower import (
    CACHE_OPS,
    EXACT,
    FEW,
    Choice,
    Lowered,
    Part,
    columns,
    has_tuned_cache,
    int8_operands,
    product_dims,
    product_op,
    written,
)
from llama3jit.model.plan import Operand, Plan, Row

Values = dict[str, str | float | int]
WHERE = ("positions", "seq_of", "block_tables")


class Lowering:
    """Lowers one plan for one choice; `lowered` is the result."""

    def __init__(self, plan: Plan, choice: Choice) -> None:
        last = max(i for i, row in enumerate(plan.rows) if row.op == "kv_append" or choice.n_rows)
        self.rows = plan.rows[: last + 1]
        self.choice = choice
        self.counts = {"T": choice.n_tokens, "R": max(choice.n_rows, 1)}
        self.lowered = Lowered(operands=dict(plan.operands))
        self.tuned = not (choice.exact or choice.portable)
        self.tuned_cache = has_tuned_cache(plan, exact=choice.exact, portable=choice.portable)
        # Activations that are there as int8, and in which operands.
        self.int8: dict[str, Values] = {}
        self.made_int8: set[str] = set()  # by the rows that are being taken

    def run(self) -> None:
        """Apply the first rule that takes the next rows, until there are none."""
        rules = (self.qkv, self.gate_up, self.attention, self.add_norm, self.norm, self.product)
        at = 0
        while at < len(self.rows):
            taken = next((n for rule in rules if (n := rule(at))), 0) or self.single(at)
            for row in self.rows[at : at + taken]:
                for name in written(row):
                    if name not in self.made_int8:
                        self.int8.pop(name, None)
            self.made_int8 = set()
            at += taken

    def add(self, op: str, variant: str, operands: Values, **dims: int) -> None:
        """Append a row of a tuned kernel."""
        unit = tuned_unit(op, variant, dims)
        assert unit is not None, f"{op} {variant} has no tuned kernel for {dims}"
        self.lowered.append(Row(op, operands, variant), unit)

    def buffer(self, name: str, *shape: int | str) -> str:
        self.lowered.operands[name] = Operand("buffer", "f32", shape)
        return name

    def tokens_of(self, name: str) -> int:
        """Tokens, or rows of logits, that an operand is for."""
        return self.counts[str(self.lowered.operands[name].shape[0])]

    def product_op(self, row: Row) -> str | None:
        """The op whose tuned kernel does this matmul, if there is one."""
        if not self.tuned or row.op != "matmul":
            return None
        tokens = self.tokens_of(str(row.operands["x"]))
        return product_op(row, self.lowered.operands, tokens)

    def wants_int8(self, name: str, at: int) -> bool:
        """Whether all that reads an operand from row `at` on takes it as int8."""
        readers = 0
        for row in self.rows[at:]:
            if name in row.operands.values() and name not in written(row):
                if self.product_op(row) != "matmul_int8":
                    return False
                readers += 1
            elif name in row.operands.values():
                break
        return readers > 0

    def make_int8(self, name: str) -> Values:
        """The operands that will hold an operand as int8, of which there is one at a time."""
        found = int8_operands(self.lowered.operands[name].shape)
        self.lowered.operands |= dict(found.values())
        names: Values = {key: operand for key, (operand, _) in found.items()}
        self.int8 = {name: names}
        self.made_int8.add(name)
        return names

    def activations(self, op: str, x: str) -> Values:
        """What a product takes x as; quantises it if that is not done yet."""
        if op == "matmul":
            return {"x": x}
        if x not in self.int8:
            self.add("quantize", "", {**self.make_int8(x), "x": x}, T=self.tokens_of(x))
            self.made_int8 = set()
        return self.int8[x]

    def packed(self, name: str, weights: list[str], variant: str, n_in: int) -> str:
        """A packed operand of weights one under the other."""
        name = f"{name}:packed"
        parts, offset, rows, row_bytes = [], 0, 0, 0
        for weight in weights:
            n = int(self.lowered.operands[weight].shape[0])
            part_rows, row_bytes = packed_shape(variant, n, n_in)
            parts.append(Part(weight, variant, offset, part_rows * row_bytes))
            offset += part_rows * row_bytes
            rows += part_rows
        self.lowered.operands[name] = Operand("packed", "u8", (rows, row_bytes))
        self.lowered.packed[name] = parts
        return name

    def can_stack(self, rows: list[Row]) -> bool:
        """Whether these are products of one x that one product can do."""
        first = rows[0]
        if len(rows) < 2 or self.product_op(first) is None:
            return False
        for row in rows:
            same = row.op == "matmul" and row.variant == first.variant
            if not same or row.operands["x"] != first.operands["x"]:
                return False
            n = int(self.lowered.operands[str(row.operands["weight"])].shape[0])
            if packed_shape(row.variant, n, 256)[0] != n:
                return False
        return True

    def stack(self, rows: list[Row], name: str, out: str) -> None:
        """One product in place of several, whose outputs lie side by side in `out`."""
        op, x = self.product_op(rows[0]), str(rows[0].operands["x"])
        assert op is not None
        weights = [str(row.operands["weight"]) for row in rows]
        packed = self.packed(name, weights, rows[0].variant, columns(self.lowered.operands[x]))
        values = self.activations(op, x)
        operands: Values = {"out": out, "weight": packed, **values}
        dims = product_dims(rows[0], self.lowered.operands, self.tokens_of(x))
        self.add(op, rows[0].variant, operands, **dims)

    def qkv(self, at: int) -> int:
        """q, k and v of one product; then the rotation of q, and that of k with the cache."""
        rows = self.rows[at : at + 6]
        wanted = ["matmul"] * 3 + ["rope", "rope", "kv_append"]
        if not self.tuned_cache or [row.op for row in rows] != wanted:
            return 0
        q, k, v = (str(row.operands["out"]) for row in rows[:3])
        rotated = [row.operands["x"] for row in rows[3:5]]
        append = rows[5]
        cached = [append.operands["k"], append.operands["v"]]
        fused = tuned_unit("rope_append", append.variant, {})
        if rotated != [q, k] or cached != [k, v] or fused is None or not self.can_stack(rows[:3]):
            return 0
        tokens, heads, head_dim = self.lowered.operands[q].shape
        all_heads = int(heads) + 2 * int(self.lowered.operands[k].shape[1])
        qkv = self.buffer("qkv", tokens, all_heads, head_dim)
        name = str(rows[0].operands["weight"]).replace("attn_q", "attn_qkv")
        self.stack(rows[:3], name, qkv)
        operands: Values = {"q": q, "qkv": qkv, "turns": rows[3].operands["turns"]}
        operands |= {key: append.operands[key] for key in ("k_cache", "v_cache", *WHERE)}
        self.add("rope_append", append.variant, operands)
        return 6

    def gate_up(self, at: int) -> int:
        """gate and up of one product; then SwiGLU to int8."""
        rows = self.rows[at : at + 3]
        if [row.op for row in rows] != ["matmul", "matmul", "swiglu"]:
            return 0
        gate, up = (str(row.operands["out"]) for row in rows[:2])
        out = str(rows[2].operands["out"])
        fits = (rows[2].operands["gate"], rows[2].operands["up"]) == (gate, up)
        if not fits or not self.can_stack(rows[:2]) or not self.wants_int8(out, at + 3):
            return 0
        if tuned_unit("swiglu_quantize", "", {}) is None:
            return 0
        tokens, n = self.lowered.operands[gate].shape
        both = self.buffer(f"gate_up.{tokens}", tokens, 2, n)
        name = str(rows[0].operands["weight"]).replace("ffn_gate", "ffn_gate_up")
        self.stack(rows[:2], name, both)
        self.add("swiglu_quantize", "", {**self.make_int8(out), "gate_up": both})
        return 3

    def attention(self, at: int) -> int:
        """Attention by chunks, and their sum."""
        row = self.rows[at]
        if row.op != "attention" or not self.tuned_cache or self.choice.n_tokens > FEW:
            return 0
        out, q = str(row.operands["out"]), str(row.operands["q"])
        _, heads, head_dim = self.lowered.operands[q].shape
        parts: Values = {
            "sums": self.buffer("chunk.sums", "T", heads, "B", head_dim),
            "weights": self.buffer("chunk.weights", "T", heads, "B", 2),
        }
        inputs = {key: value for key, value in row.operands.items() if key != "out"}
        size = int(head_dim)
        self.add("attention_chunks", row.variant, {**parts, **inputs}, head_dim=size)
        quantizing = tuned_unit("attention_merge_quantize", "", {"head_dim": size})
        if quantizing is not None and self.wants_int8(out, at + 1):
            values = {**self.make_int8(out), **parts}
            self.add("attention_merge_quantize", "", values, head_dim=size)
        else:
            self.add("attention_merge", "", {"out": out, **parts}, head_dim=size)
        return 1

    def add_norm(self, at: int) -> int:
        """A residual sum and the normalisation of it."""
        rows = self.rows[at : at + 2]
        if not self.tuned or [row.op for row in rows] != ["add", "rmsnorm"]:
            return 0
        x, out = rows[0].operands["out"], str(rows[1].operands["out"])
        quantizing = self.wants_int8(out, at + 2)
        op = "add_rmsnorm_quantize" if quantizing else "add_rmsnorm"
        if rows[1].operands["x"] != x or tuned_unit(op, "", {}) is None:
            return 0
        made: Values = self.make_int8(out) if quantizing else {"out": out}
        rest = {key: rows[1].operands[key] for key in ("weight", "eps")}
        self.add(op, "", {"x": x, **made, "y": rows[0].operands["x"], **rest})
        return 2

    def norm(self, at: int) -> int:
        """A normalisation to int8."""
        row = self.rows[at]
        if not self.tuned or row.op != "rmsnorm" or tuned_unit("rmsnorm_quantize", "", {}) is None:
            return 0
        out = str(row.operands["out"])
        if not self.wants_int8(out, at + 1):
            return 0
        rest = {key: row.operands[key] for key in ("x", "weight", "eps")}
        self.add("rmsnorm_quantize", "", {**self.make_int8(out), **rest})
        return 1

    def product(self, at: int) -> int:
        """A product with a packed weight."""
        row = self.rows[at]
        op = self.product_op(row)
        if op is None:
            return 0
        weight, x = str(row.operands["weight"]), str(row.operands["x"])
        packed = self.packed(weight, [weight], row.variant, columns(self.lowered.operands[x]))
        operands: Values = {"out": row.operands["out"], "weight": packed}
        values = self.activations(op, x)
        dims = product_dims(row, self.lowered.operands, self.tokens_of(x))
        self.add(op, row.variant, {**operands, **values}, **dims)
        return 1

    def single(self, at: int) -> int:
        """The op's own kernel, tuned or portable."""
        row = self.rows[at]
        unit: Unit | None = None
        takes_tuned = self.tuned or (self.choice.exact and row.op in EXACT)
        if row.op in CACHE_OPS:
            takes_tuned = self.tuned_cache
        if takes_tuned and not self.choice.portable and row.op != "matmul":
            unit = tuned_unit(row.op, row.variant, {"T": self.choice.n_tokens})
        self.lowered.append(row, unit or portable_unit(row.op, row.variant))
        return 1
