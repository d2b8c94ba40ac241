"""`gradmend doctor`: what this machine, this Python and this torch are, and what Gradmend can rely on here."""

from __future__ import annotations

import argparse
import json
import platform
from typing import Any


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="what Gradmend can rely on here: for a bug report",
        description="Tells the versions, whether the compiled part is in use, which names are tapped, and tries each road on "
        "which a gradient could go wrong in silence. Exit code 1 when one of them does not hold.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    found = examine()
    print(json.dumps(found, indent=1) if args.json else _table(found))
    return 1 if any(found["roads"].values()) else 0


def examine() -> dict[str, Any]:
    import torch

    from gradmend import __version__
    from gradmend.capture.native.loading import form
    from gradmend.capture.taps.homes import patches
    from gradmend.capture.taps.missing import missing
    from gradmend.compat import trust
    from gradmend.compat.releases import is_tested

    broken, _ = trust.tried()
    return {
        "gradmend": f"{__version__} ({form()})",
        "torch": torch.__version__,
        "torch is tested": is_tested(torch.__version__),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "numba": _version_of("numba"),
        "numpy": _version_of("numpy"),
        "libcst": _version_of("libcst"),
        "taps found": len(patches()),
        "taps missing": missing(),
        "roads": {road: broken.get(road) for road in trust.canaries().CANARIES},
    }


def _version_of(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _table(found: dict[str, Any]) -> str:
    from gradmend.compat.trust import canaries

    lines = [f"{name:<18}{_shown(value)}" for name, value in found.items() if name != "roads"]
    lines += ["", "what Gradmend must see, tried now:"]
    for road, why in found["roads"].items():
        about = canaries().CANARIES[road].about
        lines.append(
            f"  {'ok' if why is None else 'FAILS':<6}{road:<14}{about}" + (f": {why}" if why else "")
        )
    return "\n".join(lines)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return "none" if value is None else str(value)
