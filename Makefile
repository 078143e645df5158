# make paper | test | lab: each sets up .venv first if it is missing. Needs Python >= 3.11 and make.
PYTHON ?= python3
VENV ?= .venv
# A matched pair: torchvision is built against one torch. Override both together, for example
#   make test TORCH="torch==2.11.0 torchvision==0.26.0"
TORCH ?= torch==2.15.0 torchvision==0.29.2
PROFILE ?= quick
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup paper test lint lab record clean

setup: $(READY)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) --version); name one: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH) --editable '.[workbook,test]'
	touch $(READY)

paper: $(READY)
	$(BIN)/softad run $(PROFILE)
	$(BIN)/softad report $(PROFILE)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder tests
	$(BIN)/python -m pytest -n 2 --dist loadscope --nbval --nbval-current-env \
	  --nbval-sanitize-with tests/nbval_sanitize.cfg --nbval-cell-timeout 300 notebooks

lab: $(READY)
	$(BIN)/jupyter lab notebooks

# Store the outputs that nbval compares with; look at every difference before committing it.
record: $(READY)
	$(BIN)/python tests/record_notebooks.py

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis
