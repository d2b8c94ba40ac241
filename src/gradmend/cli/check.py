"""`gradmend check PATH...`: read the source, say what will break, run nothing."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any

from gradmend.check.findings import UNCHECKED, printable
from gradmend.errors import UsageError

_FORMATS = ("full", "concise", "json", "github", "sarif")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "check",
        help="warn before anything runs: reads source only, needs no torch",
        description="Reads Python files and notebooks, runs nothing, and tells which lines write to what backward() will need. "
        "`-` reads stdin. Exit code 0: nothing found; 1: something found; 2: bad usage or a file that can't be read.",
    )
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="files and folders (default: the current folder); - for stdin",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--fix", action="store_true", help="apply rewrites that keep the meaning whatever the types are"
    )
    how.add_argument("--diff", action="store_true", help="show all rewrites as a diff, apply none")
    parser.add_argument(
        "--select", action="append", default=[], metavar="CODES", help="only these rules: GM101, GM1, ALL"
    )
    parser.add_argument("--ignore", action="append", default=[], metavar="CODES", help="not these rules")
    parser.add_argument(
        "--output-format",
        choices=_FORMATS,
        default="full",
        help="full (default), concise, json, github, sarif",
    )
    parser.add_argument("--exit-zero", action="store_true", help="exit with 0 even where something was found")
    parser.add_argument("--stdin-filename", metavar="FILE", help="the name of what stdin holds")
    parser.add_argument("--isolated", action="store_true", help="ignore pyproject.toml")
    parser.add_argument("--no-cache", action="store_true", help="neither read nor write .gradmend_cache")
    parser.add_argument("--cache-dir", metavar="DIR", help="where the cache lies (.gradmend_cache)")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes (all cores)")
    parser.add_argument(
        "--statistics", action="store_true", help="count findings by rule instead of showing them"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no summary and no progress")


def run(args: argparse.Namespace) -> int:
    from gradmend.check import run as runner
    from gradmend.check import settings

    if args.jobs is not None and args.jobs < 1:
        raise UsageError("--jobs must be at least 1")
    paths = args.paths or ["."]
    if "-" in paths:
        if paths != ["-"]:
            raise UsageError("- (stdin) can't be mixed with other paths")
        return _stdin(args)
    chosen = settings.Nearest(args.select, args.ignore, args.isolated)
    from gradmend.check.files import python_files

    files, missing = python_files(paths, chosen)
    for path, why in missing:
        print(f"gradmend: can't read {printable(path)}: {why}", file=sys.stderr)
    cache = (
        None if args.no_cache else args.cache_dir or os.environ.get("GRADMEND_CACHE_DIR") or ".gradmend_cache"
    )
    told = sys.stderr.isatty() and not args.quiet

    def look() -> Any:
        return runner.check(
            files, chosen, jobs=args.jobs, cache=cache, progress=runner.teller() if told else None
        )

    outcome = look()
    if args.fix:
        outcome = _fixed(outcome, look)
        _unsafe(args, outcome.findings)
    for file, why in outcome.unreadable:
        print(f"gradmend: {printable(file)}: {why}", file=sys.stderr)
    if args.diff:
        shown = _rewrite(outcome.findings, outcome.prints, apply=False)
        _unshown(args, outcome.findings, shown)
        _incomplete(outcome.stopped)
        return _code(args, outcome.findings, bool(missing or outcome.unreadable))
    _show(args, outcome.findings, outcome.files, outcome.stopped)
    return _code(args, outcome.findings, bool(missing or outcome.unreadable))


def _fixed(outcome: Any, look: Callable[[], Any]) -> Any:
    """Safe fixes applied, and what is left looked for anew: lines have moved, and a second write may show behind the first."""
    total, open_ = 0, _fixable(outcome)
    told: set[str] = set()
    while open_:
        done = _rewrite(outcome.findings, outcome.prints, apply=True, told=told)
        if not done:
            break
        total += done
        outcome = look()
        left = _fixable(outcome)
        if left >= open_:
            break
        open_ = left
    if total:
        print(f"gradmend: {total} fixed", file=sys.stderr)
    return outcome


def _unsafe(args: argparse.Namespace, findings: list[Any]) -> None:
    left = sum(f.fix is not None and not f.fix.safe for f in findings)
    if left and not args.quiet:
        some = f"{left} more rewrite{'s' * (left != 1)}"
        print(
            f"gradmend: {some} may change the meaning and {'is' if left == 1 else 'are'} left to you: --diff shows",
            file=sys.stderr,
        )


def _fixable(outcome: Any) -> int:
    return sum(f.fix is not None and f.fix.safe for f in outcome.findings)


def _unshown(args: argparse.Namespace, findings: list[Any], shown: int) -> None:
    left = len(findings) - shown
    if left and not args.quiet:
        some = f"{left} finding{'s' * (left != 1)}"
        print(f"gradmend: {some} without a rewrite; without --diff they are shown", file=sys.stderr)


def _code(args: argparse.Namespace, findings: list[Any], failed: bool) -> int:
    if failed:
        return 2
    return 1 if findings and not args.exit_zero else 0


def _show(args: argparse.Namespace, findings: list[Any], files: int, stopped: list[str]) -> None:
    _render(args, findings, files, stopped)
    _incomplete(stopped)


def _incomplete(stopped: list[str]) -> None:
    if stopped:  # whoever wants no summary wants to know all the same that there was more to see
        names = ", ".join(map(printable, stopped[:3])) + (
            f" and {len(stopped) - 3} more" if len(stopped) > 3 else ""
        )
        print(f"gradmend: not followed to the end, too many calls and branches: {names}", file=sys.stderr)


def _render(args: argparse.Namespace, findings: list[Any], files: int, stopped: list[str]) -> None:
    if args.statistics:
        from collections import Counter

        for (rule, severity), count in sorted(Counter((f.rule, f.severity) for f in findings).items()):
            print(f"{count:6} {rule} {severity}")
        return
    from gradmend.check import formats

    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    text = formats.render(args.output_format, findings, colour, stopped)
    sys.stdout.write(text)
    sys.stdout.flush()  # before the summary
    if args.output_format in ("full", "concise") and not args.quiet:
        errors = sum(f.severity == "error" for f in findings)
        warnings = len(findings) - errors
        found = (
            f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}"
            if findings
            else "nothing found"
        )
        print(f"gradmend: {found} in {files} file{'s' * (files != 1)}", file=sys.stderr)


def _rewrite(
    findings: list[Any], prints: dict[str, str], *, apply: bool, told: set[str] | None = None
) -> int:
    """Apply the safe fixes and say how many; or show all as a diff. `told`: files of which it was said why not."""
    told = set() if told is None else told
    from gradmend.check.applying import Unfit, rewritten

    by_file: dict[str, list[Any]] = {}
    for finding in findings:
        if finding.fix is not None and (finding.fix.safe or not apply):
            by_file.setdefault(finding.place.file, []).append(finding)
    done = 0
    for file, mine in by_file.items():
        try:
            made = rewritten(file, mine, unsafe=not apply, seen=prints.get(file))
            if apply:
                made.write()
            else:
                sys.stdout.write(made.diff)
            done += made.count
        except Unfit as why:
            if file not in told:
                print(f"gradmend: {printable(file)}: {why}", file=sys.stderr)
            told.add(file)
    return done


def _stdin(args: argparse.Namespace) -> int:
    from gradmend.check import applying, files, formats, settings
    from gradmend.check import run as runner

    name = os.path.abspath(args.stdin_filename) if args.stdin_filename else "-"
    chosen = settings.load(
        name if args.stdin_filename else os.getcwd(), args.select, args.ignore, args.isolated
    )
    if sys.stdin is None:
        raise UsageError("stdin is closed: there is nothing to read for -")
    raw = sys.stdin.buffer.read()
    result = files.check_file(name, raw)
    if result.unreadable:
        raise UsageError(f"stdin: {result.unreadable}")
    findings = [f for f in result.findings if f.told_in((name,)) and chosen.wants(f.rule, name)]
    findings = sorted(runner.without_echoes(findings), key=lambda f: f.order)
    if args.fix or args.diff:
        mine = [f for f in findings if f.fix is not None and (f.fix.safe or args.diff)]
        try:
            made = applying.rewritten(name, mine, unsafe=args.diff, raw=raw)
        except applying.Unfit as why:
            raise UsageError(f"stdin: {why}") from None
        sys.stdout.flush()
        sys.stdout.buffer.write(
            made.diff.encode("utf-8", "replace") if args.diff else made.text.encode(made.encoding)
        )
        unread = [f for f in findings if f.rule == UNCHECKED]  # nothing else would say why it is as it was
        sys.stderr.write(formats.render("concise", unread, False, []))
        left = len(findings) - (0 if args.diff else made.count)
        return 1 if left and not args.exit_zero else 0
    _show(args, findings, 1, [args.stdin_filename or "-"] * result.stopped)
    return _code(args, findings, False)
