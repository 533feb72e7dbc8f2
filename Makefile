# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check

.PHONY: demo test lint format benchmark clean

$(VENV)/.python: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt --editable ".[charts,torch]"
	@touch $@

$(VENV)/.dev: $(VENV)/.python
	$(PIP) install --constraint constraints.txt --editable ".[dev]"
	@touch $@

$(VENV)/.bench: $(VENV)/.python
	$(PIP) install --constraint constraints.txt --editable ".[bench]"
	@touch $@

demo: $(VENV)/.python
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh examples/demo.sh

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmark: $(VENV)/.bench
	$(BIN)/python benchmarks/planner.py
	$(BIN)/python benchmarks/training.py

clean:
	rm -rf $(VENV) demo
