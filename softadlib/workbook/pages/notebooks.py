"""Which notebooks a profile needs, and their execution by papermill, each whole or not at all.

A notebook says in its metadata whose results it draws, and what of them it needs:

    "softad": {"profiles": "all", "except": ["smoke"]}    every profile's but one
    "softad": {"profiles": ["images"]}                    those of one profile
    "softad": {"profiles": "all", "needs": {"methods": ["erm", "sam"], "sets": 6}}
    nothing                                               it reads no profile
"""

import contextlib
import json
import logging
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError
from tqdm import tqdm

from softadlib import _files
from softadlib._validation import UserError
from softadlib.functional import LN2
from softadlib.workbook.analysis.tables import DATASETS
from softadlib.workbook.studies.params import datasets_of, load
from softadlib.workbook.studies.parquet import outputs
from softadlib.workbook.studies.read import stored_studies
from softadlib.workbook.studies.study import Study
from softadlib.workbook.studies.work import Work

TRAIN = "train"
"""The notebook executed once per dataset × method; all others draw."""
FIGURES = "figures"
"""Folder of drawn pages: `outputs/figures` for those that read no profile, else `outputs/<profile>/figures`."""
STORED = "stored"
"""Cells with this tag discuss the committed results. A page that is drawn from other results keeps only their title."""


class Result(NamedTuple):
    """A study that has results, or is going to have them: what a page can ask for."""

    dataset: str
    method: str
    grid: Sequence[float]
    has_best_epochs: bool


