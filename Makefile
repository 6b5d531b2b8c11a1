# `make up` and `make test` need only Python >= 3.11; each installs its requirements into .venv.
PYTHON ?= python3
BIN := .venv/bin
# Python compiles a module when it is first imported. To compile all of them takes half of the installation. It is done for
# the tests alone: their processes would otherwise all compile the same modules at first.
COMPILE := --no-compile
.venv/test.stamp: COMPILE := --compile
PIP = $(BIN)/python -m pip --disable-pip-version-check --quiet install $(COMPILE) --no-deps
PACKAGES := shared/client shared/service services/ingest services/worker services/operator migrations $(wildcard extensions/*) dev
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' shared/client/pyproject.toml)
# The everyday suite: the longest first. `make rest` runs every other test that needs no tool.
EVERYDAY := tests/promises tests/fleet tests/sql dev/tests/system/test_up.py tests/unit $(wildcard extensions/*/tests/unit) dev/tests/unit
REST := tests/system extensions dev/tests tests/docs tests/sql tests/interleavings tests/security tests/deploy tests/promises tests/fleet tests/unit
TOOLS := container or browser or chaos or cluster or simulation or soak or fuzz or telemetry or packages or interleavings or neighbours
# Compiled modules are kept: every worker of a run, and every program that it starts, imports hundreds of ours.
unexport PYTHONDONTWRITEBYTECODE
# One process per processor, and one more where a test waits.
JOBS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((n > 8 ? 8 : n + 1)))
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(if $(SLOWEST),--slowest-files=$(SLOWEST))

.DEFAULT_GOAL := help
.PHONY: help up test rest test-all fuzz simulate interleavings neighbours pictures mutants soak matrix check format bench packages release images docs lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: .venv/up.stamp ## run `surelane dev` here: embedded PostgreSQL, migrations, the services, a Slack simulator
	@exec $(BIN)/surelane dev

test: .venv/test.stamp ## try every promise once: unit and SQL tests, virtual fleets, real processes (2 minutes)
	@$(PYTEST) -m "everyday" $(or $(TESTS),$(EVERYDAY))

rest: .venv/test.stamp ## run every other test that needs no tool
	@$(PYTEST) -m "not everyday and not ($(TOOLS))" $(or $(TESTS),$(REST))

test-all: test rest ## run every test that needs no tool

fuzz: .venv/fuzz.stamp ## fuzz the operator's API against its own OpenAPI document: SEED=1
	@SURELANE_FUZZ_SEED=$(or $(SEED),1) $(BIN)/python -m pytest -m fuzz tests/system

simulate: .venv/test.stamp ## simulate fleets and durable programs in virtual time, with faults from seeds: SEEDS=200
	@$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),200) $(if $(MUTANT),--mutant $(MUTANT))
	@$(if $(MUTANT),,SURELANE_PROGRAMS=$(or $(SEEDS),200) $(BIN)/python -m pytest -q tests/fleet/test_programs.py)

mutants: .venv/test.stamp ## put single faults into SQL and Python; say which tier finds each, after how long: MUTANT=name TIER=…
	@$(BIN)/python -m tests.mutants $(foreach each,$(MUTANT),--mutant $(each)) $(foreach each,$(TIER),--tier $(each))

soak: .venv/test.stamp ## load the system for long, with kills and restarts; show what grows: MINUTES=60 RATE=20
	@SURELANE_SOAK_MINUTES=$(or $(MINUTES),60) SURELANE_SOAK_RATE=$(or $(RATE),20) $(BIN)/python -m pytest -q -n 0 -m soak tests/operations

matrix: ## run the whole suite on each Python and PostgreSQL that this machine has
	@$(PYTHON) -m tests.matrix

interleavings: .venv/test.stamp ## run all pairs of the queue's calls in overlapping transactions, in every order
	@$(BIN)/python -m pytest -n $(JOBS) -m interleavings tests/interleavings

pictures: .venv/browser.stamp ## make the documentation's pictures of both pages anew
	@SURELANE_RECORD=1 $(BIN)/python -m pytest -q -n 0 -m browser tests/browser/test_pictures.py

neighbours: .venv/test.stamp ## install and run the queue on databases as others have them: settings, platforms, change capture
	@$(BIN)/python -m pytest -n $(JOBS) -m neighbours tests/neighbours

check: .venv/check.stamp ## check style, types, import directions and manifests
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports
	@$(BIN)/zizmor --offline --quiet --persona pedantic .github/workflows
	@$(BIN)/python -m pytest -q tests/deploy -m "not container and not cluster and not packages"

format: .venv/check.stamp ## format the code and apply the automatic fixes
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

bench: .venv/bench.stamp ## run the benchmarks, side by side with peers
	@$(BIN)/python -m benchmarks

packages: .venv/build.stamp ## build the wheels and the source archives of all packages into dist/
	@rm -rf dist && for package in $(PACKAGES); do \
	  (cd $$package && "$(CURDIR)/$(BIN)/python" -m hatchling build --directory "$(CURDIR)/dist" >/dev/null) || exit 1; done

release: .venv/release.stamp ## make all of a release of this commit in dist/, each time the same bytes: IMAGES=no
	@$(BIN)/python dev/release.py $(if $(filter no,$(IMAGES)),--no-images)

images: ## build the five container images, tagged with the version
	@SURELANE_VERSION=$(VERSION) docker compose --env-file /dev/null -f compose.yaml -f compose.override.yaml build

docs: .venv/docs.stamp ## build the documentation's site in build/site; a broken link fails it
	@rm -rf build/site && $(BIN)/python -m sphinx -W --keep-going -q -j auto -d build/doctrees -c docs/site docs build/site
	@echo "build/site/index.html"

lock: ## resolve the pinned, hashed requirements again (needs uv)
	@sh requirements/lock

clean: ## remove the environment and the development data
	rm -rf .venv .surelane build .mypy_cache .ruff_cache .pytest_cache .hypothesis benchmarks/graphile/node_modules

# Check one by one, so that each error says what to do.
.venv/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "there is no $(PYTHON); install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Surelane needs Python 3.11 or newer and %s is %d.%d; name another: make PYTHON=/path/to/python3" % (sys.executable, sys.version_info[0], sys.version_info[1]))'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "this Python cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv --clear .venv || { rm -rf .venv; exit 1; }

# One stamp per requirements file: install again only after it or a package's metadata changed.
# A file names every package that it needs, so pip resolves nothing (--no-deps): an old pip takes an extra of a pinned
# package for another package and stops as soon as there is a newer release of it.
.venv/%.stamp: requirements/%.txt .venv/ours.stamp
	@echo "installing requirements/$*.txt into .venv (a minute, once)" >&2
	@$(PIP) --require-hashes --only-binary=:all: -r $<
	@touch $@

# Our own packages, which are built with hatchling.
.venv/ours.stamp: requirements/build.txt $(PACKAGES:%=%/pyproject.toml) | .venv/bin/python
	@$(PIP) --require-hashes --only-binary=:all: -r $<
	@$(PIP) --no-build-isolation --no-index $(PACKAGES:%=-e ./%)
	@touch $@
