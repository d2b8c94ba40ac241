"""Vectors as numba values: `acc = fma(v, load(tag, W, valid, addr, at, n), acc)` stays in registers.

Left to itself, numba does not vectorise a gather loop over addresses it can't prove apart (4x slower). With a
type of its own for a run of lanes, a kernel says what to keep in registers, and LLVM splits it to the machine.
Memory is addressed by `tensor.data_ptr()`: plain integers are also the cheapest arguments a call can have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils
from numba.core.datamodel import models

# numba's own annotations take a kernel's body for Python.
Decorator = Callable[[Callable[..., Any]], Any]
intrinsic: Decorator = extending.intrinsic
literal: Decorator = extending.intrinsic(prefer_literal=True)

_I8, _I16, _I32, _I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
_FLOAT, _DOUBLE = ir.FloatType(), ir.DoubleType()
_UNDEFINED = ir.Undefined

# tag: how an element lies in memory; 16-bit floats are computed with in 32 bits.
_STORED = {"f32": _FLOAT, "f64": _DOUBLE, "f16": ir.HalfType(), "bf16": _I16, "i64": _I64}
_COMPUTED: dict[str, Any] = {
    "f32": types.float32,
    "f64": types.float64,
    "f16": types.float32,
    "bf16": types.float32,
    "i64": types.int64,
}


class Lanes(types.Type):
    """`width` numbers of one scalar type, computed with at once: vectors of `part` lanes, one after the other.

    LLVM makes poor code of a vector whose length is no power of two, and good code of several that are.
    """

    def __init__(self, scalar: types.Type, width: int) -> None:
        self.scalar, self.width = scalar, width
        self.part = min(width & -width, 16 if scalar is types.float32 else 8)
        super().__init__(name=f"Lanes({scalar} x {width})")

    @property
    def parts(self) -> int:
        return self.width // self.part

    @property
    def element(self) -> ir.Type:
        return _FLOAT if self.scalar is types.float32 else _DOUBLE

    @property
    def vector(self) -> ir.Type:
        return ir.VectorType(self.element, self.part)

    @property
    def suffix(self) -> str:
        return f"v{self.part}{'f32' if self.scalar is types.float32 else 'f64'}"


@extending.register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        super().__init__(manager, lanes, ir.ArrayType(lanes.vector, lanes.parts))


def _split(b: Any, lanes: Lanes, x: Any) -> list[Any]:
    return [b.extract_value(x, i) for i in range(lanes.parts)]


def _whole(b: Any, lanes: Lanes, parts: list[Any]) -> Any:
    x = ir.Constant(ir.ArrayType(lanes.vector, lanes.parts), _UNDEFINED)
    for i, part in enumerate(parts):
        x = b.insert_value(x, part, i)
    return x


def _each(b: Any, lanes: Lanes, f: Callable[..., Any], *xs: Any) -> Any:
    """f, part by part."""
    split = [_split(b, lanes, x) for x in xs]
    return _whole(b, lanes, [f(*row) for row in zip(*split, strict=True)])


def _lanes(tag: Any, width: Any) -> Lanes:
    return Lanes(_COMPUTED[tag.literal_value], width.literal_value)


def _call(b: Any, name: str, result: ir.Type, args: list[Any], **flags: Any) -> Any:
    kind = ir.FunctionType(result, [a.type for a in args])
    return b.call(cgutils.get_or_insert_function(b.module, kind, name), args, **flags)


def _at(b: Any, addr: Any, index: Any, element: ir.Type) -> Any:
    return b.gep(b.inttoptr(addr, element.as_pointer()), [index])


def _splat(b: Any, x: Any, width: int) -> Any:
    kind = ir.VectorType(x.type, width)
    one = b.insert_element(ir.Constant(kind, _UNDEFINED), x, _I32(0))
    return b.shuffle_vector(one, ir.Constant(kind, _UNDEFINED), ir.Constant(ir.VectorType(_I32, width), None))


def _mask(b: Any, n: Any, width: int) -> Any:
    ramp = ir.Constant(ir.VectorType(_I64, width), [_I64(i) for i in range(width)])
    return b.icmp_signed("<", ramp, _splat(b, n, width))


def _widen(b: Any, tag: str, x: Any, kind: ir.Type) -> Any:
    """From memory's type to the computed one; works on scalars and vectors alike."""
    if tag == "bf16":
        wide = ir.VectorType(_I32, kind.count) if isinstance(kind, ir.VectorType) else _I32
        sixteen = ir.Constant(wide, [_I32(16)] * kind.count) if isinstance(kind, ir.VectorType) else _I32(16)
        return b.bitcast(b.shl(b.zext(x, wide), sixteen), kind)
    return b.fpext(x, kind) if tag == "f16" else x


