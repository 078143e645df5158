"""Which notebooks a profile needs, and their execution by papermill, each whole or not at all.

A notebook says in its metadata whose results it draws:

    "softad": {"profiles": "all", "except": ["smoke"]}    every profile's but one
    "softad": {"profiles": ["images"]}                    those of one profile
    nothing                                               it reads no profile
"""

import contextlib
import json
import logging
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softadlib import _workspace
from softadlib._validation import UserError
from softadlib.results.files import outputs
from softadlib.results.read import stored_studies
from softadlib.training.plan import Study
from softadlib.training.profiles import datasets_of, load

TRAIN = "train"
"""The notebook executed once per dataset × method; all others draw."""
FIGURES = "figures"
"""Folder of drawn pages: `outputs/figures` for those that read no profile, else `outputs/<profile>/figures`."""
STORED = "stored"
"""Cells with this tag discuss the committed results. They are removed when the page is drawn from other results."""


@dataclass(frozen=True)
class Source:
    """A notebook that draws: whose results, and which parameters it takes."""

    path: Path
    profiles: tuple[str, ...] | str
    """Names of profiles, or "all"; empty where it reads no profile."""
    left_out: tuple[str, ...]
    """Profiles that it does not draw though it draws "all"."""
    parameters: tuple[str, ...]

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


