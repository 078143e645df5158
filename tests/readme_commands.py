"""Run every shell command of README.md in order, as a reader would: `make readme`.

Commands that clone, install from the internet or open a browser are printed and left out, as are those
that take hours or download data.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = re.compile(
    r"^(git clone|cd |source |pip install|conda |make (lab|paper|setup|readme|test|gpu)|jupyter)"
    r"|(run|train) paper|data prepare|cifar|cuda|https?://"
)


def commands(text: str) -> list[str]:
    """Return the lines of the shell blocks, without prompts, comments and continuations."""
    blocks = re.findall(r"```(?:sh|bash|shell|console)\n(.*?)```", text, re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    lines = [line.split("  #")[0].strip().removeprefix("$ ") for line in lines]
    return [line for line in lines if line and not line.startswith("#")]


def main() -> int:
    """Run them until one fails."""
    for command in commands((ROOT / "README.md").read_text(encoding="utf-8")):
        if LEFT_OUT.search(command):
            print(f"left out: {command}", flush=True)
            continue
        print(f"$ {command}", flush=True)
        environment = f'PATH="{Path(sys.executable).parent}:$PATH"'
        done = subprocess.run(["bash", "-c", f"{environment}; {command}"], cwd=ROOT)
        if done.returncode:
            print(f"exit {done.returncode}: {command}")
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
