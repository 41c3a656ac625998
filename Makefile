# `make help` lists the targets. Everything runs in .venv, which the first target that needs it makes from the
# lock files: every package in it is checked against a hash.

# The first of these that is Python 3.11 or later; or name one: make test PYTHON=/path/to/python3.12
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
LOCKS := requirements/build.lock requirements/dev.lock
# Python compiles a module when it is first imported; of most packages here, that is a small part.
PIP_INSTALL := $(PY) -m pip install --quiet --quiet --disable-pip-version-check --no-compile
# Where it is set, every process of a test would compile all that it imports: 1 to 2 s of processor for each of hundreds.
unexport PYTHONDONTWRITEBYTECODE

# What runs hooks, compiled (docs/adr/0058): benchmarks run as an installation from a compiled wheel does.
COMPILED := build/compiled
BENCH := PYTHONSAFEPATH=1 PYTHONPATH="$(CURDIR)/$(COMPILED):$(CURDIR)" $(PY)

# Only folders with Python in them: mypy calls an empty one an error.
TYPED := $(foreach d,millwheel storage injectors examples tests benchmarks,$(if $(shell find $(d) -name '*.py' -print -quit 2>/dev/null),$(d)))

.DEFAULT_GOAL := help
.PHONY: help venv test collect lint format types wheel-test zeitgeist queries reachability nexmark nexmark-figures bench compiled proto mutants reliability chaos chaos-zeitgeist chaos-loops chaos-partition chaos-spark iteration-grid lock clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

venv: $(STAMP) ## make .venv from the lock files

$(STAMP): $(LOCKS) pyproject.toml
	@if [ -z "$(PYTHON)" ] || ! "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		echo "make: needs Python 3.11 or later$(if $(PYTHON), and $(PYTHON) is not); name one: make PYTHON=/path/to/python3.11" >&2; \
		exit 1; fi
	@rm -f $@
	test -x $(PY) || "$(PYTHON)" -m venv $(VENV)
	$(PIP_INSTALL) --require-hashes --no-deps -r requirements/build.lock
	$(PY) scripts/install.py requirements/dev.lock
	$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	$(PY) -m pip check --disable-pip-version-check
	@touch $@

# A file's tests share a Spark or a Postgres, so a file is what a worker takes.  Three workers on two processors: many tests wait for a
# lease, a JVM or a dead process.  Seeds take what they leave of every processor, by a low priority while $(BESIDE) is there.  What
# goes to pytest is mostly one test, or a debugger, which workers would hide.
SEEDS_LOG := build/seeds.log
BESIDE := build/beside
test: $(STAMP) ## every test, in three workers; with ARGS="-k name" and the like, which go to pytest, in one process
ifdef ARGS
	$(PY) -m pytest $(ARGS)
else
	@mkdir -p $(dir $(BESIDE)) && touch $(BESIDE)
	$(PY) -m pytest -m every_core tests/sim >$(SEEDS_LOG) 2>&1 & seeds=$$!; \
	$(PY) -m pytest -m "not every_core and not grid and not long" -n 3 --dist loadfile --no-loadscope-reorder; others=$$?; \
	rm -f $(BESIDE); wait $$seeds; seeds=$$?; cat $(SEEDS_LOG); exit $$((others ? others : seeds))
endif

# The first import of a test module rewrites its asserts, for 15 s of processor over all: three workers that begin together each do it.
collect: $(STAMP) ## find every test, and compile what tests import, once for all workers
	@found=$$($(PY) -m pytest --collect-only -q -m "not grid and not long" 2>&1) || { echo "$$found"; exit 1; }; echo "$$found" | tail -1

lint: $(STAMP) ## ruff, its formatter, and the layering contracts
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports

format: $(STAMP) ## let ruff rewrite what it can
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

types: $(STAMP) ## mypy, strict
	$(VENV)/bin/mypy $(TYPED)

wheel-test: $(STAMP) ## build the wheel, install it in an empty venv, run tests/wheel_smoke.py there
	$(PY) scripts/wheel_test.py

zeitgeist: $(STAMP) ## the paper's Zeitgeist; LOG=file (default: the carried slice), OUT=directory, FRESH=1
	$(PY) -m examples.zeitgeist $(if $(LOG),--log "$(LOG)") $(if $(OUT),--out "$(OUT)") $(if $(FRESH),--fresh)

queries: $(STAMP) ## the example queries; LOG=, OUT=, FRESH=1
	$(PY) -m examples.queries $(if $(LOG),--log "$(LOG)") $(if $(OUT),--out "$(OUT)") $(if $(FRESH),--fresh)

reachability: $(STAMP) ## pages reached over a loop against networkx, with kills: 100,000 links; ARGS="--links 10000"
	$(PY) -m examples.reachability $(or $(ARGS),--links 100000 --prefixes 200 --kills 5)

