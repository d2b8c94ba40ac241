"""What sparse code raises, and the sentences it says: kept together so that they read alike."""

from __future__ import annotations

from gradmend.errors import GradmendError

INT64_MAX = 2**63 - 1


class SparseError(GradmendError):
    """The base: something about a sparse tensor can't be done as written."""


class PatternError(SparseError, ValueError):
    """Indices, sizes or values that don't describe a sparse tensor."""


class DenseResultError(SparseError, NotImplementedError):
    """The result would hold a number in every entry, also where nothing is stored."""


class UnsupportedError(SparseError, NotImplementedError):
    """An operation that SparseTensor doesn't answer."""


class MissingError(UnsupportedError, AttributeError):
    """A method that torch.Tensor has and SparseTensor has not."""


class OutsideError(SparseError, IndexError):
    """A dimension that a tensor doesn't have, or an index that a dimension doesn't: torch's IndexError too."""


class ArgumentError(SparseError, TypeError, ValueError):
    """Arguments that an operation can't take."""


def dense_result(name: str, why: str) -> DenseResultError:
    return DenseResultError(
        f"{name} of a sparse tensor is dense in every entry ({why}): "
        f"write S.map(...) to change the stored entries only, or S.to_dense() to get all of them."
    )


def too_large(name: str, size: tuple[int, ...]) -> PatternError:
    shape = " x ".join(str(n) for n in size)
    return PatternError(
        f"{name} would have the shape {shape}, whose entries can't be numbered by int64 "
        f"(at most {INT64_MAX}): make the operands smaller."
    )


def unsupported(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"{name} is not defined for SparseTensor: apply it to the stored entries with S.map(f), "
        f"to S.values(), or to S.to_dense()."
    )


def missing(name: str) -> MissingError:
    if name.endswith("_") and not name.endswith("__"):
        return MissingError(
            f"S.{name} would write in place, and a SparseTensor is never written to: use S.{name[:-1]} or S.map(f) "
            f"and keep what it returns."
        )
    return MissingError(str(unsupported(f"S.{name}")))


def torchs_own() -> SparseError:
    return SparseError(
        "one operand is a SparseTensor and the other is one of torch's own sparse tensors: convert that one with "
        "SparseTensor.from_torch(A)."
    )
