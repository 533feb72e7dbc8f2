# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check

.PHONY: demo test compat coverage lint format docs benchmark browser clean

$(VENV)/.python: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt --editable ".[charts,torch]"
	@touch $@

$(VENV)/.dev: $(VENV)/.python
	$(PIP) install --constraint constraints.txt --editable ".[dev]"
	@touch $@

$(VENV)/.docs: $(VENV)/.python
	$(PIP) install --constraint constraints.txt --editable ".[docs]"
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

# Coverage makes the tests slower, so only CI measures it, and `make coverage`. Tests that wait for real seconds are left out.
MEASURE  ?= $(filter 1 true,$(CI))
COV      := $(if $(MEASURE),--cov --cov-report= --cov-fail-under=0)

test: $(VENV)/.dev browser
	$(BIN)/python -m pytest -n 2 -m "not processes" $(COV) $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m processes $(PYTEST_ARGS) || test $$? = 5 # 5: there are none among those asked for
	$(if $(COV),$(BIN)/coverage report)

coverage:
	$(MAKE) test MEASURE=1

# The Flower engine on Flower 1.36 to the newest, each in its own environment under .compat/.
compat: $(VENV)/.dev
	$(BIN)/python tools/compat.py $(FLWR)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documentation, into site/: open site/index.html. A broken link fails the build.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

benchmark: $(VENV)/.bench $(VENV)/.dev browser
	$(BIN)/python benchmarks/planner.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/dashboard.py

clean:
	rm -rf $(VENV) .compat demo site