def training_pages(
    profile: str, studies: Sequence[Study], changes: Mapping[str, Any], jobs: int
) -> list[Page]:
    """Return a page for each study that is not finished; `jobs` processes are shared out among them."""
    open_studies = [study for study in studies if not study.finished]
    share = max(1, jobs // max(1, len(open_studies)))
    source = _workspace.home() / "notebooks" / f"{TRAIN}.ipynb"
    pages = []
    for study in open_studies:
        parameters = {
            "profile": profile,
            "dataset": study.protocol.dataset,
            "method": study.method,
            "changes": dict(changes),
            "as_profile": profile,  # the command has checked where the rows go
            "jobs": share,
        }
        pages.append(Page(study.name, source, study.store.notebook, parameters))
    return pages


def pages_of_profile(profile: str, datasets: Sequence[str]) -> list[Page]:
    """Return the pages that draw a profile, one per dataset where a notebook takes a `dataset`."""
    noises = {name: min(load(profile, name).label_noise) for name in datasets}
    pages = []
    for source in _sources():
        if not source.draws(profile):
            continue
        for dataset in datasets if "dataset" in source.parameters else [None]:
            parameters: dict[str, Any] = {}
            if "profile" in source.parameters:
                parameters["profile"] = profile
            if dataset is not None:
                parameters["dataset"] = dataset
            noise = noises[dataset] if dataset else min(noises.values(), default=0.0)
            if "label_noise" in source.parameters and noise:  # all labels of the profile are noisy
                parameters["label_noise"] = noise
            name = f"{source.path.stem}-{dataset}" if dataset else source.path.stem
            target = outputs(profile) / FIGURES / f"{name}.ipynb"
            pages.append(Page(name, source.path, target, parameters))
    return pages


def pages_of_no_profile() -> list[Page]:
    """Return the pages that read no profile."""
    folder = outputs(FIGURES)
    pages = []
    for source in _sources():
        if not source.profiles:
            target = folder / source.path.name
            pages.append(Page(source.path.stem, source.path, target, {}))
    return pages


def missing_pages(profile: str, pages: Sequence[Page]) -> list[Page]:
    """Return the pages that were never drawn, or whose notebook or results have changed since."""
    missing = []
    for page in pages:
        dataset = page.parameters.get("dataset", "*")
        inputs = [page.source, *outputs(profile).glob(f"{dataset}/*.parquet")]
        changed = max(_time(path) for path in inputs)
        if max(_time(page.target), _time(page.reason)) < changed:
            missing.append(page)
    return missing


def _time(path: Path) -> int:
    """Return when a file was changed, in nanoseconds; 0 for one that is not there."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def stored_datasets(profile: str) -> list[str]:
    """Return the datasets of a profile that have a finished result."""
    found = {study.dataset for study in stored_studies(profile)}
    return [name for name in datasets_of(profile) if name in found]


def _sources() -> list[Source]:
    """Return the notebooks that draw, by name."""
    paths = sorted((_workspace.home() / "notebooks").glob("*.ipynb"))
    return [read_source(path) for path in paths if path.stem != TRAIN]


def read_source(path: Path) -> Source:
    """Read what a notebook draws. Raises UserError for metadata that say it otherwise than above."""
    import papermill

    with _silence():
        parameters = tuple(papermill.inspect_notebook(str(path)))
    words = json.loads(path.read_text(encoding="utf-8"))["metadata"].get("softad", {})
    profiles, left_out = words.get("profiles", []), words.get("except", [])
    if not (profiles == "all" or isinstance(profiles, list)) or not isinstance(left_out, list):
        raise UserError(
            f'{path}: metadata softad must be profiles, "all" or a list, and except, a list; got {words}'
        )
    profiles = profiles if profiles == "all" else tuple(profiles)
    return Source(path, profiles, tuple(left_out), parameters)


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


def execute(pages: Sequence[Page], jobs: int, timeout: int | None = None) -> Iterator[Outcome]:
    """Execute pages, `jobs` kernels at a time; yield how each ended. A failure does not stop the others.

    Who stops iterating waits for the pages that have begun; no other one is begun. KeyboardInterrupt is
    passed on at once: the kernels that run end when this process does. No half-written page is left.
    """
    temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with _silence(), temporary as folder:
        pool = ThreadPoolExecutor(jobs)
        futures = []
        for number, page in enumerate(pages):
            running = Path(folder) / f"{number}.ipynb"
            futures.append(pool.submit(_execute, page, running, timeout))
        has_to_wait = True
        try:
            for future in as_completed(futures):
                yield future.result()
        except KeyboardInterrupt:
            has_to_wait = False
            raise
        finally:
            pool.shutdown(wait=has_to_wait, cancel_futures=True)


_starting = threading.Lock()


def _execute(page: Page, running: Path, timeout: int | None) -> Outcome:
    """Execute one page; the result appears whole at its target, a failed one beside it."""
    from papermill.exceptions import PapermillExecutionError

    failed = page.target.with_name(f"{page.target.stem}.error.ipynb")
    try:
        _run(page, running, timeout)
    except PapermillExecutionError as problem:
        what = " ".join(problem.evalue.split())
        if problem.ename == "MissingData" and page.source.stem != TRAIN:
            _workspace.write(page.reason, f"{what}\n")
            return Outcome(page, f"{page.name}: {what[:600]}", lacks_results=True)
        if problem.ename not in ("UserError", "MissingData"):
            what = f"In [{problem.exec_count}]: {problem.ename}: {what}"
        _keep(running, failed)
        return Outcome(page, f"{page.name}: {what[:600]}; the page as it stopped: {failed}")
    except Exception as problem:  # nbclient raises many types, such as for a kernel that died
        _keep(running, failed)
        what = " ".join(f"{type(problem).__name__}: {problem}".split())
        return Outcome(page, f"{page.name}{_last_started(failed)}: {what[:600]}")
    _workspace.write(page.target, running.read_bytes())
    for outdated in (failed, page.reason):
        outdated.unlink(missing_ok=True)
    return Outcome(page)


def _run(page: Page, running: Path, timeout: int | None) -> None:
    """Execute a page's notebook by papermill, which writes `running` after every cell."""
    import nbformat
    import papermill
    from jupyter_core.utils import ensure_event_loop

    with _starting:  # reading is not safe in several threads at once
        notebook = nbformat.read(page.source, as_version=4)
        _leave_out_conclusions(notebook, page)
    with contextlib.closing(ensure_event_loop()):  # nbclient takes the loop of this thread
        papermill.execute_notebook(
            notebook,
            str(running),
            dict(page.parameters),
            kernel_name="python3",
            progress_bar=False,
            execution_timeout=timeout,
            start_timeout=180,
            extra_arguments=["--log-level=CRITICAL"],  # of the kernel
            # The kernel's folder; papermill's `cwd` would move all threads of this process.
            resources={"metadata": {"path": str(page.source.parent)}},
        )


def _keep(running: Path, failed: Path) -> None:
    """Keep a page as far as it came."""
    if running.exists():
        _workspace.write(failed, running.read_bytes())


def _leave_out_conclusions(notebook: Any, page: Page) -> None:
    """Drop the cells tagged `stored` where the page draws other results than those it is stored with."""
    import papermill

    defaults = papermill.inspect_notebook(str(page.source))
    stored = {name: str(facts["default"]).strip("\"'") for name, facts in defaults.items()}
    given = {name: str(value) for name, value in page.parameters.items()}
    if any(stored.get(name) != value for name, value in given.items()):
        notebook.cells = [c for c in notebook.cells if STORED not in c.metadata.get("tags", ())]


def _last_started(notebook: Path) -> str:
    """Find the cell that a kernel was in when it died; papermill marks it as completed."""
    try:
        cells = json.loads(notebook.read_text())["cells"]
    except (OSError, ValueError, KeyError):
        return ""
    cells = [c for c in cells if c["cell_type"] == "code"]
    facts = [c["metadata"].get("papermill", {}) for c in cells]
    begun = [i for i, of_cell in enumerate(facts, 1) if of_cell.get("start_time")]
    return f" In [{begun[-1]}]" if begun else ""
