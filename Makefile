# make run: start a demo pod.  make test: everything.  make quick: after every edit.
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

.PHONY: run test quick check format bench clean

run: $(STAMP)
	@$(BIN)/mcpp up --demo

test: check
	@$(BIN)/pytest

quick: check
	@HYPOTHESIS_PROFILE=quick $(BIN)/pytest -m "not slow"

check: $(STAMP)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

format: $(STAMP)
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: $(STAMP)
	@$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The stamp is newer than pyproject.toml when everything is installed, so a second run installs nothing.
$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "MCPP needs Python 3.11 or newer; none was found on PATH."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "No venv module: on Debian and Ubuntu, 'apt-get install python3-venv'."; exit 1; }
	@echo "Installing into $(VENV) (first run only) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
