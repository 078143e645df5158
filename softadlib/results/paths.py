"""Names that become paths under `outputs/`, and never lead out of it."""

from pathlib import Path

from softadlib._validation import UserError
from softadlib._workspace import home

OTHER_FOLDERS = ("bench", "fig12", "figures")
"""Folders of `outputs/` that hold something else than the results of a profile."""


def profile_dir(profile: str) -> Path:
    """Return outputs/<profile>. Raises UserError for a name that leads elsewhere."""
    return inside(profile)


def inside(*names: str) -> Path:
    """Return a path under `outputs/`; UserError where a name or a link leads out of it."""
    root = home() / "outputs"
    path = root.joinpath(*names)
    for name in names:
        if not name or Path(name).name != name or name[0] == "." or set(name) & set("\\\0"):
            raise UserError(f"{name!r} cannot be a folder in {root}; use a plain name")
    if not path.resolve().is_relative_to(root.resolve()):
        raise UserError(
            f"{path} leads out of {root}, to {path.resolve()}; remove that link, or make {root} itself one"
        )
    return path
