"""Vectors as numba values: `acc = fma(v, load(tag, W, exact, addr, at, n), acc)` stays in registers.

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
    """`width` numbers of one scalar type, computed with at once."""

    def __init__(self, scalar: types.Type, width: int) -> None:
        self.scalar, self.width = scalar, width
        super().__init__(name=f"Lanes({scalar} x {width})")

    @property
    def element(self) -> ir.Type:
        return _FLOAT if self.scalar is types.float32 else _DOUBLE

    @property
    def vector(self) -> ir.Type:
        return ir.VectorType(self.element, self.width)

    @property
    def suffix(self) -> str:
        return f"v{self.width}{'f32' if self.scalar is types.float32 else 'f64'}"


@extending.register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        super().__init__(manager, lanes, lanes.vector)


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
        return _splat(b, context.cast(b, a[2], signature.args[2], lanes.scalar), lanes.width)

    return lanes(tag, width, x), emit


@literal
def load(_: Any, tag: Any, width: Any, exact: Any, addr: Any, index: Any, n: Any) -> Typed:
    """`width` elements from `index` on; when not `exact`, only the first `n`, the others 0."""
    lanes, t = _lanes(tag, width), tag.literal_value
    stored = ir.VectorType(_STORED[t], lanes.width)

    def emit(context: Any, b: Any, signature: Any, a: Any) -> Any:
        p = b.bitcast(_at(b, a[3], a[4], _STORED[t]), stored.as_pointer())
        if exact.literal_value:
            x = b.load(p)
            x.align = _size(t)
        else:
            name = f"llvm.masked.load.v{lanes.width}{'i16' if t == 'bf16' else t}.p0"
            mask = _mask(b, a[5], lanes.width)
            x = _call(b, name, stored, [p, _I32(_size(t)), mask, ir.Constant(stored, None)])
        return _widen(b, t, x, lanes.vector)

    return lanes(tag, width, exact, addr, index, n), emit


@literal
def store(_: Any, tag: Any, width: Any, exact: Any, lanes: Any, addr: Any, index: Any, n: Any) -> Typed:
    t = tag.literal_value
    stored = ir.VectorType(_STORED[t], lanes.width)

    def emit(context: Any, b: Any, signature: Any, a: Any) -> Any:
        p = b.bitcast(_at(b, a[4], a[5], _STORED[t]), stored.as_pointer())
        x = _narrow(b, t, a[3])
        if exact.literal_value:
            b.store(x, p).align = _size(t)
        else:
            name = f"llvm.masked.store.v{lanes.width}{'i16' if t == 'bf16' else t}.p0"
            _call(b, name, ir.VoidType(), [x, p, _I32(_size(t)), _mask(b, a[6], lanes.width)])
        return context.get_dummy_value()

    return types.void(tag, width, exact, lanes, addr, index, n), emit


@intrinsic
def fma(_: Any, x: Any, lanes: Any, acc: Any) -> Typed:
    """acc + x * lanes, for a scalar x."""

    def emit(context: Any, b: Any, signature: Any, a: Any) -> Any:
        args = [_splat(b, a[0], lanes.width), a[1], a[2]]
        return _call(b, f"llvm.fma.{lanes.suffix}", lanes.vector, args)

    return acc(x, lanes, acc), emit


@intrinsic
def fma_lanes(_: Any, x: Any, lanes: Any, acc: Any) -> Typed:
    """acc + x * lanes, lane by lane."""

    def emit(context: Any, b: Any, signature: Any, a: Any) -> Any:
        return _call(b, f"llvm.fma.{lanes.suffix}", lanes.vector, list(a))

    return acc(x, lanes, acc), emit


def _binary(op: str) -> Any:
    @intrinsic
    def binary(_: Any, x: Any, y: Any) -> Typed:
        def emit(context: Any, b: Any, signature: Any, a: Any) -> Any:
            if op in ("maximum", "minimum"):  # as torch's: NaN wins
                worse = "<" if op == "maximum" else ">"
                keep_y = b.or_(b.fcmp_ordered(worse, a[0], a[1]), b.fcmp_unordered("uno", a[1], a[1]))
                return b.select(keep_y, a[1], a[0])
            return getattr(b, op)(a[0], a[1])

        return x(x, y), emit

    return binary


add, sub, mul, div = (_binary(op) for op in ("fadd", "fsub", "fmul", "fdiv"))
maximum, minimum = _binary("maximum"), _binary("minimum")


@intrinsic
def dot(_: Any, x: Any, y: Any) -> Typed:
    """The sum of x * y over the lanes, in whatever order is fastest."""

    def emit(context: Any, b: Any, signature: Any, a: Any) -> Any:
        product = b.fmul(a[0], a[1], flags=("reassoc", "contract"))
        args = [ir.Constant(x.element, -0.0), product]
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
        return _call(b, f"llvm.sqrt.{x.suffix}", x.vector, list(a))

    return x(x), emit


@intrinsic
def lowest_bit(context: Any, word: Any) -> Any:
    """The place of the lowest bit of a word that is not 0."""

    def build(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), build