class Needs(BaseModel):
    """What a page needs of a profile's results, so that it is not executed to find out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    methods: tuple[str, ...] = ()
    """Methods that a data set must have, all of them."""
    sets: int = 1
    """The fewest data sets that have what is needed."""
    of_the_paper: bool = False
    """Whether only data sets of the paper count."""
    best_epochs: bool = False
    """Whether runs must also be measured at their best epochs."""
    across_ln2: bool = False
    """Whether SoftAD must have values on both sides of ln 2."""

    def lack(self, results: Sequence[Result]) -> str:
        """Say what results do not have; "" where they have everything."""
        methods: dict[str, set[str]] = {}
        for result in results:
            grid = result.grid or (0.0,)
            if self.across_ln2 and result.method == "softad" and not min(grid) < LN2 < max(grid):
                continue
            if self.of_the_paper and result.dataset not in DATASETS:
                continue
            if result.has_best_epochs or not self.best_epochs:
                methods.setdefault(result.dataset, set()).add(result.method)
        if sum(found >= {*self.methods} for found in methods.values()) >= self.sets:
            return ""
        of = " of the paper" if self.of_the_paper else ""
        sides = " on both sides of ln 2" if self.across_ln2 else ""
        best = " with best_epoch: true" if self.best_epochs else ""
        sets = f"{self.sets} data set{'s' if self.sets > 1 else ''}"
        return f"needs {', '.join(self.methods) or 'results'}{sides} on {sets}{of}{best}"


@dataclass(frozen=True)
class Source:
    """A notebook that draws: whose results, and which parameters it takes."""

    path: Path
    profiles: Sequence[str]
    """Names of profiles, or "all"; empty where it reads no profile."""
    left_out: Sequence[str]
    """Profiles that it does not draw though it draws "all"."""
    needs: Needs
    parameters: Sequence[str]

    def draws(self, profile: str) -> bool:
        """Tell whether the notebook is a page of this profile."""
        if self.profiles == "all":
            return profile not in self.left_out
        return profile in self.profiles


@dataclass(frozen=True)
class Page:
    """A notebook to execute with one set of parameters."""

    name: str
    source: Path
    target: Path
    parameters: Mapping[str, Any]

    @property
    def reason(self) -> Path:
        """File that says why the page was not drawn, where its results were missing."""
        return self.target.with_name(f"{self.name}.not-drawn.txt")


@dataclass(frozen=True)
class Outcome:
    """How the execution of a page ended; an empty `error` means that it succeeded."""

    page: Page
    error: str = ""
    lacks_results: bool = False
    """Whether the page found no results to draw, which is no failure."""

    @property
    def failed(self) -> bool:
        """Whether the page should have been drawn and was not."""
        return bool(self.error) and not self.lacks_results


def training_pages(work: Work, jobs: int) -> list[Page]:
    """Return a page for each study that is not finished; `jobs` processes are shared out among them."""
    open_studies = [study for study in work.studies if not study.finished]
    source = _files.home() / "notebooks" / f"{TRAIN}.ipynb"
    pages = []
    for study in open_studies:
        parameters = {
            "profile": work.profile,
            "dataset": study.protocol.dataset,
            "method": study.method,
            "changes": dict(work.changes),
            "as_profile": work.profile,  # the command has checked where the rows go
            "jobs": max(1, jobs // len(open_studies)),
        }
        pages.append(Page(study.name, source, study.store.notebook, parameters))
    return pages


def pages_of_profile(
    profile: str, results: Sequence[Result], datasets: Sequence[str] | None = None
) -> list[Page]:
    """Return the pages that draw a profile, one per dataset where a notebook takes a `dataset`.

    Args:
        profile: whose pages.
        results: what the profile has, or is going to have.
        datasets: those of a page that takes one; None for all.
    """
    has = {result.dataset for result in results}
    there = [name for name in datasets_of(profile) if name in has]
    noises = {name: min(load(profile, name).label_noise) for name in there}
    pages = []
    for source in _sources():
        if not source.draws(profile) or source.needs.lack(results):
            continue
        chosen = [name for name in there if datasets is None or name in datasets]
        for dataset in chosen if "dataset" in source.parameters else [None]:
            noise = noises[dataset] if dataset else min(noises.values(), default=0.0)
            values = {"profile": profile, "dataset": dataset, "label_noise": noise}
            # A label noise of 0 is every page's default.
            parameters = {k: v for k, v in values.items() if k in source.parameters and v}
            name = f"{source.path.stem}-{dataset}" if dataset else source.path.stem
            target = outputs(profile) / FIGURES / f"{name}.ipynb"
            pages.append(Page(name, source.path, target, parameters))
    return pages


def lacking_pages(profile: str, results: Sequence[Result]) -> dict[str, str]:
    """Return notebooks that draw the profile but not from these results: name → what they need."""
    sources = [source for source in _sources() if source.draws(profile)]
    lacks = {source.path.stem: source.needs.lack(results) for source in sources}
    return {name: lack for name, lack in lacks.items() if lack}


def pages_of_no_profile() -> list[Page]:
    """Return the pages that read no profile."""
    sources = [source for source in _sources() if not source.profiles]
    folder = outputs(FIGURES)
    return [Page(s.path.stem, s.path, folder / s.path.name, {}) for s in sources]


def missing_pages(
    profile: str, datasets: Sequence[str] | None = None, planned: Iterable[Study] = ()
) -> list[Page]:
    """Return the pages that were never drawn, or whose notebook or results have changed since.

    Args:
        profile: whose pages.
        datasets: the pages of these alone; None for all of the profile.
        planned: studies that are going to have results.
    """
    missing = []
    for page in pages_of_profile(profile, [*stored_results(profile), *planned_results(planned)]):
        dataset = page.parameters.get("dataset", "*")
        if datasets is None or dataset in datasets:
            inputs = [page.source, *outputs(profile).glob(f"{dataset}/*.parquet")]
            changed = max(path.stat().st_mtime_ns for path in inputs)
            drawn = [path for path in (page.target, page.reason) if path.exists()]
            if all(path.stat().st_mtime_ns < changed for path in drawn):
                missing.append(page)
    return missing


def stored_results(profile: str) -> list[Result]:
    """Return what is finished of a profile."""
    return [
        Result(
            p.dataset, p.method, p.grid, p.protocol["best_epoch"] or p.protocol["curves"] == "all"
        )
        for p in stored_studies(profile).values()
    ]


def planned_results(studies: Iterable[Study]) -> list[Result]:
    """Return what there is once these studies are trained."""
    found = []
    for study in studies:
        protocol = study.protocol
        grid = protocol.grids.get(study.method, ())
        has_best = protocol.best_epoch or protocol.curves == "all"
        found.append(Result(protocol.dataset, study.method, grid, has_best))
    return found


def _sources() -> list[Source]:
    """Return the notebooks that draw, by name."""
    paths = sorted((_files.home() / "notebooks").glob("*.ipynb"))
    return [read_source(path) for path in paths if path.stem != TRAIN]


def read_source(path: Path) -> Source:
    """Read what a notebook draws. Raises UserError for metadata of another form than `Source` has."""
    import papermill

    with _silence():
        parameters = tuple(papermill.inspect_notebook(str(path)))
    words = json.loads(path.read_text(encoding="utf-8"))["metadata"].get("softad", {})
    profiles = words.get("profiles", [])
    if profiles != "all" and not isinstance(profiles, list):
        raise UserError(
            f'{path}: metadata softad.profiles must be "all" or a list; got {profiles!r}'
        )
    try:
        needs = Needs(**words.get("needs", {}))
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise UserError(
            f"{path}: metadata softad.needs.{where}: {error.errors()[0]['msg']}"
        ) from None
    return Source(path, profiles, words.get("except", []), needs, parameters)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Hide papermill's own lines."""
    logger = logging.getLogger("papermill")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def execute(pages: Sequence[Page], jobs: int) -> Iterator[Outcome]:
    """Execute pages, `jobs` kernels at a time; yield how each ended. A failure does not stop the others.

    A caller that stops iterating waits for the pages that run; no new one starts. KeyboardInterrupt is
    passed on at once: the kernels that run end when this process does. No half-written page is left.
    """
    temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with _silence(), temporary as folder:
        pool = ThreadPoolExecutor(jobs)
        futures = []
        for number, page in enumerate(pages):
            futures.append(pool.submit(_execute, page, Path(folder) / f"{number}.ipynb"))
        has_to_wait = True
        try:
            for future in as_completed(futures):
                yield future.result()
        except KeyboardInterrupt:
            has_to_wait = False
            logging.disable()  # the pages left behind log that their sockets are gone
            raise
        finally:
            pool.shutdown(wait=has_to_wait, cancel_futures=True)


