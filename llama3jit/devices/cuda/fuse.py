"""Rows of a plan to rows for a GPU, several at a time where one kernel does them all.

Each rule looks at the rows from one on; it appends what stands for them and says how many those
were, or 0 if they are not of its kind.
"""

from __future__ import annotations

from kernels_cuda import FLOATS
from kernels_cuda.layouts import packed_shape
from kernels_cuda.leading import WORDS
from llama3jit.compile.cuda.units import portable_unit, tuned_unit
from llama3jit.compile.units import Unit
from llama3jit.devices.bind import written
from llama3jit.devices.cuda.lower import (
    CACHE_OPS,
    FEW,
    FEW_ALONE,
    MOST_CHUNKS,
    Counts,
    Lowered,
    Part,
    Ways,
    columns,
    has_tuned_cache,
    int8_operands,
    many_attention,
    product_dims,
    product_op,
)
from llama3jit.devices.cuda.stacks import stacks
from llama3jit.model.plan import Operand, Plan, Row

Values = dict[str, str | float | int]
WHERE = ("positions", "seq_of", "block_tables")
# Tuned kernels that are as exact as the portable ones: float32 in, out and between.
EXACT = (
    *("add", "add_bias", "embed", "hadamard", "rmsnorm", "rope", "rope_angles", "select_rows"),
    "swiglu",
)


