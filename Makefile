# Every target sets up what it needs. Only make, a POSIX shell and Python 3.11 or newer are required.
# PYTHON=/path/to/python names the Python that makes .venv.

.DEFAULT_GOAL := help
.PHONY: help run demo engine image images check test test-all lint type client bench clean tools tables environment environment-dev environment-suites
MAKEFLAGS += --no-print-directory
export PYTHON

BIN := .venv/bin

# Tests wait more than they compute, so there are more workers than cores (tests/conftest.py says how many). Tests without
# an engine share nothing; those with one share daemons, containers and engines with the other tests of their file.
PYTEST = $(BIN)/python -m pytest -q $(PYTEST_OPTIONS) -n auto
PYTEST_PLAIN = $(PYTEST) --maxprocesses 8 -m "not engine" --dist worksteal
PYTEST_ENGINE = $(PYTEST) --maxprocesses 3 -m engine --dist loadfile
# The second phase runs even if tests of the first fail (exit code 1), but not after Ctrl-C or a wrong call.
PYTEST_PHASES = $(PYTEST_PLAIN); first=$$?; [ $$first -le 1 ] || exit $$first; $(PYTEST_ENGINE) && exit $$first
# Hundreds of tests start a daemon or the CLI; without byte code each compiles the product again.
unexport PYTHONDONTWRITEBYTECODE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: environment ## set everything up and serve in the foreground
	@exec $(BIN)/python -m scripts.run

demo: environment engine image ## run the tour of examples/demo.py
	@exec $(BIN)/python examples/demo.py

engine: ## find a container engine, or install and start one (root on Debian, Ubuntu)
	@scripts/with-python -m scripts.engine

image: environment engine ## build the agent image, if its inputs changed: IMAGE=dev|interpreter FROM=registry|packages
	@$(BIN)/sandboxd image build $(IMAGE) $(if $(FROM),--from $(FROM))

images: image # what the tests need
	@$(BIN)/sandboxd image build interpreter

check: lint type ## lint, type, then every test that needs no engine, in parallel
	@exec $(PYTEST_PLAIN)

test: lint type engine tools tables images environment-suites ## lint, type, then the whole test suite
	@$(PYTEST_PHASES)

test-all: PYTEST_OPTIONS := -o timeout=1200
test-all: lint type engine tools tables images environment-suites ## the same suite with its long runs: many more kills, races and rounds
	@export SANDBOXD_TEST_LONG=1; $(PYTEST_PHASES)

lint: environment-dev ## ruff (rules and format), consistent requirements, no copyleft licence
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python -m pip --disable-pip-version-check check
	@$(BIN)/python -m scripts.licences
	@$(BIN)/python -m scripts.unasync --check

client: environment-dev ## write the synchronous client from the async one
	@$(BIN)/python -m scripts.unasync

type: environment-dev ## mypy, strict, tests and examples included
	@$(BIN)/mypy

bench: environment-dev engine image ## measure ours and the peers: JOBS=exec,first PEERS=all|none QUICK=1 PUBLISH=1
	@exec $(BIN)/python -m benchmarks $(if $(JOBS),--jobs $(JOBS)) $(if $(PEERS),--peers $(PEERS)) \
	  $(if $(QUICK),--quick) $(if $(PUBLISH),--publish)

clean: ## remove the environments and caches, never data
	@rm -rf .venv .venv-suites .token-tables build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

tools:
	@scripts/with-python -m scripts.tools

tables: environment-dev # token tables for tests of exact counts
	@$(BIN)/python -m scripts.token_tables

environment:
	@scripts/with-python -m scripts.environment run

environment-dev:
	@scripts/with-python -m scripts.environment dev

environment-suites:
	@scripts/with-python -m scripts.environment suites