def _narrow(b: Any, tag: str, x: Any) -> Any:
    """Back again, to the nearest, ties to even; NaN stays NaN."""
    if tag == "f16":
        return b.fptrunc(x, ir.VectorType(ir.HalfType(), x.type.count))
    if tag != "bf16":
        return x
    width = x.type.count
    wide = ir.VectorType(_I32, width)

    def const(n: int) -> Any:
        return ir.Constant(wide, [_I32(n)] * width)

    bits = b.bitcast(x, wide)
    odd = b.and_(b.lshr(bits, const(16)), const(1))
    rounded = b.add(bits, b.add(odd, const(0x7FFF)))
    rounded = b.select(b.fcmp_unordered("uno", x, x), const(0x7FC00000), rounded)
    return b.trunc(b.lshr(rounded, const(16)), ir.VectorType(_I16, width))


def _size(tag: str) -> int:
    return {"f32": 4, "f64": 8, "f16": 2, "bf16": 2, "i64": 8}[tag]


Emit = Callable[[Any, Any, Any, Any], Any]
Typed = tuple[Any, Emit]


@literal
def fill(_: Any, tag: Any, width: Any, x: Any) -> Typed:
    lanes = _lanes(tag, width)

    def emit(context: Any, b: Any, signature: Any, a: Any) -> Any:
        one = _splat(b, context.cast(b, a[2], signature.args[2], lanes.scalar), lanes.part)
        return _whole(b, lanes, [one] * lanes.parts)

    return lanes(tag, width, x), emit


def _join(b: Any, parts: list[Any], width: int) -> Any:
    """Short vectors one after the other, zeros behind them, as one of `width` lanes."""
    whole = ir.Constant(ir.VectorType(parts[0].type.element, width), None)
    at = 0
    for part in parts:
        n = part.type.count
        spread = [_I32(i - at if at <= i < at + n else n) for i in range(width)]
        lanes = ir.Constant(ir.VectorType(_I32, width), spread)
        long = b.shuffle_vector(part, ir.Constant(part.type, None), lanes)
        pick = [_I32(width + i if at <= i < at + n else i) for i in range(width)]
        whole = b.shuffle_vector(whole, long, ir.Constant(ir.VectorType(_I32, width), pick))
        at += n
    return whole


def _cut(b: Any, x: Any, at: int, n: int) -> Any:
    """Lanes `at` to `at + n`."""
    lanes = ir.Constant(ir.VectorType(_I32, n), [_I32(at + i) for i in range(n)])
    return b.shuffle_vector(x, ir.Constant(x.type, _UNDEFINED), lanes)


def _pieces(n: int) -> list[tuple[int, int]]:
    """(first lane, lanes): n lanes as ever shorter vectors, for machines that can't leave lanes out."""
    made, at = [], 0
    while at < n:
        size = 1 << ((n - at).bit_length() - 1)
        made.append((at, size))
        at += size
    return made


def _typed(t: str, lanes: int) -> str:
    return f"v{lanes}{'i16' if t == 'bf16' else t}.p0"


def _share(lanes: Lanes, valid: int, i: int) -> int:
    """How many lanes of part i are there: all, some, none (0), or a number known when it runs (-1).

    valid == width: all of the run is there. valid < 0: all but some of the last part, which is masked. Otherwise
    `valid` lanes are.
    """
    if valid < 0:
        return -1 if i == lanes.parts - 1 else lanes.part
    return min(max(valid - i * lanes.part, 0), lanes.part)


