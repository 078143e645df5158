"""Change one thing at a time in a copy of the package, and see whether tests fail.

    python tests/benchmarks/mutants.py [--only N …] [--jobs J]

The changes stand in mutants.yaml beside this file: a file of softadlib/, a text that occurs once in it,
what takes its place, and the tests to run. The same tests must pass on the copy without a change; then
a mutant is caught where one of them fails, and survives where all pass.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300
"""Limit of a single test: a mutant may make a loop endless."""
WORDS = {0: "survived", 1: "caught"}
"""Exit status of pytest → what became of a mutant; another status is neither."""


def read_mutants() -> list[dict]:
    """Return the mutants in order. Exits where a text does not occur exactly once."""
    mutants = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    for number, mutant in enumerate(mutants, 1):
        count = (ROOT / "softadlib" / mutant["file"]).read_text().count(mutant["text"])
        if count != 1 or mutant["text"] == mutant["by"]:
            sys.exit(f"mutant {number}: {mutant['text']!r} is {count} times in {mutant['file']}")
    return mutants


def run_tests(tests: list[str], mutant: dict | None = None) -> tuple[int, str]:
    """Run tests on a copy of the package, changed by `mutant`; return status and output of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "softadlib"
        shutil.copytree(ROOT / "softadlib", package, ignore=shutil.ignore_patterns("__pycache__"))
        if mutant:
            file = package / mutant["file"]
            file.write_text(file.read_text().replace(mutant["text"], mutant["by"]))
        # Without a safe path the current folder, whose package is unchanged, would come first.
        env = os.environ | {"PYTHONPATH": folder, "PYTHONSAFEPATH": "1"}
        where = "import importlib.util as u; print(u.find_spec('softadlib').origin)"
        command = [sys.executable, "-c", where]
        found = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True).stdout
        if Path(found.strip()) != package / "__init__.py":
            sys.exit(f"the copy in {folder} is not what tests import, but {found.strip()!r}")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        command += ["--timeout", str(SECONDS), *(f"tests/{test}" for test in tests)]
        done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def main() -> None:
    """Print a line a mutant, and how many were caught; exit with 1 where any was not."""
    mutants = read_mutants()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    numbers = range(1, len(mutants) + 1)
    parser.add_argument(
        "--only", type=int, nargs="+", choices=numbers, default=numbers, metavar="N"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="mutants at a time")
    args = parser.parse_args()

    tests = sorted({test for number in args.only for test in mutants[number - 1]["tests"]})
    status, output = run_tests(tests)
    if status:
        sys.exit(f"{output}\nthe tests do not pass on the package as it is")
    print(f"unchanged: {output.splitlines()[-1]}", flush=True)

    def outcome(number: int) -> str:
        mutant, start = mutants[number - 1], time.monotonic()
        status, output = run_tests(mutant["tests"], mutant)
        word = WORDS.get(status, f"pytest ended with {status}")
        why = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))][:1]
        shown = why[0].split(" - ")[0] if why else ""
        seconds = time.monotonic() - start
        print(
            f"{number:2} {word}: {mutant['file']}: {mutant['what']} ({seconds:.0f} s) {shown}",
            flush=True,
        )
        return word

    with ThreadPoolExecutor(args.jobs) as pool:
        words = list(pool.map(outcome, args.only))
    caught = words.count("caught")
    missed = [str(number) for number, word in zip(args.only, words) if word != "caught"]
    if missed:
        print(f"not caught: {', '.join(missed)}")
    print(f"{caught} of {len(words)} caught")
    sys.exit(caught < len(words))


if __name__ == "__main__":
    main()
