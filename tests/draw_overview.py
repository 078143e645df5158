"""Draw the README's picture from `outputs/quick`: run `softad run quick` first."""

from pathlib import Path

from softadlib import figures, selection, store

if __name__ == "__main__":
    figures.use_style()
    ends = selection.final(store.read("quick", "gaussian"))
    target = Path(__file__).resolve().parent.parent / "notebooks" / "overview.png"
    figures.knob_curves(ends).savefig(target, dpi=110)
    print(target)
