"""How many of a thing, in words."""


def count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"
