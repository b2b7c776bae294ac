# `make` alone lists the targets.

PYTHON ?= python3
EXTRAS := build serve gevent fast otel archive dev loadtest docs test
# What the image contains: the extras, and what is needed to build the project without a download.
IMAGE := --extra serve --extra gevent --extra fast --extra otel --extra archive --extra build
# What `make run` installs: a trial needs no more.
RUN := --extra dev --extra build
MINUTES := 10
# One list for every version of Python from 3.11 on, and every platform.
COMPILE = build/constraints/bin/uv --quiet pip compile setup.cfg --universal --python-version 3.11 \
  --generate-hashes --no-annotate --custom-compile-command 'make constraints'
PIP := .venv/bin/python -m pip --disable-pip-version-check
# pip says a line for each package; what fails is said on standard error.
BAR = awk -v all="$$(grep -c == $(1))" '\
  /^(Collecting|Requirement)/ && n < all { n++; printf "\r%3d of %d packages", n, all > "/dev/stderr" } \
  /^Installing/ { printf ", and now they are installed" > "/dev/stderr" } \
  /^failed$$/ { failed = 1 } \
  END { print "" > "/dev/stderr"; exit failed }'
define fetch
	@{ $(PIP) install --require-hashes --only-binary :all: --requirement $(1) || echo failed; } | $(BAR)
	@$(PIP) --quiet install --no-deps --no-build-isolation --editable .
endef

.PHONY: help install run test test-all newest wheel matrix check fuzz loadtest reports draw pages speed documents docs release-check chart upgrade faults simulate nightly alerts celery-suite constraints clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

install: .venv/installed ## make .venv with everything that running, testing and load testing need

run: .venv/run ## run broker, worker and gateway on this machine, nothing to install first (ARGS="...")
	.venv/bin/gateway dev $(ARGS)

test: install ## install missing servers, then lint and run the quick tests (ARGS="-k redis")
	tests/install-servers.sh
	$(MAKE) check
	# Without tests marked long, most of tests/integration among them: ARGS="-m long ..." runs these.
	# Each process loads all tests: half the time where compiled ones may be kept.
	# A test that fails beside two others, on a machine that is busy with them, is run again alone.
	# Where the first failure ends the run (-x), the others have not run.
	export REQUIRE_SERVERS=1 PYTHONDONTWRITEBYTECODE=; \
	.venv/bin/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not long" $(ARGS) || \
	  { status=$$?; test $$status != 5 || echo 'No test was run: those marked long need -m long.' >&2; \
	  test $$status = 1 && test -z "$(filter -x --exitfirst --maxfail% --pdb,$(ARGS))" && \
	  .venv/bin/python -m pytest -m "not long" $(ARGS) --last-failed --last-failed-no-failures none; }

MEASURED = tests/contract tests/integration tests/docs tests/unit
PYTEST = pytest -n 4 --dist loadfile --no-loadscope-reorder

test-all: install ## the long ones as well; fails where less is covered than pyproject.toml asks for
	tests/install-servers.sh
	# With ARGS there may be none of these.
	REQUIRE_SERVERS=1 .venv/bin/python -m $(PYTEST) -m long tests/faults tests/simulation $(ARGS) || \
	  test $$? = 5
	rm -rf build/coverage
	# Measuring takes speed away: a test that fails is run again without it, and then it counts.
	REQUIRE_SERVERS=1 .venv/bin/coverage run -m $(PYTEST) $(MEASURED) $(ARGS) || REQUIRE_SERVERS=1 \
	  .venv/bin/python -m $(PYTEST) --last-failed --last-failed-no-failures=none
	.venv/bin/coverage combine --quiet
	.venv/bin/coverage report

newest: install ## test with the newest version of everything, whatever our upper bounds say
	tests/install-servers.sh
	rm -rf build/newest
	.venv/bin/python -m venv build/newest
	build/newest/bin/python -m pip --disable-pip-version-check --quiet install uv
	# setuptools is bounded for pytest-tornado's sake, not for ours.
	sed -E '/setuptools/!s/,?<[0-9.]+$$//' setup.cfg > build/newest/setup.cfg
	cp pyproject.toml build/newest/
	build/newest/bin/uv --quiet pip compile build/newest/setup.cfg --universal --python-version 3.11 \
	  --no-annotate --custom-compile-command 'make newest' --upgrade $(EXTRAS:%=--extra %) \
	  --output-file constraints-newest.txt
	build/newest/bin/uv --quiet pip install --python build/newest/bin/python \
	  --requirement constraints-newest.txt
	build/newest/bin/uv --quiet pip install --python build/newest/bin/python --no-deps \
	  --no-build-isolation --editable .
	REQUIRE_SERVERS=1 build/newest/bin/python -m pytest -n 3 --dist loadfile \
	  --no-loadscope-reorder $(ARGS)

wheel: install ## install the wheel into clean environments, with each Celery (needs a network)
	tests/install-servers.sh
	REQUIRE_SERVERS=1 .venv/bin/python -m pytest -n 0 tests/wheel --timeout 1200 $(ARGS)

matrix: ## install and test on Debian 12, 13 and testing, as root (ARGS="debian-13 --pytest '-k redis'")
	$(PYTHON) tests/matrix.py $(ARGS)

check: install ## lint: style, form, imports, types
	.venv/bin/ruff check .
	.venv/bin/ruff format --check --quiet . || { echo 'Run .venv/bin/ruff format.'; exit 1; }
	.venv/bin/lint-imports --no-logo
	.venv/bin/mypy

