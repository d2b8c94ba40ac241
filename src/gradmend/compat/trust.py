"""What may be relied on with the installed torch: all of it on a tested release, elsewhere what the canaries say.

They run once, in a child, and are remembered by the builds of torch and Python and by our own version. Where a road does
not hold, nobody can say whether the program takes it: heal() stops when it is entered, watch() says what it can't see.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import warnings
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from gradmend.compat.releases import TESTED, is_tested
from gradmend.errors import GradmendError, GradmendWarning

_SECONDS = 180  # a child that takes longer hangs
_INSIDE = "GRADMEND_CANARIES"  # set in the child, which must not ask again
_TRUSTED = "GRADMEND_TRUST"

_one_at_a_time = threading.Lock()

Failures = dict[str, str]  # road -> why it does not hold


def require(policy: str) -> None:
    """Asked by every scope that opens: stops a heal() that could be silently wrong on this torch."""
    if is_tested(torch.__version__) or os.environ.get(_INSIDE):
        return
    broken = {road: why for road, why in failures().items() if road not in _trusted()}
    if not broken:
        return
    blind = "; ".join(f"{canaries().CANARIES[road].about} ({road}: {why})" for road, why in broken.items())
    if policy == "heal":
        raise GradmendError(
            f"gradmend.heal() stops: torch {torch.__version__} is not one of the releases that Gradmend is tested with "
            f"({TESTED[0]} to {TESTED[-1]}), and it can't promise right gradients for {blind}. Use one of those releases; "
            f"or, if your program does none of this, set {_TRUSTED}={','.join(broken)}"
        )
    _say_once(blind)


@cache
def _say_once(blind: str) -> None:
    warnings.warn(
        f"gradmend.watch() can't see everything on torch {torch.__version__}, which it is not tested with: {blind}. "
        "`gradmend doctor` tells more",
        GradmendWarning,
        stacklevel=4,
    )


def _trusted() -> set[str]:
    return set(os.environ.get(_TRUSTED, "").replace(",", " ").split())


def failures() -> Failures:
    """The roads that do not hold, from the last time that this very build was tried, or tried now."""
    with _one_at_a_time:
        return _failures()


@cache
def _failures() -> Failures:
    place = _cache_file()
    try:
        known = json.loads(place.read_text())
        told = isinstance(known, dict) and all(isinstance(why, str) for why in known.values())
        if told and set(known) <= set(canaries().CANARIES):
            return known
    except (OSError, ValueError, RecursionError):
        pass  # not there, or not as we left it
    found, complete = tried()
    if complete:
        _remember(place, found)
    return found


def tried() -> tuple[Failures, bool]:
    """Every canary, run now in a child, and whether each came to an end. One that kills its process is not asked twice."""
    found: Failures = {}
    left = list(canaries().CANARIES)
    while left:
        said, how = _child(left)
        for road, why in said:
            left.remove(road)
            if why is not None:
                found[road] = why
        if left:
            found[left[0]] = how
            if how.startswith(
                ("not run", "ended its process (-9)")
            ):  # killed from outside: nothing was learnt
                return {**found, **dict.fromkeys(left, how)}, False
            del left[0]
    return found, True


def _child(roads: list[str]) -> tuple[list[tuple[str, str | None]], str]:
    """What a child says of these roads, as far as it comes, and how it ended."""
    environment = {k: v for k, v in os.environ.items() if k != "GRADMEND"}
    environment[_INSIDE] = "1"
    # Where this program looks, so that the child finds the same torch.
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    # -P: a folder that happens to be the current one has no say in what is imported.
    code = "from gradmend.compat import trust; trust.in_child()"
    command = [sys.executable or "python3", "-P", "-c", code, *roads]
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return [], f"not run to its end in {_SECONDS} s"
    except OSError as error:
        return [], f"not run: {error}"
    said: list[tuple[str, str | None]] = []
    met = ""
    for line in done.stdout.splitlines():
        words = _json(line)
        if isinstance(words, list) and len(words) == 2 and words[0] == "torch":
            met = words[1]
        elif isinstance(words, list) and len(words) == 2 and words[0] in roads and words[0] not in dict(said):
            said.append((words[0], words[1]))
    if met != _build():
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return (
            [],
            f"not run: a child of {command[0]} finds {'torch ' + met if met else 'no torch'} {last}".rstrip(),
        )
    return said, f"ended its process ({done.returncode})"


def _json(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None  # something that torch printed


def _build() -> str:
    return f"{torch.__version__} {torch.version.git_version}"


def in_child() -> None:
    """Tells of each road that is named on the command line, as soon as it is known."""
    torch.set_num_threads(1)
    print(json.dumps(["torch", _build()]), flush=True)
    for road in sys.argv[1:]:
        print(json.dumps([road, canaries().failure_of(road)]), flush=True)


@cache
def canaries() -> ModuleType:
    """canaries.py as a program of the user's: by another file name than ours."""
    source = Path(__file__).with_name("canaries.py").read_text()
    module = ModuleType("canaries")
    sys.modules["canaries"] = module  # NamedTuple asks for the module that it is made in
    try:
        exec(compile(source, "<canaries>", "exec"), vars(module))
    finally:
        del sys.modules["canaries"]
    return module


def _cache_file() -> Path:
    from gradmend import __version__
    from gradmend.capture.native.loading import COMPILED

    build = (
        torch.__version__,
        torch.version.git_version,
        sys.version,
        __version__,
        COMPILED,
        _own_files(),
    )
    name = hashlib.sha256(repr(build).encode()).hexdigest()[:24]
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base, "gradmend", f"canaries-{name}.json")


def _own_files() -> list[tuple[str, int]]:
    """A copy that is being worked on changes while its version stays."""
    package = Path(__file__).parents[1]
    return sorted((path.name, path.stat().st_mtime_ns) for path in package.glob("c[ao]*/**/*.py"))


def _remember(place: Path, found: Failures) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=place.parent)
        with os.fdopen(handle, "w") as out:
            json.dump(found, out)
        try:
            os.replace(name, place)
        except OSError:
            os.unlink(name)
    except OSError:
        pass  # a home that can't be written: they run again next time
