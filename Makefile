# Everything a contributor runs. Each target sets up .venv by itself the first time (about a minute).
#
#   make PYTHON=/path/to/python3.12 demo     another interpreter
#   make demo DEMO_ARGS="--samples 20000"    further options for a command

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?=
VENV ?= .venv
DEMO_OUTPUT ?= demo-output
BENCH_OUTPUT ?= bench-output
DOCS_OUTPUT ?= docs-output
NOTEBOOK ?= quickstart
DEMO_ARGS ?=
BENCH_ARGS ?=
PYTEST_ARGS ?=
BITS ?= compare
ROOM ?= solvers/risk
# Mutants of each file, and seconds of tests that each meets at most.
SAMPLE ?= 60
SECONDS ?= 20
MUTANTS_ARGS ?=
TEST_WORKERS ?= 2
# A test that hangs beyond its own time limit (in C code, or where the limit's exception was swallowed) ends its process
# and prints where all threads were, rather than hold everything up for good.
TEST_GUARD = -o faulthandler_timeout=360 -o faulthandler_exit_on_timeout=true

# The oldest supported Python: what it can install, the later ones can too.
LOCK_PYTHON ?= python3.11
LOCK_VENV := .venv-lock
# What the image has of dkgp's extras, and the file that names its packages with their hashes.
IMAGE_EXTRAS ?= s3,service,plot,parquet,netcdf
IMAGE_LOCK ?= deploy/requirements.txt
# The image's base, by digest: docker buildx imagetools inspect python:3.11-slim-bookworm
PYTHON_IMAGE ?= python:3.11-slim-bookworm
AUDIT_ARGS ?=
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
comma := ,

BIN := $(VENV)/bin
# Tests start many processes, and where Python keeps no bytecode each one compiles dkgp anew (`make clean` removes it).
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest
STAMP := $(VENV)/.installed
COMPILED := $(VENV)/.compiled
PIP_OPTIONS := --quiet --disable-pip-version-check

.PHONY: help install demo test test-portable test-long test-faults test-slow bits lint types format docs notebook bench mutants dist lock image-lock image sbom audit clean

help: ## Print this list
	@echo "Targets:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## Set up .venv: dkgp and its benchmarks, editable, with all that the other targets need

