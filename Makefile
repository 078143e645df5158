# make quick    the main job: train and draw profile quick, write outputs/quick/index.html
# make test     every test, as continuous integration runs them
# make lab      JupyterLab with page `start` open; options by LAB="--no-browser --port 8889"
# make setup    .venv alone      make lint  ruff and mypy      make clean  remove .venv and the caches of tools
# make paper    the paper's whole protocol; it says what that costs and asks first (YES=1 does not)
# make book     the notebooks, READMEs and the API reference as pages: outputs/book/index.html
# make wheel    the wheel in dist/, tested in fresh environments with the oldest and the newest torch
# make test-fast  the mathematics, in under a minute
# make figures  the notebooks that read no profile      make gpu     the tests that need a GPU
# make readme   README.md's commands, but for downloads and hours    make record  store the outputs that nbval compares
# Each sets up .venv first if it is missing. Needs Python >= 3.11 and make.
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
# Python compiles a module when it is first imported, and keeps the result unless this forbids it.
unexport PYTHONDONTWRITEBYTECODE
READY := $(VENV)/.ready
TESTING := $(VENV)/.ready-to-test
BOOK := $(VENV)/.ready-for-the-book
RECIPES := $(VENV)/.ready-for-the-recipes
# The versions of torch that `make wheel` tests with. The oldest has wheels for Python 3.11 and 3.12.
OLDEST ?= torch==2.4.1

.PHONY: setup quick book wheel paper figures test test-fast tests-and-notebooks lint lab gpu readme record clean

quick: $(READY)
	$(BIN)/softad run $(PROFILE)
	$(BIN)/softad report $(PROFILE)

setup: $(READY)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) --version); name one: make PYTHON=python3.12"; exit 1; }
	@echo "Setting up $(VENV): $(TORCH), then the packages of the workbook. This takes minutes, once."
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) $(TORCH)
	$(INSTALL) $(EDITABLE) '.[workbook]'
	touch $(READY)

# Lightning, Transformers, dask, Sphinx and playwright come with the tests. Modules are compiled on every core beforehand:
# three processes would each compile what they import. Some packages hold files that do not compile.
$(TESTING): $(READY)
	$(INSTALL) $(EDITABLE) '.[workbook,test]'
	$(BIN)/python -m compileall -q -j 0 -x /tests/ $(VENV)/lib > /dev/null || true
	touch $(TESTING)

$(BOOK): $(READY)
	$(INSTALL) $(EDITABLE) '.[workbook,book]'
	touch $(BOOK)

# One of the figures' pages shows SoftAD in Lightning, Transformers, skorch and others.
$(RECIPES): $(READY)
	$(INSTALL) $(EDITABLE) '.[workbook,recipes]'
	touch $(RECIPES)

# Nothing is executed: the pages are the notebooks as they are stored. A warning is an error.
book: $(BOOK)
	$(BIN)/python -m sphinx -q -W -E --keep-going -c softadlib/workbook/pages/book -d outputs/book/.doctrees . outputs/book
	@echo "outputs/book/index.html"

wheel: $(TESTING)
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	WHEEL="$$(ls dist/*.whl)" $(BIN)/python -m pytest tests/test_wheel.py
	sh .ci/library "$(OLDEST)" $(PYTHON)
	sh .ci/library "$(firstword $(TORCH)) $(filter-out torch%,$(TORCH))" $(PYTHON)

paper: $(READY)
	$(BIN)/softad run paper --dry-run
	@$(if $(YES),true,printf 'Train all of this? [y/N] '; read answer; test "$$answer" = y)
	$(BIN)/softad run paper
	$(BIN)/softad report paper

figures: $(RECIPES)
	$(BIN)/softad draw

lint: $(TESTING)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Side by side: mypy has one process, and tests wait for kernels and nodes now and then.
test: $(TESTING)
	$(MAKE) --jobs 2 lint tests-and-notebooks

test-fast: $(TESTING)
	$(BIN)/python -m pytest -m fast tests

# Three processes for two cores: while one waits for a process it started, the others have work.
tests-and-notebooks: $(TESTING)
	$(BIN)/python -m pytest -n 3 --dist loadscope --no-loadscope-reorder -p tests.figures_check --nbval \
	  --nbval-sanitize-with tests/nbval_sanitize.cfg --nbval-cell-timeout 300 tests notebooks

lab: $(READY)
	$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/notebooks/start.ipynb $(LAB)

# The tests that need a CUDA GPU.
gpu: $(TESTING)
	$(BIN)/python -m pytest -m gpu tests

readme: $(READY)
	$(BIN)/python tests/readme_commands.py

# Store the outputs that nbval compares with; look at every difference before committing it.
record: $(TESTING)
	$(BIN)/python tests/record_notebooks.py

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis
