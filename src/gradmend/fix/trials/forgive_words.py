"""What PyTorch says when it refuses a write in the forward, and in backward (2.8 to 2.13)."""

REFUSALS = (
    "a leaf Variable that requires grad",
    "a view of a leaf Variable",
    "is a view and is being modified inplace",
    "is a view and its base or another view of its base has been modified inplace",
    "can't detach views in-place",
    "support automatic differentiation, but one of the arguments requires grad",
    "a view was created in no_grad mode",
    "view was created in inference mode",
    "inference tensors cannot be saved for backward",
    "inplace update to inference tensor outside",
    "more than one element of the written-to tensor refers to a single memory location",
)

SHARED = REFUSALS[-1]
SECOND = "backward through the graph a second time"
CHANGED = "modified by an inplace operation"


def refused(message: str) -> bool:
    return any(text.lower() in message.lower() for text in REFUSALS)


def ours(message: str) -> bool:
    """Is this an error of the family that can be fixed?"""
    return refused(message) or SECOND in message or CHANGED in message


def in_short(message: str) -> str:
    """PyTorch's paragraph for an error of the family, in one clause."""
    if CHANGED in message:
        return "PyTorch still refuses backward(): a value that it needs is overwritten"
    if SECOND in message:
        return "a graph is still walked a second time"
    return "PyTorch still refuses a write in the forward" if refused(message) else ""