class Lowering:
    """Lowers one plan for one kind of pass; `lowered` is the result."""

    def __init__(self, plan: Plan, ways: Ways, counts: Counts) -> None:
        last = max(i for i, row in enumerate(plan.rows) if row.op == "kv_append" or counts.n_rows)
        self.rows = plan.rows[: last + 1]
        self.ways = ways
        self.counts = counts
        self.lowered = Lowered(operands=dict(plan.operands))
        self.tuned_cache = has_tuned_cache(plan, ways)
        self.stacks = stacks(plan)
        # Activations that are there as int8, or as halves, and in which operands.
        self.int8: dict[str, Values] = {}
        self.halves: dict[str, Values] = {}
        self.made: set[str] = set()  # of those, by the rows that are being taken

    def run(self) -> None:
        """Apply the first rule that takes the next rows, until there are none."""
        rules = (self.qkv, self.gate_up, self.attention, self.add_norm, self.norm, self.product)
        at = 0
        while at < len(self.rows):
            taken = next((n for rule in rules if (n := rule(at))), 0) or self.single(at)
            for row in self.rows[at : at + taken]:
                for name in set(written(row)) - self.made:
                    self.int8.pop(name, None)
                    self.halves.pop(name, None)
            self.made = set()
            at += taken

    def find_leading(self) -> None:
        """A row that finds the largest logits."""
        name = self.buffer("leading", "R", WORDS, dtype="i32")
        unit = tuned_unit("leading", "", {}, self.ways.chip)
        assert unit is not None
        self.lowered.append(Row("leading", {"leading": name, "logits": "logits"}), unit)

    def unit(self, op: str, variant: str = "", **dims: int) -> Unit | None:
        """A tuned kernel, if it may be taken."""
        if not self.ways.tuned:
            return None
        return tuned_unit(op, variant, {"T": self.counts.n_tokens, **dims}, self.ways.chip)

    def add(self, op: str, variant: str, operands: Values, **dims: int) -> None:
        """Append a row of a tuned kernel."""
        unit = self.unit(op, variant, **dims)
        assert unit is not None, f"{op} {variant} has no tuned kernel for {dims}"
        self.lowered.append(Row(op, operands, variant), unit)

    def buffer(self, name: str, *shape: int | str, dtype: str = "f32") -> str:
        self.lowered.operands[name] = Operand("buffer", dtype, shape)
        return name

    def count_of(self, name: str) -> int:
        """Tokens, or rows of logits, that an operand is for."""
        symbol = self.lowered.operands[name].shape[0]
        return max(self.counts.n_rows, 1) if symbol == "R" else self.counts.n_tokens

    def product_op(self, row: Row) -> str | None:
        """The op whose tuned kernel does this matmul, if there is one."""
        if row.op != "matmul":
            return None
        x = str(row.operands["x"])
        singly = self.counts.alone or self.lowered.operands[x].shape[0] == "R"
        operands = self.lowered.operands
        return product_op(row, operands, self.count_of(x), self.ways, singly=singly)

    def wants_int8(self, name: str, at: int) -> bool:
        """Whether all that reads an operand from row `at` on takes it as int8."""
        readers = 0
        for row in self.rows[at:]:
            if name in row.operands.values():
                if name in written(row):
                    break
                if self.product_op(row) != "matmul_int8":
                    return False
                readers += 1
        return readers > 0

    def make_int8(self, name: str) -> Values:
        """The operands that will hold an operand as int8, of which there is one at a time."""
        found = int8_operands(self.lowered.operands[name].shape)
        self.lowered.operands |= dict(found.values())
        names: Values = {key: operand for key, (operand, _) in found.items()}
        self.int8 = {name: names}
        self.made.add(name)
        return names

    def activations(self, op: str, variant: str, x: str) -> Values:
        """What a product takes x as; made of x if that is not done yet."""
        if op == "matmul_int8":
            if x not in self.int8:
                self.add("quantize", "", {**self.make_int8(x), "x": x})
            return self.int8[x]
        if op == "matmul_halves":
            kind = variant if variant in FLOATS else "f16"
            if self.halves.get(x, {}).get("kind") != kind:
                self.make_halves(x, kind)
            return {"xh": self.halves[x]["xh"], "K": columns(self.lowered.operands[x])}
        return {"x": x}

    def make_halves(self, x: str, kind: str) -> None:
        """A row that makes x halves in tiles of 128 tokens by 256 columns; one x at a time."""
        rows, n = self.lowered.operands[x].shape[0], columns(self.lowered.operands[x])
        tiles = -(-self.count_of(x) // 128) * -(-n // 256)
        xh = self.buffer(f"xh.{rows}.{n}", 128 * 256 * tiles, dtype="u16")
        self.add("halve", kind, {"xh": xh, "x": x})
        self.halves = {x: {"xh": xh, "kind": kind}}

    def packed(self, weights: list[str], variant: str, n_in: int) -> str:
        """The packed operand of weights that lie one under the other, or of one of them."""
        stack = self.stacks.get(weights[0], [weights[0]])
        name = f"{'+'.join(stack)}:packed"
        parts, offset, rows, row_bytes = [], 0, 0, 0
        views: dict[str, tuple[int, int]] = {}
        for weight in stack:
            n = int(self.lowered.operands[weight].shape[0])
            part_rows, row_bytes = packed_shape(variant, n, n_in)
            parts.append(Part(weight, variant, offset, part_rows * row_bytes))
            views[weight] = (offset, part_rows)
            offset += part_rows * row_bytes
            rows += part_rows
        self.lowered.operands[name] = Operand("packed", "u8", (rows, row_bytes))
        self.lowered.packed[name] = parts
        if weights == stack:
            return name
        (weight,) = weights
        view = f"{weight}:view"
        self.lowered.operands[view] = Operand("view", "u8", (views[weight][1], row_bytes))
        self.lowered.views[view] = name, views[weight][0]
        return view

    def are_stacked(self, rows: list[Row]) -> bool:
        """Whether one product can do all of these."""
        weights = [str(row.operands["weight"]) for row in rows]
        return self.product_op(rows[0]) is not None and self.stacks.get(weights[0]) == weights

    def multiply(self, rows: list[Row], out: str) -> None:
        """One product in place of several, or of one, whose outputs lie side by side in `out`."""
        op, x = self.product_op(rows[0]), str(rows[0].operands["x"])
        assert op is not None
        variant, weights = rows[0].variant, [str(row.operands["weight"]) for row in rows]
        values = self.activations(op, variant, x)
        packed = self.packed(weights, variant, columns(self.lowered.operands[x]))
        dims = product_dims(rows[0], self.lowered.operands, self.count_of(x))
        operands = self.lowered.operands
        dims["N"] = sum(int(operands[weight].shape[0]) for weight in weights)
        self.add(op, variant, {"out": out, "weight": packed, **values}, **dims)

    def qkv(self, at: int) -> int:
        """q, k and v of one product; then the rotation of q, and that of k with the cache. In front
        of a quantised cache all heads are turned on the way."""
        turns = [row.op for row in self.rows[at + 5 : at + 8]] == ["hadamard"] * 3
        n_rows = 9 if turns else 6
        rows = self.rows[at : at + n_rows]
        wanted = ["matmul"] * 3 + ["rope"] * 2 + ["hadamard"] * (n_rows - 6) + ["kv_append"]
        if not self.tuned_cache or [row.op for row in rows] != wanted:
            return 0
        q, k, v = (str(row.operands["out"]) for row in rows[:3])
        append, turn = rows[-1], rows[3].operands["turns"]
        if [row.operands["x"] for row in rows[3:-1]] != [q, k, q, k, v][: n_rows - 4]:
            return 0
        cached = [append.operands["k"], append.operands["v"]]
        if cached != [k, v] or not self.are_stacked(rows[:3]):
            return 0
        tokens, heads, head_dim = self.lowered.operands[q].shape
        all_heads = int(heads) + 2 * int(self.lowered.operands[k].shape[1])
        op, variant = ("rope_turn", "") if turns else ("rope_append", append.variant)
        sizes = {"head_dim": int(head_dim)} if turns else {}
        if self.unit(op, variant, **sizes) is None:
            return 0
        qkv = self.buffer("qkv", tokens, all_heads, head_dim)
        self.multiply(rows[:3], qkv)
        operands: Values = {"q": q, "qkv": qkv, "turns": turn}
        if turns:
            self.add(op, variant, {**operands, "k": k, "v": v}, **sizes)
            self.add("kv_append", append.variant, dict(append.operands))
        else:
            operands |= {key: append.operands[key] for key in ("k_cache", "v_cache", *WHERE)}
            self.add(op, variant, operands)
        return n_rows

    def gate_up(self, at: int) -> int:
        """gate and up of one product; then SwiGLU to int8."""
        rows = self.rows[at : at + 3]
        if [row.op for row in rows] != ["matmul", "matmul", "swiglu"]:
            return 0
        gate, up = (str(row.operands["out"]) for row in rows[:2])
        out = str(rows[2].operands["out"])
        fits = (rows[2].operands["gate"], rows[2].operands["up"]) == (gate, up)
        if not fits or not self.are_stacked(rows[:2]) or not self.wants_int8(out, at + 3):
            return 0
        if self.unit("swiglu_quantize") is None:
            return 0
        tokens, n = self.lowered.operands[gate].shape
        both = self.buffer(f"gate_up.{tokens}", tokens, 2, n)
        self.multiply(rows[:2], both)
        self.add("swiglu_quantize", "", {**self.make_int8(out), "gate_up": both})
        return 3

    def attention(self, at: int) -> int:
        """Attention of a few tokens by chunks, and their sum; or of many at once."""
        row = self.rows[at]
        if row.op != "attention" or not self.tuned_cache:
            return 0
        out, q = str(row.operands["out"]), str(row.operands["q"])
        _, heads, head_dim = self.lowered.operands[q].shape
        size, n_tokens = int(head_dim), self.counts.n_tokens
        many = many_attention(row, size, self.ways)
        few = FEW_ALONE if self.counts.alone else 1
        if n_tokens * self.counts.n_blocks > MOST_CHUNKS:
            few = 1
        if many is not None and n_tokens > few:
            self.lowered.append(row, many)
            return 1
        assert n_tokens <= FEW_ALONE
        assert many is not None or n_tokens <= FEW
        parts: Values = {
            "sums": self.buffer("chunk.sums", n_tokens, heads, "B", head_dim),
            "weights": self.buffer("chunk.weights", n_tokens, heads, "B", 2),
        }
        inputs = {key: value for key, value in row.operands.items() if key != "out"}
        self.add("attention_chunks", row.variant, {**parts, **inputs}, head_dim=size)
        op = "attention_merge"
        made: Values = {"out": out}
        if self.unit("attention_merge_quantize", head_dim=size) and self.wants_int8(out, at + 1):
            op, made = "attention_merge_quantize", self.make_int8(out)
        self.add(op, "", {**made, **parts}, head_dim=size)
        return 1

    def add_norm(self, at: int) -> int:
        """A residual sum and the normalisation of it."""
        rows = self.rows[at : at + 2]
        if [row.op for row in rows] != ["add", "rmsnorm"]:
            return 0
        x, out = rows[0].operands["out"], str(rows[1].operands["out"])
        quantizing = self.wants_int8(out, at + 2)
        op = "add_rmsnorm_quantize" if quantizing else "add_rmsnorm"
        if rows[1].operands["x"] != x or self.unit(op) is None:
            return 0
        made: Values = self.make_int8(out) if quantizing else {"out": out}
        rest = {key: rows[1].operands[key] for key in ("weight", "eps")}
        self.add(op, "", {"x": x, **made, "y": rows[0].operands["x"], **rest})
        return 2

    def norm(self, at: int) -> int:
        """A normalisation to int8."""
        row = self.rows[at]
        if row.op != "rmsnorm" or self.unit("rmsnorm_quantize") is None:
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
        if self.product_op(row) is None:
            return 0
        self.multiply([row], str(row.operands["out"]))
        return 1

    def single(self, at: int) -> int:
        """The op's own kernel, tuned or portable."""
        row = self.rows[at]
        unit: Unit | None = None
        takes_tuned = self.ways.tuned or (self.ways.exact and row.op in EXACT)
        if row.op in CACHE_OPS:
            takes_tuned = self.tuned_cache
        if takes_tuned and not self.ways.portable and row.op != "matmul":
            dims = {"T": self.counts.n_tokens}
            if row.op == "hadamard":
                dims["head_dim"] = int(self.lowered.operands[str(row.operands["x"])].shape[-1])
            unit = tuned_unit(row.op, row.variant, dims, self.ways.chip)
        self.lowered.append(row, unit or portable_unit(row.op, row.variant))
        return 1
