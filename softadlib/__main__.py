"""The `softad` command, also as `python -m softadlib`."""

import sys


def main() -> int:
    """Run the command; say in one line where the packages of the workbook are not installed."""
    try:
        from softadlib.workbook.cli import main as softad
    except ModuleNotFoundError as error:
        line = f"softad: {error.name} is not installed; run in a clone: pip install '.[workbook]'"
        print(line, file=sys.stderr)
        return 2
    return softad()


if __name__ == "__main__":
    raise SystemExit(main())
