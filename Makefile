# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check

.PHONY: demo test lint format benchmark browser clean

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

# The dashboard is tested in a real browser, Debian's own; where it cannot be installed those tests are skipped, except in CI.
CHROMIUM := /usr/bin/chromium
ROOT     := $(if $(filter 0,$(shell id -u)),,sudo -n)

browser:
	@test -x $(CHROMIUM) || { $(ROOT) apt-get update -qq && $(ROOT) apt-get install -y -qq chromium >/dev/null; } \
	  || echo "$(CHROMIUM) is missing and could not be installed: the tests in a browser are skipped" >&2

demo: $(VENV)/.python
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh examples/demo.sh

test: $(VENV)/.dev browser
	$(BIN)/python -m pytest -n 2 -m "not processes" $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m processes $(PYTEST_ARGS) || test $$? = 5 # 5: there are none among those asked for

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmark: $(VENV)/.bench $(VENV)/.dev browser
	$(BIN)/python benchmarks/planner.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/dashboard.py

clean:
	rm -rf $(VENV) demo
