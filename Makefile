# `make help` lists the targets. Each sets up .venv first if it is missing. Needs Python >= 3.11 and make.
PYTHON ?= python3
VENV ?= .venv
# A matched pair: torchvision is built against one torch. Override both together. Without a GPU:
#   make quick TORCH="torch==2.15.0 torchvision==0.29.2 --index-url https://download.pytorch.org/whl/cpu"
TORCH ?= torch==2.15.0 torchvision==0.29.2
PROFILE ?= quick
LAB ?=
YES ?=
BIN := $(VENV)/bin
INSTALL = sh .ci/install $(VENV)
# A path in place of an import hook: then `import softadlib` also works in the folder that holds a clone of that name.
EDITABLE = --config-settings editable_mode=compat --editable
# Where this is set, as in images of containers, nothing compiled is kept: each process that imports the tests and their
# packages compiles them anew, 14 s of CPU (22 s in place of 8).
unexport PYTHONDONTWRITEBYTECODE
READY := $(VENV)/.ready
TESTING := $(VENV)/.ready-to-test
BOOK := $(VENV)/.ready-for-the-book
RECIPES := $(VENV)/.ready-for-the-recipes
# The versions of torch that `make wheel` tests with. The oldest has wheels for Python 3.11 and 3.12.
OLDEST ?= torch==2.4.1

.PHONY: help setup quick book wheel paper figures test test-fast tests-and-notebooks lint lab gpu readme record clean

quick: $(READY) ## Train and draw profile quick: outputs/quick/index.html
	$(BIN)/softad run $(PROFILE)
	$(BIN)/softad report $(PROFILE)

help: ## These lines
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-20s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(READY) ## Make .venv alone

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) --version); name one: make PYTHON=python3.12"; exit 1; }
	@echo "Setting up $(VENV): $(TORCH), then the packages of the workbook. This takes minutes, once."
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) $(TORCH)
	$(INSTALL) $(EDITABLE) '.[workbook]'
	touch $(READY)

# Lightning, Transformers, dask, Sphinx and playwright come with the tests.
$(TESTING): $(READY)
	$(INSTALL) $(EDITABLE) '.[workbook,test]'
	touch $(TESTING)

$(BOOK): $(READY)
	$(INSTALL) $(EDITABLE) '.[workbook,book]'
	touch $(BOOK)

# One of the figures' pages shows SoftAD in Lightning, Transformers, skorch and others.
$(RECIPES): $(READY)
	$(INSTALL) $(EDITABLE) '.[workbook,recipes]'
	touch $(RECIPES)

# Nothing is executed: the pages are the notebooks as they are stored. A warning is an error.
book: $(BOOK) ## Make a book of the notebooks, READMEs and the API: outputs/book/index.html
	$(BIN)/python -m sphinx -q -W -E --keep-going -c softadlib/workbook/pages/book -d outputs/book/.doctrees . outputs/book
	@echo "outputs/book/index.html"

wheel: $(TESTING) ## Build the wheel in dist/, and test it with the oldest and the newest torch
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	WHEEL="$$(ls dist/*.whl)" $(BIN)/python -m pytest tests/test_wheel.py
	sh .ci/library "$(OLDEST)" $(PYTHON)
	sh .ci/library "$(firstword $(TORCH)) $(filter-out torch%,$(TORCH))" $(PYTHON)

paper: $(READY) ## Train and draw the paper's whole protocol; it says what that costs and asks (YES=1: no question)
	$(BIN)/softad run paper --dry-run
	@$(if $(YES),true,printf 'Train all of this? [y/N] '; read answer; test "$$answer" = y)
	$(BIN)/softad run paper
	$(BIN)/softad report paper

figures: $(RECIPES) ## Draw the notebooks that read no profile
	$(BIN)/softad draw

lint: $(TESTING) ## Run ruff and mypy, and check the directions of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Side by side: mypy has one process, and tests wait for kernels and nodes now and then.
test: $(TESTING) ## Run every test and compare every notebook, as continuous integration does
	$(MAKE) --jobs 2 lint tests-and-notebooks

test-fast: $(TESTING) ## Test the mathematics, in under a minute
	$(BIN)/python -m pytest -m fast tests

# Three processes for two cores: while one waits for a process it started, the others have work. All cells of a notebook
# need one process, so files are what is shared out.
tests-and-notebooks: $(TESTING)
	$(BIN)/python -m pytest -n 3 --dist loadscope --no-loadscope-reorder -p tests.figures_check --nbval \
	  --nbval-sanitize-with tests/nbval_sanitize.cfg --nbval-cell-timeout 300 tests notebooks

lab: $(READY) ## Start JupyterLab with page `start` open; options by LAB="--no-browser --port 8889"
	$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/notebooks/start.ipynb $(LAB)

gpu: $(TESTING) ## Run the tests that need a CUDA GPU
	$(BIN)/python -m pytest -m gpu tests

readme: $(READY) ## Run README.md's commands, but for downloads and hours
	$(BIN)/python tests/readme_commands.py

record: $(TESTING) ## Store the outputs that nbval compares; look at every difference before you commit
	$(BIN)/python tests/record_notebooks.py

clean: ## Remove .venv and the caches of tools
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis
