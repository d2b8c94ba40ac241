from typing import Any


def given(plain: Any, ctx: Any, args: tuple[Any, ...]) -> Any:
    return plain(ctx, *args)


def arm() -> None: ...
def disarm() -> None: ...
