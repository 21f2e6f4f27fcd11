# Every target does its own set-up: a virtual environment in .venv, and for the tests Debian packages and what is built.

PYTHON ?= python3
DEMO_ARGS ?=
TEST_ARGS ?=
CASES ?= ../shared/cases
IMAGE ?= vllm-autoscaler:latest

export PIP_DISABLE_PIP_VERSION_CHECK = 1
export PIP_ROOT_USER_ACTION = ignore

# Half of the start of the tests is the compilation of their files, which are kept for the next start.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-unit test-lab test-long test-busy test-keda mutants cases lint types contracts site image bench envtest keda helm versitygw debian clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/installed ## run the daemon on a simulated fleet, page at http://127.0.0.1:8080/ (DEMO_ARGS="--help")
	@exec .venv/bin/vllm-autoscaler demo --record "$$(mktemp -d)" $(DEMO_ARGS)

# There are more workers than cores, because some tests wait for an answer or for a lease to expire. Those of servers
# wait a third of their time, so `test` has two more.
BY_FILE = --maxprocesses 4 --dist loadfile --no-loadscope-reorder --numprocesses
ONE_MORE = $$(($$(nproc) + 1))
TWO_MORE = $$(($$(nproc) + 2))
LAB = tests/lab tests/bench tests/sim/engine

test-unit: .venv/installed-dev ## run the quick tests, which need no server and no build, in a minute
	@exec .venv/bin/pytest -m 'not integration and not keda and not slow and not long' --durations 5 \
	  $(or $(TEST_ARGS),$(LAB:%=--ignore=%) --numprocesses $$(nproc) --maxprocesses 4 --dist worksteal)

test: .venv/installed-dev debian envtest helm versitygw ## run the tests of the product (TEST_ARGS="tests/core -k burst" for some)
	@exec .venv/bin/pytest $(or $(TEST_ARGS),$(LAB:%=--ignore=%) $(BY_FILE) $(TWO_MORE))

test-lab: .venv/installed-dev debian ## run the tests of the laboratory, its engine and its studies, two minutes
	@exec .venv/bin/pytest $(or $(TEST_ARGS),$(LAB) $(BY_FILE) $(ONE_MORE))

test-long: .venv/installed-dev debian envtest helm versitygw ## run studies, cost limits and properties with many examples
	@exec .venv/bin/pytest -m '(long or hypothesis) and not keda' --hypothesis-profile long --timeout 3600 \
	  $(or $(TEST_ARGS),$(BY_FILE) $(ONE_MORE))

test-busy: .venv/installed-dev debian envtest helm versitygw ## run the tests of servers as on a busy machine, where all come late at random
	@exec .venv/bin/pytest -p tests.harness.busy \
	  $(or $(TEST_ARGS),-m 'integration and not keda and not long' $(BY_FILE) $(TWO_MORE))

test-keda: .venv/installed-dev debian envtest keda ## run the tests with a real KEDA, three minutes
	@exec .venv/bin/pytest -m keda $(or $(TEST_ARGS),tests/keda)

mutants: .venv/installed-dev ## change the core in 80 places, and say which changes no test notices (ARGS="--room planner")
	@exec .venv/bin/python tools/mutants.py $(ARGS)

cases: .venv/installed-dev debian envtest ## run public reports in the folder CASES, half an hour (ARGS="21 22" for some)
	@if [ -d $(CASES)/preflight ]; then .venv/bin/python tools/preflight_cases.py $(CASES)/preflight; fi; \
	  .venv/bin/python tools/cases.py $(CASES) $(ARGS)

lint: .venv/installed-dev ## check style and format
	.venv/bin/ruff check
	.venv/bin/ruff format --check

types: .venv/installed-dev ## check types
	.venv/bin/mypy

contracts: .venv/installed-dev ## check that imports point one way
	.venv/bin/lint-imports

site: .venv/installed-dev ## build the documentation with a search into build/site/html; a dead link fails
	@rm -rf build/site && mkdir -p build/site/source
	@tar cf - --exclude=./build --exclude='./.*' --exclude=__pycache__ . | tar xf - -C build/site/source
	.venv/bin/mkdocs build --quiet --strict -f tools/site/mkdocs.yml

bench: .venv/installed-dev ## measure the README's numbers
	@for script in tick whole_tick scrape keda keda_cost reaction queue_seen inventory quotas start state simulate webhook weights preflight; do \
	  echo "$$script"; .venv/bin/python bench/micro/$$script.py --json; done

image: .venv/installed-dev ## build the container image IMAGE; where no builder runs, check the Dockerfile
	@for builder in docker podman; do \
	  if $$builder info >/dev/null 2>&1; then \
	    $$builder build --tag $(IMAGE) . && exec $$builder run --rm $(IMAGE) --version; exit; \
	  fi; \
	done; \
	echo "neither docker nor podman runs here: the Dockerfile is checked, and no image is built"; \
	exec .venv/bin/pytest -q tests/test_dockerfile.py

envtest: ## build kube-apiserver for the tests, once per machine
	@tools/envtest.sh >/dev/null

keda: ## build KEDA and kube-controller-manager for the tests, once per machine
	@tools/keda.sh >/dev/null

helm: ## build helm for the tests of the chart, once per machine
	@tools/helm.sh >/dev/null

versitygw: ## build an S3 server for the tests of weights, once per machine
	@tools/versitygw.sh >/dev/null

lock: .venv/installed-dev ## state again which version of each package is installed
	@tools/lock.sh

debian:
	@PATH="$${KUBEBUILDER_ASSETS:+$$KUBEBUILDER_ASSETS:}$$PATH" tools/debian.sh \
	  etcd:etcd-server prometheus:prometheus victoria-metrics:victoria-metrics
	@tools/debian.sh chromium-headless-shell:chromium-headless-shell || tools/debian.sh chromium:chromium

clean: ## remove what was made here; what is in the user's cache folder stays
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache test-artefacts
	find autoscaler tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Debian keeps the part of Python that fills a virtual environment in a package of its own.
.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name one with: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || tools/debian.sh ensurepip:python3-venv
	$(PYTHON) -m venv .venv

# Every package comes in the version and with the hash that requirements/ states; `make lock` states them again.
INSTALL = .venv/bin/pip install --quiet
.venv/installed: pyproject.toml requirements/run.txt requirements/build.txt | .venv/bin/python
	$(INSTALL) --require-hashes -r requirements/build.txt -r requirements/run.txt
	$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

.venv/installed-dev: pyproject.toml requirements/dev.txt | .venv/bin/python
	$(INSTALL) --require-hashes -r requirements/dev.txt
	$(INSTALL) --no-deps --no-build-isolation -e .
	@touch .venv/installed $@
