"""Which notebooks a profile needs, and their execution by papermill, each whole or not at all."""

import contextlib
import json
import logging
import os
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softadlib import _workspace
from softadlib._validation import choose
from softadlib.results.files import outputs
from softadlib.results.read import stored_studies
from softadlib.training.plan import Study
from softadlib.training.profiles import datasets_of, load, read_yaml

TRAIN = "train"
"""The notebook executed once per dataset × method; all others draw."""
FIGURES = "figures"
"""In place of a profile: the notebooks that read no profile, drawn once for all of them."""
STORED = "stored"
"""Tag of cells that conclude from the stored results: left out where a page draws other results."""


@dataclass(frozen=True)
class Page:
    """A notebook to execute with one set of parameters."""

    name: str
    source: Path
    target: Path
    parameters: Mapping[str, Any]


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
        names = {"profile": profile, "dataset": study.protocol.dataset, "method": study.method}
        parameters = {**names, "changes": dict(changes), "jobs": share}
        pages.append(Page(study.name, source, study.store.notebook, parameters))
    return pages


def drawings(profile: str, datasets: Sequence[str]) -> list[Page]:
    """Return the pages that draw a profile, one per dataset where a notebook takes a `dataset`.

    `params/<profile>/figures/<notebook>.yaml` sets further parameters, and names notebooks that read
    no profile but belong to this one all the same. Raises UserError for a bad file.
    """
    extras = _workspace.params_dir() / profile / FIGURES
    sources = _sources()
    for path in sorted(extras.glob("*.yaml")):
        choose(f"notebook (named by {path})", path.stem, sources)
    noises = {name: min(load(profile, name).label_noise) for name in datasets}
    pages = []
    for stem, source in sources.items():
        names, extra = parameter_names(source), extras / f"{stem}.yaml"
        if "profile" not in names and not extra.exists():
            continue
        parameters = read_yaml(extra) if extra.exists() else {}
        for name in parameters:
            choose(f"parameter in {extra}", name, names)
        if "profile" in names:
            parameters = {"profile": profile, **parameters}
        for dataset in datasets if "dataset" in names else [None]:
            given = {**parameters, "dataset": dataset} if dataset else dict(parameters)
            noise = noises[dataset] if dataset else min(noises.values(), default=0.0)
            if "label_noise" in names and noise:  # all labels of the profile are noisy
                given["label_noise"] = noise
            name = f"{stem}-{dataset}" if dataset else stem
            pages.append(Page(name, source, outputs(profile) / FIGURES / f"{name}.ipynb", given))
    return pages


def figures() -> list[Page]:
    """Return the pages that read no profile."""
    target = outputs(FIGURES)
    return [
        Page(stem, source, target / f"{stem}.ipynb", {})
        for stem, source in _sources().items()
        if "profile" not in parameter_names(source)
    ]


def stored_datasets(profile: str) -> list[str]:
    """Return the datasets of a profile that have a finished result."""
    found = {study.dataset for study in stored_studies(profile)}
    return [name for name in datasets_of(profile) if name in found]


def _sources() -> dict[str, Path]:
    """Return the notebooks that draw, by name."""
    notebooks = sorted((_workspace.home() / "notebooks").glob("*.ipynb"))
    return {path.stem: path for path in notebooks if path.stem != TRAIN}


def parameter_names(notebook: Path) -> list[str]:
    """Return the names that a notebook's cell tagged `parameters` sets."""
    import papermill

    with _silence():
        return list(papermill.inspect_notebook(str(notebook)))


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

    An interruption ends this process, and with it the kernels; no half-written page is left.
    """
    with _silence(), tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        running = [Path(folder) / f"{i}.ipynb" for i in range(len(pages))]
        futures = [pool.submit(_execute, *pair, timeout) for pair in zip(pages, running)]
        try:
            for future in as_completed(futures):
                yield future.result()
        except (KeyboardInterrupt, GeneratorExit) as stop:
            pool.shutdown(wait=False, cancel_futures=True)
            shutil.rmtree(folder, ignore_errors=True)
            print("softad: stopped; the same command resumes", file=sys.stderr, flush=True)
            # Kernels end with their parent; threads would wait for them.
            os._exit(getattr(stop, "status", 130))


_starting = threading.Lock()


def _execute(page: Page, running: Path, timeout: int | None) -> Outcome:
    """Execute one page; the result appears whole at its target, a failed one beside it."""
    import nbformat
    import papermill
    from jupyter_core.utils import ensure_event_loop
    from papermill.exceptions import PapermillExecutionError

    failed = page.target.with_name(f"{page.target.stem}.error.ipynb")
    error, lacks_results = "", False
    try:
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
        _workspace.write(page.target, running.read_bytes())
        failed.unlink(missing_ok=True)
    except PapermillExecutionError as problem:
        lacks_results = problem.ename == "MissingData" and page.source.stem != TRAIN
        if running.exists() and not lacks_results:
            _workspace.write(failed, running.read_bytes())
        what = " ".join(problem.evalue.split())
        if problem.ename not in ("UserError", "MissingData"):
            what = f"In [{problem.exec_count}]: {problem.ename}: {what}"
        error = f"{page.name}: {what[:600]}"
        if not lacks_results:
            error += f"; the page as it stopped: {failed}"
    except Exception as problem:  # nbclient raises many types, such as for a kernel that died
        if running.exists():
            _workspace.write(failed, running.read_bytes())
        what = " ".join(f"{type(problem).__name__}: {problem}".split())
        error = f"{page.name}{_last_started(failed)}: {what[:600]}"
    return Outcome(page, error, lacks_results)


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
