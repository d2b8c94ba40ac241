"""A Session read back from its JSON: reported again without running anything."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gradmend.errors import UsageError
from gradmend.model import (
    SCHEMA,
    Conflict,
    Culprit,
    Edit,
    Event,
    Fix,
    Frame,
    History,
    Lane,
    Node,
    Save,
    Session,
    Site,
    TensorInfo,
    Write,
)
from gradmend.report.excerpt import harmless


def read(path: str) -> Session:
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON: {error}") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or "conflicts" not in data:
        raise UsageError(
            f"{path} is no session of this version of Gradmend (schema {SCHEMA}): `gradmend run --report` writes one"
        )
    with damaged(path):
        return from_json(_shown(data))


@contextmanager
def damaged(path: str) -> Iterator[None]:
    """A file that somebody has changed may hold anything anywhere: what can't be told is said so."""
    try:
        yield
    except UsageError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise UsageError(f"{path} is a damaged session: {type(error).__name__} {error}") from None


def _shown(value: Any) -> Any:
    """Without what would steer a terminal."""
    if isinstance(value, str):
        return harmless(value)
    if isinstance(value, list):
        return [_shown(one) for one in value]
    return {key: _shown(one) for key, one in value.items()} if isinstance(value, dict) else value


def from_json(data: dict[str, Any]) -> Session:
    return Session(
        outcome=data["outcome"],
        conflicts=[_conflict(c) for c in data["conflicts"]],
        error=data.get("error"),
        stats=data.get("stats") or {},
        run=data.get("run") or {},
    )


def _conflict(data: dict[str, Any]) -> Conflict:
    saved, backward = data.get("saved"), data.get("backward")
    return Conflict(
        rule=data["rule"],
        kind=data["kind"],
        message=data["message"],
        culprits=tuple(Culprit(**c) for c in data["culprits"]),
        saved=_save(saved) if saved else None,
        writes=tuple(_write(w) for w in data["writes"]),
        backward=Frame(**backward) if backward else None,
        healed_bytes=data.get("healed_bytes", 0),
        times=data.get("times", 1),
        versions=_versions(data.get("versions")),
        why=data.get("why", ""),
        notes=tuple(data.get("notes", ())),
        help=tuple(data.get("help", ())),
        edit=data.get("edit", ""),
        fixes=tuple(
            Fix(**{**f, "edits": tuple(Edit(**e) for e in f.get("edits", ()))}) for f in data.get("fixes", ())
        ),
        history=_history(data["history"]) if data.get("history") else None,
    )


def _versions(data: Sequence[int] | None) -> tuple[int, int] | None:
    if data is None:
        return None
    now, saved = data
    return int(now), int(saved)


def _history(data: dict[str, Any]) -> History:
    return History(
        nbytes=data["nbytes"],
        lanes=tuple(Lane(lo, hi, _tensor(tensor)) for lo, hi, tensor in data["lanes"]),
        events=tuple(_event(row) for row in data["events"]),
        places=tuple((file, line, function) for file, line, function in data["places"]),
        changed=tuple((lo, hi) for lo, hi in data["changed"]),
        left_out=data["left_out"],
        views=tuple(data["views"]),
        graph=tuple(Node(*row) for row in data["graph"]),
    )


def _event(row: Sequence[Any]) -> Event:
    what, tick, lane, place, op, ours, version, quiet, values = row
    span = (values[0], values[1]) if values else None
    return Event(what, tick, lane, place, op, ours, version, quiet, span)


def _site(data: dict[str, Any]) -> Site:
    return Site(tuple(Frame(**f) for f in data.get("stack") or ()))


def _tensor(data: dict[str, Any]) -> TensorInfo:
    return TensorInfo(tuple(data["shape"]), data["dtype"], data["name"])


def _save(data: dict[str, Any]) -> Save:
    return Save(
        _site(data),
        data["op"],
        data.get("node", ""),
        data.get("slot"),
        _tensor(data["tensor"]),
        data.get("view"),
        bool(data.get("leaf")),
    )


def _write(data: dict[str, Any]) -> Write:
    return Write(
        _site(data),
        data["op"],
        _tensor(data["tensor"]),
        data["how"],
        data["quiet"],
        data["times"],
        data.get("view"),
    )