$(COMPILED)/.made: $(STAMP) pyproject.toml scripts/compiled.py scripts/compile_hook.py $(shell find millwheel storage injectors -name '*.py')
	$(PY) scripts/compiled.py $(COMPILED)
	@touch $@

compiled: $(COMPILED)/.made ## build/compiled: what a wheel holds whose modules for hooks are compiled; needs a C compiler

nexmark-figures: $(COMPILED)/.made ## all of `make nexmark`, and events/s a core beside Bytewax and Flink, into docs/nexmark.md
	$(PY) -m examples.nexmark
	$(BENCH) -m benchmarks nexmark
	$(BENCH) -m benchmarks.nexmark publish

nexmark: $(STAMP) ## Nexmark's queries against SQL, shuffled, late, doubled, cut, killed, and timed; ARGS="q5 q7 --events 20000"
	$(PY) -m examples.nexmark $(ARGS)

bench: $(COMPILED)/.made ## the benchmarks of streaming, or others: NAME=latency, NAME=iterations, NAME="streaming iterations"
	$(BENCH) -m benchmarks $(NAME)

proto: $(STAMP) ## generate millwheel/transport/proto from proto/; a test holds the two together
	$(PY) scripts/proto.py

mutants: $(STAMP) ## count the seeds from 0 on that each planted bug needs, for hours; ARGS=--resume goes on where a run was stopped
	$(PY) -m tests.mutants $(ARGS)

reliability: $(STAMP) ## simulator, crash points, planted bugs, new property examples; figures into docs/reliability.md
	$(PY) -m tests.sim.ci
	HYPOTHESIS_PROFILE=search $(PY) -m pytest -q tests/sim/test_crash_points.py tests/sim/test_hops_crash_points.py \
		tests/sim/test_epoch_points.py tests/sim/test_planned_changes.py
	HYPOTHESIS_PROFILE=search $(PY) -m pytest -q tests/property tests/unit tests/sim/test_watermark_steps.py \
		tests/sim/test_cuts.py tests/sim/test_loop_cuts.py tests/sim/test_cluster_cuts.py tests/sim/test_loop_cut_fleets.py \
		tests/sim/test_put_back.py tests/sim/test_percentile.py
	HYPOTHESIS_PROFILE=search $(PY) -m pytest -q tests/sim/test_hops.py tests/sim/test_hop_fleets.py tests/sim/test_clusters.py
	HYPOTHESIS_PROFILE=search $(PY) -m pytest -q -m "not every_core" tests/sim/test_simulator.py
	$(PY) -m pytest -q -m long
	MILLWHEEL_KILLS=8 $(PY) -m pytest -q tests/chaos/test_record_id_kills.py tests/chaos/test_push_kills.py
	$(PY) -m pytest -q tests/sim/test_mutants.py
	$(PY) -m tests.sim.report

chaos: $(STAMP) ## a cluster of real processes under kills, stops and cuts, and an exact ledger; ARGS="--minutes 10 --seed 3"
	$(PY) -m tests.chaos.cluster $(ARGS)

chaos-zeitgeist: $(STAMP) ## Zeitgeist on a cluster whose workers are killed, against the embedded run, byte for byte; ARGS="--kills 12"
	$(PY) -m tests.chaos.zeitgeist_cluster $(ARGS)

chaos-loops: $(STAMP) ## kills at random moments of a ledger with a loop under snapshots, embedded and with workers; ARGS="--kills 20"
	$(PY) -m tests.chaos.loop_kills $(ARGS)

chaos-partition: $(STAMP) ## two workers that a parted network keeps apart, in network namespaces; needs Linux
	$(PY) -m pytest -m grid tests/chaos/test_partition.py

chaos-spark: $(STAMP) ## a cluster on executors of Spark that are killed and stopped, and the exact ledger; ARGS="--minutes 10 --seed 3"
	$(PY) -m tests.chaos.spark $(ARGS)

iteration-grid: $(STAMP) ## iterations on Spark: every policy x algorithm x kill, then memory over 200 supersteps; ARGS="--policy head"
	$(PY) -m pytest -m grid tests/integration/test_iteration.py
	$(PY) -m tests.chaos.iteration_grid $(ARGS)
	$(PY) -m tests.chaos.iteration_grid --endurance $(ARGS)

# Not $(STAMP): it cannot be made when a dependency is new and not locked yet.
lock: ## regenerate the lock files from PyPI; ARGS="--upgrade" to move every version
	@test -x $(VENV)/bin/uv || $(MAKE) venv
	$(PY) scripts/lock.py $(ARGS)

clean: ## remove .venv and everything built
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