fuzz: install ## test properties with thousands of made-up examples, for MINUTES=10
	@end=$$(( $$(date +%s) + 60 * $(MINUTES) )); \
	while [ $$(date +%s) -lt $$end ]; do \
	  MUTATIONS=200000 MUTATION_SEED=$$(date +%N) \
	  .venv/bin/python -m pytest -q -p no:cacheprovider --hypothesis-profile=thorough \
	    --hypothesis-seed=$$(date +%N) -m hypothesis tests/unit || exit 1; \
	done

loadtest: install ## run a short form of all experiments, ten minutes, or one of them (ARGS="cost ...")
	tests/install-servers.sh
	PATH="$(CURDIR)/.venv/bin:$$PATH" $(if $(ARGS),loadtest/run.sh $(ARGS),.venv/bin/python -m loadtest.all)

reports: install ## measure what docs/performance.md shows again, four hours (ARGS="cost peers")
	tests/install-servers.sh
	PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/python -m loadtest.all --reports $(ARGS)

draw: install ## draw the pages of the committed reports into build/reports
	.venv/bin/python -m loadtest.render --plots --to build/reports \
	  $(filter-out %faults.json %simulation.json,$(wildcard docs/reports/*.json))

pages: draw ## open our pages in chromium: is everything readable? (ARGS="REPORT.html ...")
	.venv/bin/python -m tests.pages $(ARGS)
	npm install --silent --no-save --prefix build/axe axe-core@4
	.venv/bin/python -m tests.admin_page --axe build/axe/node_modules/axe-core/axe.min.js

speed: install ## pages, API and command over 1,000,000 deliveries in PostgreSQL, an hour (ARGS="--rounds 10")
	tests/install-servers.sh
	.venv/bin/python -m tests.page_speed $(ARGS)

release-check: chart ## build what a release has, and check it and the workflows (needs Go)
	rm -rf build/dist build/release
	$(PYTHON) -m venv build/release
	build/release/bin/python -m pip --disable-pip-version-check --quiet install build twine
	build/release/bin/python -m build --quiet --outdir build/dist .
	build/release/bin/twine check --strict build/dist/*
	GOBIN="$(CURDIR)/build/release/bin" go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.7
	build/release/bin/actionlint
	PIP_NO_INDEX=1 PIP_FIND_LINKS=build/dist build/release/bin/python -m pip \
	  --disable-pip-version-check --quiet install --no-deps celery-gateway
	cd build && release/bin/python -c 'import gateway; print("celery-gateway", gateway.__version__)'

chart: install build/chart/helm ## check the Helm chart for each Kubernetes and operator (needs Go 1.23)
	.venv/bin/python -m pytest -n 0 tests/chart $(ARGS)

build/chart/helm:
	mkdir -p build/chart
	GOBIN="$(CURDIR)/build/chart" go install helm.sh/helm/v3/cmd/helm@v3.17.3

documents: install ## write into the documents what is made from the code and the committed reports
	.venv/bin/python -m tests.documents

docs: install ## make a site of the documents in build/site, which needs no other server
	.venv/bin/mkdocs build --quiet --strict

faults: install ## break the servers under load, half an hour (ARGS="--rows 1,3 --resume", ARGS=--random)
	tests/install-servers.sh
	.venv/bin/python -m tests.faults $(ARGS)

simulate: install ## run the gateway in virtual time (ARGS="--seeds 1-200", --minutes N, --trace SEED)
	.venv/bin/python -m tests.simulation $(ARGS)

upgrade: install ## upgrade from an earlier commit and back under load (needs the history of git)
	tests/install-servers.sh
	.venv/bin/python -m pytest -n 0 tests/upgrade $(ARGS)

nightly: install ## simulator, upgrade, random faults and fuzz: two hours, or MINUTES=10 of the first and last
	$(MAKE) simulate ARGS="--minutes $(MINUTES)"
	$(MAKE) upgrade
	$(MAKE) faults ARGS=--random
	$(MAKE) fuzz

alerts: install ## does each alert fire in its fault only? a quarter of an hour (ARGS="--rows 1,3-5")
	tests/install-servers.sh
	.venv/bin/python -m tests.alerts $(ARGS)

celery-suite: install ## run Celery's own integration tests, for hours (ARGS="--times 1 --only tasks")
	tests/install-servers.sh
	.venv/bin/python -m tests.celery_suite $(ARGS)

constraints: .venv/bin/python ## write constraints.txt again, with the newest versions
	rm -rf build/constraints
	.venv/bin/python -m venv build/constraints
	build/constraints/bin/python -m pip --disable-pip-version-check --quiet install uv
	$(COMPILE) --upgrade $(EXTRAS:%=--extra %) --output-file constraints.txt
	$(COMPILE) $(IMAGE) --constraint constraints.txt --output-file constraints-image.txt
	$(COMPILE) $(RUN) --constraint constraints.txt --output-file constraints-run.txt
	rm -rf build/constraints

clean: ## remove everything that make has made, .venv included
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'Python 3.11 or newer is needed; name one with: make PYTHON=/path/to/python3' >&2; exit 1; }
	$(PYTHON) -m venv .venv

# Each of the two completes what the other one left.
.venv/installed: .venv/bin/python setup.cfg constraints.txt
	$(call fetch,constraints.txt)
	@touch .venv/run $@

.venv/run: .venv/bin/python setup.cfg constraints-run.txt
	$(call fetch,constraints-run.txt)
	@# It has built the project, and nothing that runs needs it.
	@test -e .venv/installed || $(PIP) --quiet uninstall --yes setuptools
	@touch $@
