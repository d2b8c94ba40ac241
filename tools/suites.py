"""Other projects' tests as an oracle: run plain and under each context, they must end alike, with the same gradients to the bit.

    python tools/suites.py FOLDER [--only NAME ...] [--write OUT.md]

FOLDER holds checkouts by the names below; those that are missing are skipped. The packages themselves come from the
environment (`make test-world` installs them), so their tests should be of the same release. Tests that don't pass plain, or
whose gradients differ between two plain runs, count for nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
WAYS = ("plain", "again", "watch", "heal", "install")
SECONDS = 900  # of one run of one suite
# Below this, a test's time is noise.
MEASURABLE = 0.05

SUITES = {
    "pytorch_geometric": "test/nn/models/test_rev_gnn.py test/nn/models/test_basic_gnn.py test/nn/conv/test_gat_conv.py "
    "test/nn/conv/test_gcn_conv.py test/nn/conv/test_hetero_conv.py test/nn/dense/test_linear.py test/nn/aggr test/nn/norm",
    "tensordict": "test/nn",
    "kornia": "tests/losses tests/morphology tests/geometry/transform/test_affwarp.py",
    "opacus": "opacus/tests/dp_layers opacus/tests/grad_samples/linear_test.py opacus/tests/grad_samples/conv2d_test.py "
    "opacus/tests/grad_samples/embedding_test.py",
    "curvlinops": "test/test_hessian.py test/test_ggn.py test/test_gradient_moments.py",
    "gpytorch": "test/kernels test/likelihoods test/mlls test/optim",
    "pyro": "tests/infer/test_gradient.py tests/infer/test_svi.py tests/optim tests/nn tests/distributions/test_transforms.py",
    "e3nn": "tests/nn tests/o3/tensor_product_test.py tests/o3/norm_test.py tests/math",
    "botorch": "test/optim test/acquisition/test_analytic.py",
    "accelerate": "tests/test_optimizer.py tests/test_scheduler.py tests/test_grad_sync.py tests/test_hooks.py tests/test_modeling_utils.py",
    "stable-baselines3": "tests/test_distributions.py tests/test_predict.py tests/test_utils.py tests/test_cnn.py",
    "x-transformers": "tests",
    "vector-quantize-pytorch": "tests",
    "torchrl": "test/test_actors.py test/test_distributions.py test/test_exploration.py",
    "monai": "tests/losses tests/networks/blocks tests/networks/layers",
}

Results = dict[str, dict[str, Any]]


class Row(NamedTuple):
    name: str
    tests: int
    differ: dict[str, list[str]]  # by way: tests that end otherwise
    bits: dict[str, list[str]]  # by way: tests with other gradients
    cost: dict[str, float]  # by way: the median of CPU times, relative to plain


def run(name: str, folder: Path, way: str) -> Results:
    files = [f for f in SUITES[name].split() if (folder / f).exists()]
    with tempfile.TemporaryDirectory() as made:
        out = Path(made) / "out.json"
        env = {
            **os.environ,
            "PYTHONPATH": str(HERE),
            "PYTHONSAFEPATH": "1",  # the packages of the environment, not of the checkout
            "GRADMEND_SUITES_WAY": way,
            "GRADMEND_SUITES_OUT": str(out),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "suites_plugin",
            "-p",
            "no:cacheprovider",
            "-W",
            "ignore",
        ]
        command += [
            "-o",
            "addopts=",
            "-o",
            "python_files=test_*.py *_test.py *_tests.py",
            "-p",
            "no:xdist",
            *files,
        ]
        try:
            done = subprocess.run(
                command, cwd=folder, env=env, capture_output=True, text=True, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            print(f"{name}: {way} took more than {SECONDS} s", file=sys.stderr)
            return {}
        if not out.exists():  # a crash
            print(
                f"{name}: {way} ended with {done.returncode}: {(done.stdout + done.stderr)[-500:]}",
                file=sys.stderr,
            )
            return {}
        found: Results = json.loads(out.read_text())
        return found


def compare(name: str, folder: Path) -> Row:
    results = {way: run(name, folder, way) for way in WAYS}
    plain, again = results["plain"], results["again"]
    steady = [
        test
        for test, one in plain.items()
        if one.get("outcome") == "passed" and again.get(test, {}).get("bits") == one["bits"]
    ]
    row = Row(name, len(steady), {}, {}, {})
    for way in WAYS[2:]:
        now = results[way]
        row.differ[way] = [t for t in steady if now.get(t, {}).get("outcome") != "passed"]
        row.bits[way] = [t for t in steady if t not in row.differ[way] and now[t]["bits"] != plain[t]["bits"]]
        ratios = [
            now[t]["seconds"] / plain[t]["seconds"]
            for t in steady
            if t in now and plain[t]["seconds"] > MEASURABLE
        ]
        row.cost[way] = statistics.median(ratios) if ratios else float("nan")
        for test in row.differ[way]:
            print(
                f"{way}: {test} ends otherwise\n    {now.get(test, {}).get('error', 'did not run')[-600:]}",
                flush=True,
            )
        for test in row.bits[way]:
            print(f"{way}: {test} has other gradients", flush=True)
    return row


def table(rows: list[Row]) -> str:
    lines = [
        "| tests of | tests | end otherwise (watch, heal, install) | other bits | CPU (median) |",
        "|---|--:|---|---|---|",
    ]
    for row in rows:
        ends = ", ".join(str(len(row.differ[w])) for w in WAYS[2:])
        bits = ", ".join(str(len(row.bits[w])) for w in WAYS[2:])
        cost = ", ".join(f"{row.cost[w]:.2f}x" for w in WAYS[2:])
        lines.append(f"| {row.name} | {row.tests} | {ends} | {bits} | {cost} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of checkouts, by name")
    parser.add_argument("--only", nargs="*", default=list(SUITES), choices=list(SUITES), metavar="NAME")
    parser.add_argument("--write", type=Path, help="the table, as Markdown")
    options = parser.parse_args()
    found = {name: options.folder / name for name in options.only if (options.folder / name).is_dir()}
    if not found:
        parser.error(f"{options.folder} holds none of: {', '.join(options.only)}")
    rows = [row for row in (compare(name, folder) for name, folder in found.items()) if row.tests]
    text = table(rows)
    print(text)
    if options.write:
        options.write.write_text(text)
    return int(any(tests for row in rows for tests in (*row.differ.values(), *row.bits.values())))


if __name__ == "__main__":
    raise SystemExit(main())