@literal
def load(_: Any, tag: Any, width: Any, valid: Any, addr: Any, index: Any, n: Any) -> Typed:
    """`width` elements from `index` on; of a run that is not whole only the first `n`, the others 0."""
    lanes, t = _lanes(tag, width), tag.literal_value
    kind = ir.VectorType(_STORED[t], lanes.part)

    def read(b: Any, first: Any, i: int, left: Any) -> Any:
        there, at = _share(lanes, valid.literal_value, i), i * lanes.part
        if there == 0:
            return ir.Constant(kind, None)
        p = b.gep(first, [_I64(at)])
        if there < 0:
            mask = _mask(b, b.sub(left, _I64(at)), lanes.part)
            args = [b.bitcast(p, kind.as_pointer()), _I32(_size(t)), mask, ir.Constant(kind, None)]
            return _call(b, f"llvm.masked.load.{_typed(t, lanes.part)}", kind, args)
        found = []
        for start, count in _pieces(there):
            part = ir.VectorType(_STORED[t], count)
            found.append(b.load(b.bitcast(b.gep(p, [_I64(start)]), part.as_pointer())))
            found[-1].align = _size(t)
        return found[0] if there == lanes.part else _join(b, found, lanes.part)

    def emit(context: Any, b: Any, signature: Any, a: Any) -> Any:
        first = _at(b, a[3], a[4], _STORED[t])
        parts = [read(b, first, i, a[5]) for i in range(lanes.parts)]
        return _whole(b, lanes, [_widen(b, t, x, lanes.vector) for x in parts])

    return lanes(tag, width, valid, addr, index, n), emit


@literal
def store(_: Any, tag: Any, width: Any, valid: Any, lanes: Any, addr: Any, index: Any, n: Any) -> Typed:
    t = tag.literal_value

    def write(b: Any, x: Any, first: Any, i: int, left: Any) -> None:
        there, at = _share(lanes, valid.literal_value, i), i * lanes.part
        if there == 0:
            return
        p, x = b.gep(first, [_I64(at)]), _narrow(b, t, x)
        if there < 0:
            mask = _mask(b, b.sub(left, _I64(at)), lanes.part)
            args = [x, b.bitcast(p, x.type.as_pointer()), _I32(_size(t)), mask]
            _call(b, f"llvm.masked.store.{_typed(t, lanes.part)}", ir.VoidType(), args)
            return
        for start, count in _pieces(there):
            part = x if count == lanes.part else _cut(b, x, start, count)
            b.store(part, b.bitcast(b.gep(p, [_I64(start)]), part.type.as_pointer())).align = _size(t)

    def emit(context: Any, b: Any, signature: Any, a: Any) -> Any:
        first = _at(b, a[4], a[5], _STORED[t])
        for i, x in enumerate(_split(b, lanes, a[3])):
            write(b, x, first, i, a[6])
        return context.get_dummy_value()

    return types.void(tag, width, valid, lanes, addr, index, n), emit


@intrinsic
def fma(_: Any, x: Any, lanes: Any, acc: Any) -> Typed:
    """acc + x * lanes, for a scalar x; rounded once where the machine can (`fma` would call a function elsewhere)."""

    def emit(context: Any, b: Any, signature: Any, a: Any) -> Any:
        v = _splat(b, a[0], lanes.part)
        return _each(
            b,
            lanes,
            lambda x, y: _call(b, f"llvm.fmuladd.{lanes.suffix}", lanes.vector, [v, x, y]),
            a[1],
            a[2],
        )

    return acc(x, lanes, acc), emit


@intrinsic
def fma_lanes(_: Any, x: Any, lanes: Any, acc: Any) -> Typed:
    """acc + x * lanes, lane by lane."""

    def emit(context: Any, b: Any, signature: Any, a: Any) -> Any:
        return _each(b, lanes, lambda *t: _call(b, f"llvm.fmuladd.{lanes.suffix}", lanes.vector, list(t)), *a)

    return acc(x, lanes, acc), emit