def _execute(page: Page, running: Path) -> Outcome:
    """Execute one page; the result appears whole at its target, a failed one beside it."""
    failed = page.target.with_name(f"{page.target.stem}.error.ipynb")
    try:
        _run(page, running)
    except Exception as problem:  # papermill says what a cell raised; nbclient has other types
        kind = getattr(problem, "ename", type(problem).__name__)
        what = " ".join(getattr(problem, "evalue", str(problem)).split())[:600]
        if kind == "MissingData" and page.source.stem != TRAIN:
            _files.write(page.reason, f"{what}\n")
            return Outcome(page, what, lacks_results=True)
        if kind not in ("UserError", "MissingData"):
            what = f"{kind}: {what}"
        if running.exists():
            _files.write(failed, running.read_bytes())
        return Outcome(page, f"{page.name}: {what}; the page as it stopped: {failed}")
    _files.write(page.target, running.read_bytes())
    for outdated in (failed, page.reason):
        outdated.unlink(missing_ok=True)
    return Outcome(page)


class Announcements:
    """A file for what a kernel writes to stderr: lines of this command are passed on as they come.

    So a long training in a page says how long it takes, as `softad train` does.
    """

    def write(self, text: str) -> None:
        """Print the lines for the person; bars and warnings stay in the page."""
        for line in text.splitlines():  # a bar ends with a carriage return
            if line.startswith("softad: "):
                tqdm.write(line, file=sys.stderr)

    def flush(self) -> None:
        """Do nothing: each line is printed at once."""


_starting = threading.Lock()


def _run(page: Page, running: Path) -> None:
    """Execute a page's notebook by papermill, which writes `running` after every cell."""
    import nbformat
    import papermill
    from jupyter_core.utils import ensure_event_loop

    from softadlib.workbook.pages import kernels

    with _starting:  # reading is not safe in several threads at once
        notebook = nbformat.read(page.source, as_version=4)
        if draws_other_results(page):
            notebook.cells = without_conclusions(notebook.cells)
    with contextlib.closing(ensure_event_loop()):  # nbclient takes the loop of this thread
        papermill.execute_notebook(
            notebook,
            str(running),
            dict(page.parameters),
            engine_name=kernels.NAME,
            kernel_name="python3",
            progress_bar=False,
            stderr_file=Announcements(),
            # The kernel's folder; papermill's `cwd` would move all threads of this process.
            resources={"metadata": {"path": str(page.source.parent)}},
        )


def without_conclusions(cells: Sequence[Any]) -> list[Any]:
    """Return the cells that discuss no results: all without the tag, and the title of the page."""
    kept = []
    for cell in cells:
        if STORED not in cell.metadata.get("tags", ()):
            kept.append(cell)
        elif cell.source.startswith("# "):
            cell.source = cell.source.splitlines()[0]
            kept.append(cell)
    return kept


def draws_other_results(page: Page) -> bool:
    """Tell whether a page is given other parameters than those that its notebook is stored with."""
    import papermill

    stored = papermill.inspect_notebook(str(page.source))
    defaults = {name: str(facts["default"]).strip("\"'") for name, facts in stored.items()}
    return any(defaults.get(name) != str(value) for name, value in page.parameters.items())