$(STAMP): pyproject.toml benchmarks/pyproject.toml constraints.txt
	@usable() { "$$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }; \
	python=''; \
	for candidate in $(if $(PYTHON),"$(PYTHON)",python3.13 python3.12 python3.11 python3 python); do \
	    if usable "$$candidate"; then python="$$candidate"; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	    echo "dkgp needs Python >= 3.11 with its venv module; $(if $(PYTHON),'$(PYTHON)' is none,found none on PATH)." >&2; \
	    echo "Install one (on Debian and Ubuntu also python3-venv), or name it: make PYTHON=/path/to/python3.12 ..." >&2; \
	    exit 1; \
	fi; \
	echo "Setting up $(VENV) with $$("$$python" --version), about a minute ..."; \
	"$$python" -m venv --clear $(VENV); \
	$(BIN)/python -m pip install $(PIP_OPTIONS) -c constraints.txt -e '.[dev]' -e ./benchmarks; \
	touch $@

demo: $(STAMP) ## Train an exact GP on 100,000 samples: data, hyperparameters, model, predictions, table and plot
	$(BIN)/dkgp demo --out $(DEMO_OUTPUT) --overwrite $(DEMO_ARGS)

# Once, in as many processes as there are cores: the first tests would compile all this themselves, wait for each other and start helpers.
$(COMPILED): $(STAMP) $(shell find dkgp/kernels -name '*.py'; grep -rl --include='*.py' '^@cached_njit' dkgp)
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/dkgp warm-up
	touch $@

test: $(COMPILED) ## Run the tests, except those that take long or are slow, and those of faults and of other processors
	$(PYTEST) -m "not slow and not faults and not portable and not long" -n $(TEST_WORKERS) --dist worksteal $(TEST_GUARD) $(PYTEST_ARGS)

test-portable: $(STAMP) ## Run the tests of kernels, operators and engine compiled for another processor, on another BLAS
	@variables="$$($(BIN)/python -m tests.targets)"; set -x; \
	env $$variables $(PYTEST) tests/kernels tests/operators tests/engine \
	    -m "not slow and not faults" -n $(TEST_WORKERS) --dist worksteal $(TEST_GUARD) $(PYTEST_ARGS)

test-long: $(COMPILED) ## Run the tests that take long: a second or more each, but not so much as the slow ones
	$(PYTEST) -m "long and not slow and not faults and not portable" -n $(TEST_WORKERS) --dist worksteal $(TEST_GUARD) $(PYTEST_ARGS)

bits: $(STAMP) ## Compare the bits of all commands with those on record; BITS=record: record them anew
	@variables="$$($(BIN)/python -m tests.targets common)"; set -x; \
	env $$variables DKGP_BITS=$(BITS) $(PYTEST) tests/cli/test_bits.py $(TEST_GUARD) $(PYTEST_ARGS)

test-faults: $(STAMP) ## Run the tests that kill, starve and cut off processes; prints fault, outcome and seconds
	$(PYTEST) -m faults $(PYTEST_ARGS)

test-slow: $(STAMP) ## Run the slow tests (slow faults are in test-faults)
	$(PYTEST) -m "slow and not faults" $(PYTEST_ARGS)

lint: $(STAMP) ## Check formatting, lint rules and the direction of imports; count indirect words
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/python -m tests.wording

types: $(STAMP) ## Check types (mypy, strict)
	$(BIN)/mypy

format: $(STAMP) ## Format the code and apply the lint rules' safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# From nothing each time (--fresh-env): a page that did not change itself shows what changed code prints and draws.
docs: $(STAMP) ## Build the documentation site, into docs-output/html; a warning is an error
	@rm -rf docs/generated
	$(BIN)/sphinx-build --fresh-env --fail-on-warning --keep-going --jobs 2 --quiet -c docs -d $(DOCS_OUTPUT)/doctrees . $(DOCS_OUTPUT)/html
	@echo "$(DOCS_OUTPUT)/html/index.html"

notebook: $(STAMP) ## Run a notebook, NOTEBOOK=error-bars, and write it with its pictures into notebook-output/
	@mkdir -p notebook-output
	$(BIN)/jupyter-execute --timeout=600 --output=$(CURDIR)/notebook-output/$(NOTEBOOK) notebooks/$(NOTEBOOK).ipynb
	@echo "notebook-output/$(NOTEBOOK).ipynb"

bench: $(STAMP) ## Take the benchmark figures: cost per kernel entry, solve, variances, Dask overhead
	@mkdir -p $(BENCH_OUTPUT)
	$(BIN)/dkgp bench tiles --out $(BENCH_OUTPUT)/tiles.json $(BENCH_ARGS)
	$(BIN)/dkgp bench solve --out $(BENCH_OUTPUT)/solve.json $(BENCH_ARGS)
	$(BIN)/dkgp bench variance --out $(BENCH_OUTPUT)/variance.json $(BENCH_ARGS)
	$(BIN)/dkgp bench overhead --out $(BENCH_OUTPUT)/overhead.json $(BENCH_ARGS)

$(VENV)/.mutants-installed: $(STAMP)
	$(BIN)/python -m pip install $(PIP_OPTIONS) -c constraints.txt -e '.[mutants]'
	touch $@

mutants: $(VENV)/.mutants-installed ## Change a room's code, ROOM=solvers/risk, mutant by mutant: which changes do its tests not see?
	$(BIN)/python -m pytest -q tests/mutants
	$(BIN)/python -m tests.mutants $(ROOM) --sample $(SAMPLE) --seconds $(SECONDS) $(MUTANTS_ARGS)

$(VENV)/.release-installed: $(STAMP)
	$(BIN)/python -m pip install $(PIP_OPTIONS) -c constraints.txt -e '.[release]'
	touch $@

dist: $(VENV)/.release-installed ## Build wheel and source distribution of dkgp into dist/, and check what is in them
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m tests.distribution dist/*

lock: ## Write constraints.txt anew, from the newest versions that Python 3.11 can install
	@"$(LOCK_PYTHON)" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { \
	    echo "make lock needs Python 3.11, the oldest supported version: make lock LOCK_PYTHON=/path/to/python3.11" >&2; exit 1; }
	"$(LOCK_PYTHON)" -m venv --clear $(LOCK_VENV)
	$(LOCK_VENV)/bin/python -m pip install $(PIP_OPTIONS) -e '.[dev,gcs,azure,gateway,ssh,dashboard,mutants,release,supply]' -e ./benchmarks
	@{ echo "# Exact versions with which dkgp is tested, on Python 3.11 to 3.13: pip install -c constraints.txt 'dkgp[...]'."; \
	   echo "# Written by \`make lock\`, from a clean Python 3.11 environment with all extras, and dkgp-benchmarks without its peers; run it again to renew them."; \
	   $(LOCK_VENV)/bin/python -m pip --disable-pip-version-check freeze --exclude-editable; } > constraints.txt.new
	mv constraints.txt.new constraints.txt
	rm -rf $(LOCK_VENV)
	$(MAKE) image-lock

$(VENV)/.supply-installed: $(STAMP)
	$(BIN)/python -m pip install $(PIP_OPTIONS) -c constraints.txt -e '.[supply]'
	touch $@

# pip takes nothing then but files of these hashes. The versions are those of constraints.txt.
LOCKED = $(BIN)/uv pip compile --quiet --python-version 3.11 --universal --constraint constraints.txt --generate-hashes \
	--no-header --no-annotate --no-emit-index-url

image-lock: $(VENV)/.supply-installed ## Write the image's packages with their hashes, of IMAGE_EXTRAS, into IMAGE_LOCK
	$(LOCKED) $(foreach extra,$(subst $(comma), ,$(IMAGE_EXTRAS)),--extra $(extra)) --output-file $(IMAGE_LOCK) pyproject.toml
	echo 'hatchling' | $(LOCKED) --output-file deploy/requirements-build.txt -

image: ## Build the image on a base that is named by digest, PYTHON_IMAGE=python@sha256:...
	docker build --file deploy/Dockerfile --build-arg PYTHON_IMAGE=$(PYTHON_IMAGE) --build-arg BASE_BY_DIGEST=required \
	    --build-arg LOCK=$(IMAGE_LOCK) --build-arg REVISION=$$(git rev-parse HEAD) --tag dkgp:$(VERSION) .

sbom: $(VENV)/.supply-installed ## Write the image's bill of materials (CycloneDX), sbom.cdx.json
	$(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --of JSON -o sbom.cdx.json $(IMAGE_LOCK)

audit: $(VENV)/.supply-installed ## Ask the advisories about the image's packages; what could not be asked about is a failure
	$(BIN)/pip-audit --strict --require-hashes --disable-pip --progress-spinner off --requirement $(IMAGE_LOCK) $(AUDIT_ARGS)

clean: ## Remove .venv, caches and the output of demo, bench and docs
	rm -rf $(VENV) $(LOCK_VENV) $(DEMO_OUTPUT) $(BENCH_OUTPUT) $(DOCS_OUTPUT) notebook-output docs/generated build dist sbom.cdx.json
	rm -rf .mutants .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find dkgp benchmarks tests -name __pycache__ -type d -prune -exec rm -rf {} +