def _binary(op: str) -> Any:
    @intrinsic
    def binary(_: Any, x: Any, y: Any) -> Typed:
        def one(b: Any, p: Any, q: Any) -> Any:
            if op in ("maximum", "minimum"):  # as torch's: NaN wins
                worse = "<" if op == "maximum" else ">"
                return b.select(b.or_(b.fcmp_ordered(worse, p, q), b.fcmp_unordered("uno", q, q)), q, p)
            return getattr(b, op)(p, q)

        def emit(context: Any, b: Any, signature: Any, a: Any) -> Any:
            return _each(b, x, lambda p, q: one(b, p, q), *a)

        return x(x, y), emit

    return binary


add, sub, mul, div = (_binary(op) for op in ("fadd", "fsub", "fmul", "fdiv"))
maximum, minimum = _binary("maximum"), _binary("minimum")


@intrinsic
def dot(_: Any, x: Any, y: Any) -> Typed:
    """The sum of x * y over the lanes, in whatever order is fastest."""

    def emit(context: Any, b: Any, signature: Any, a: Any) -> Any:
        free = ("reassoc", "contract")
        terms = [
            b.fmul(p, q, flags=free) for p, q in zip(_split(b, x, a[0]), _split(b, x, a[1]), strict=True)
        ]
        while len(terms) > 1:
            terms = [
                *(
                    b.fadd(p, q, flags=free)
                    for p, q in zip(terms[0 : len(terms) // 2 * 2 : 2], terms[1::2], strict=True)
                ),
                *terms[len(terms) // 2 * 2 :],
            ]
        args = [ir.Constant(x.element, -0.0), terms[0]]
        name = f"llvm.vector.reduce.fadd.{x.suffix}"
        return _call(b, name, x.element, args, fastmath=("reassoc", "contract"))

    return x.scalar(x, y), emit


@literal
def get(_: Any, tag: Any, addr: Any, index: Any) -> Typed:
    t = tag.literal_value
    kind = _COMPUTED[t]

    def emit(context: Any, b: Any, signature: Any, a: Any) -> Any:
        x = b.load(_at(b, a[1], a[2], _STORED[t]))
        return _widen(b, t, x, _FLOAT) if t in ("f16", "bf16") else x

    return kind(tag, addr, index), emit


@literal
def put(_: Any, tag: Any, addr: Any, index: Any, x: Any) -> Typed:
    """Only for types that need no rounding: f32, f64, i64."""
    t = tag.literal_value

    def emit(context: Any, b: Any, signature: Any, a: Any) -> Any:
        b.store(a[3], _at(b, a[1], a[2], _STORED[t]))
        return context.get_dummy_value()

    return types.void(tag, addr, index, _COMPUTED[t]), emit


@literal
def prefetch(_: Any, tag: Any, width: Any, addr: Any, index: Any) -> Typed:
    """Ask for the cache lines of `width` elements, into the second level: a hint that can't fault."""
    t = tag.literal_value

    def emit(context: Any, b: Any, signature: Any, a: Any) -> Any:
        p = b.bitcast(_at(b, a[2], a[3], _STORED[t]), _I8.as_pointer())
        for offset in range(0, width.literal_value * _size(t), 64):
            args = [b.gep(p, [_I64(offset)]), _I32(0), _I32(2), _I32(1)]
            _call(b, "llvm.prefetch.p0", ir.VoidType(), args)
        return context.get_dummy_value()

    return types.void(tag, width, addr, index), emit


@intrinsic
def sqrt(_: Any, x: Any) -> Typed:
    def emit(context: Any, b: Any, signature: Any, a: Any) -> Any:
        return _each(b, x, lambda p: _call(b, f"llvm.sqrt.{x.suffix}", x.vector, [p]), *a)

    return x(x), emit


@intrinsic
def lowest_bit(context: Any, word: Any) -> Any:
    """The place of the lowest bit of a word that is not 0."""

    def build(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), build
