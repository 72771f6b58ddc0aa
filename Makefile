# shoal: everything from a fresh clone, with Python >= 3.11 and GNU make >= 3.81.
#
#   make up      set up .venv, start a node with the bundled tiny model, show a streamed answer
#   make test    the tests (the README's test command); AGAIN=--again runs failed ones once more
#   make test-fast  format, lint, the unit tests of the quickest rooms, one node
#   make lint    format, lint, types, generated pages, English
#   make check   lint, and the fast tests with the laws of the house and the import contracts
#   make house   sizes of rooms, docs, names and lists of exceptions, before and now
#   make pictures  the page's pictures in docs/pictures/, of three nodes at work
#   make bench   one table against raw mlx-lm and mlx_lm.server
#   make prove   the promises at full size (hours; see docs/operations/proving.md)
#   make down    stop the node
#   make wheel   the wheel and its tested versions, in dist/

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PACKAGES := bus master worker runner gateway telemetry conf
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python
PYTEST := $(BIN)/python -m pytest
QUESTION := What is shoal?
SIDE_BY_SIDE := --numprocesses logical --dist worksteal
# compiled modules are kept: each of a node's processes would compile all of its own again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: up down wheel test test-fast lint lint-types lint-style lint-pages lint-prose check house fmt bench prove prove-faults prove-bench prove-soak prove-clients prove-table docs pictures lock clean

$(READY): pyproject.toml requirements.lock
	@test -n "$(PYTHON)" || { echo "shoal needs Python 3.11 or newer; none found on PATH (set PYTHON=...)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.lock > $(VENV)/uv.lock
	@$(PIP) --require-hashes -r $(VENV)/uv.lock || echo "uv cannot be installed; pip does its work, slower"
	$(UV) --require-hashes -r requirements.lock || $(PIP) --require-hashes -r requirements.lock
	$(UV) --no-deps --no-build-isolation -e . || $(PIP) --no-deps --no-build-isolation -e .
	@touch $(READY)

up: $(READY)
	@! command -v nvidia-smi >/dev/null 2>&1 || $(BIN)/shoal doctor --fix -q || true  # MLX for the GPU
	@$(BIN)/shoal up
	@echo '>>> $(QUESTION)'
	@$(BIN)/shoal run shoal-tiny "$(QUESTION)" --temperature 0 -v </dev/null

down: $(READY)
	@$(BIN)/shoal down

# without $(READY): whoever installs the wheel needs no environment here
wheel:
	@rm -rf build dist/shoal_llm-*.whl
	@{ command -v uv >/dev/null && uv build --quiet --wheel --out-dir dist .; } \
		|| $(PYTHON) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	@rm -rf build
	@sed -n '/^[a-z]/s/ *\\$$//p' requirements.lock > dist/constraints.txt
	@ls dist/shoal_llm-*.whl dist/constraints.txt

test: $(READY)
	@$(BIN)/python -m tests.harness.parts $(AGAIN)

test-fast: $(READY) lint-style
	@$(BIN)/python -m tests.harness.parts --fast

lint: lint-style lint-types lint-pages lint-prose

lint-types: $(READY)
	$(BIN)/pyright

lint-style: $(READY)
	$(BIN)/ruff format --check $(PACKAGES) tests
	$(BIN)/ruff check $(PACKAGES) tests

lint-pages: $(READY)
	$(BIN)/python -m tests.harness.pages --check

lint-prose: $(READY)
	$(BIN)/python -m tests.house.prose

check: lint
	$(PYTEST) tests -m "not slow and not nodes and not proof" $(SIDE_BY_SIDE)

house: $(READY)
	@$(BIN)/python -m tests.house.measure --against tests/house/before.json

fmt: $(READY)
	$(BIN)/ruff format $(PACKAGES) tests
	$(BIN)/ruff check --fix $(PACKAGES) tests

docs: $(READY)
	$(BIN)/python -m tests.harness.pages

pictures: $(READY)
	$(BIN)/python -m tests.browser.pictures

lock:
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --extra dev --no-annotate --no-header \
		--python-version 3.11 pyproject.toml -o requirements.lock
	for wanted in tests/clients/environments/*.in; do \
		$(BIN)/uv pip compile --quiet --universal --no-annotate --no-header --python-version 3.11 \
			$$wanted -o $${wanted%.in}.txt || exit 1; done

clean:
	rm -rf $(VENV) build dist *.egg-info bench-results prove-results .pytest_cache .ruff_cache

# --- the promises at full size; each part can be run alone and takes under 45 minutes --------

PROVE := SHOAL_PROVE=1 $(PYTEST) --timeout 2400 -s

bench: $(READY)
	$(BIN)/python -m tests.bench.serve

prove: prove-installs prove-properties prove-sim prove-mutants prove-pool prove-clients prove-fuzz prove-nodes prove-faults prove-resume prove-cluster prove-records prove-secrets prove-parity prove-speculation prove-kv prove-selftest prove-folders prove-soak prove-latency prove-bench bench-cluster prove-table prove-figures

.PHONY: prove-resume prove-installs prove-properties prove-sim prove-mutants prove-pool prove-fuzz prove-nodes prove-cluster prove-records prove-secrets prove-parity prove-speculation prove-kv prove-selftest prove-folders prove-latency prove-figures bench-cluster bench-pool bench-kv-disk bench-kv-moves bench-phase-split

# uv, pipx and pip from PyPI, into empty caches: some 400 MB
prove-installs: $(READY)
	$(PROVE) tests/processes/test_installs.py

prove-properties: $(READY)
	$(PROVE) tests --ignore=tests/processes --ignore=tests/clients --ignore=tests/sim \
		--ignore-glob='tests/runner/test_group*'

prove-sim: $(READY)
	$(PROVE) tests/sim $(SIDE_BY_SIDE) --ignore-glob='tests/sim/test_pool*'

prove-mutants: $(READY)
	$(BIN)/python -m tests.harness.mutants --planted
	$(BIN)/python -m tests.harness.mutants --seed 35 --count 60 --least 48

prove-pool: $(READY)
	$(PROVE) tests/sim/test_pool.py tests/sim/test_pool_oracle.py $(SIDE_BY_SIDE)
	$(PROVE) tests/sim/test_pool_mutants.py
	$(PROVE) tests/processes/test_pool_mixed_load.py tests/processes/test_refused_loads.py \
		tests/processes/test_failures_remembered.py tests/processes/test_pool.py \
		tests/processes/test_pool_rules.py

prove-clients: $(READY)
	rm -f prove-results/clients.jsonl
	$(PROVE) tests/clients

prove-fuzz: $(READY)
	$(PROVE) tests/processes/test_fuzz.py tests/processes/test_edge.py \
		tests/processes/test_templates.py tests/processes/test_fair_rows.py tests/processes/test_ports.py

# files of nodes that another target runs whole
ELSEWHERE := churn cluster counts edge failures_remembered fair_rows faults folders fuzz gguf_folders installs \
	llama_faults mixed_clusters partition pool_mixed_load pool_rules ports record_kills refused_loads resumes secrets selftest soak templates two_nodes

prove-nodes: $(READY)
	$(PROVE) tests/processes $(ELSEWHERE:%=--ignore=tests/processes/test_%.py) -m "proof and nodes"
	$(PROVE) tests/runner/test_group_adapters.py tests/runner/test_group_budgets.py \
		tests/runner/test_group_scores.py tests/runner/test_group_spans.py

prove-faults: $(READY)
	rm -f prove-results/faults.jsonl
	$(PROVE) tests/processes/test_faults.py tests/processes/test_halted_node.py \
		tests/processes/test_llama_faults.py

prove-resume: $(READY)
	rm -f prove-results/resume.jsonl
	$(PROVE) tests/processes/test_resumes.py tests/processes/test_reattached_streams.py

prove-cluster: $(READY)
	rm -f prove-results/cluster.jsonl
	$(PROVE) tests/processes/test_cluster.py tests/processes/test_two_nodes.py \
		tests/processes/test_partition.py tests/processes/test_churn.py tests/processes/test_counts.py \
		tests/processes/test_mixed_clusters.py tests/runner/test_groups.py; \
	said=$$?; $(BIN)/python -m tests.harness.prove_table cluster; exit $$said

prove-records: $(READY)
	rm -f prove-results/records.jsonl
	$(PROVE) tests/processes/test_record_kills.py; \
	said=$$?; $(BIN)/python -m tests.harness.prove_table records; exit $$said

prove-secrets: $(READY)
	$(PROVE) tests/processes/test_secrets.py tests/test_secret_search.py

prove-parity: $(READY)
	rm -f prove-results/parity.jsonl
	$(PROVE) tests/runner/test_group_parity*.py

prove-speculation: $(READY)
	$(PROVE) tests/runner/mlx/test_speculation_cells.py tests/runner/mlx/test_taken_back.py \
		tests/runner/mlx/test_blocks.py \
		tests/processes/test_remote_proposers.py

bench-pool: $(READY)
	$(BIN)/python -m tests.bench.pool --json bench-results/pool.json

prove-kv: $(READY)
	rm -f prove-results/kv.jsonl
	$(PROVE) tests/runner/mlx/test_kv_widths.py tests/runner/mlx/test_kv_windows.py tests/runner/test_group_kv.py; \
	said=$$?; $(BIN)/python -m tests.harness.prove_table kv; exit $$said

bench-kv-disk: $(READY)
	$(BIN)/python -m tests.bench.kv_disk

bench-kv-moves: $(READY)
	$(BIN)/python -m tests.bench.kv_moves

bench-phase-split: $(READY)
	$(BIN)/python -m tests.bench.phase_split

prove-selftest: $(READY)
	$(PROVE) tests/processes/test_selftest.py

prove-folders: $(READY)
	rm -f prove-results/folders.jsonl
	$(PROVE) tests/processes/test_folders.py tests/processes/test_gguf_folders.py; \
	said=$$?; $(BIN)/python -m tests.harness.prove_table folders; exit $$said

bench-cluster: $(READY)
	$(BIN)/python -m tests.bench.cluster
	$(BIN)/python -m tests.bench.placement

prove-soak: $(READY)
	$(PROVE) tests/processes/test_soak.py tests/processes/test_drafted_day.py

prove-latency: $(READY)
	$(BIN)/python -m tests.bench.latency
	$(BIN)/python -m tests.bench.mirror
	$(BIN)/python -m tests.bench.planes
	$(BIN)/python -m tests.bench.gateway_flat_out --json bench-results/gateway.json
	$(BIN)/python -m tests.bench.dialects_flat_out --json bench-results/dialects.json
	$(BIN)/python -m tests.bench.request_log --json bench-results/request-log.json
	$(BIN)/python -m tests.bench.records --json bench-results/records.json
	$(BIN)/python -m tests.bench.kept_answers --json bench-results/kept-answers.json
	$(BIN)/python -m tests.bench.overheads --json bench-results/overheads.json

prove-bench: bench

prove-table: $(READY)
	@$(BIN)/python -m tests.harness.prove_table

prove-figures: $(READY)
	$(BIN)/python -m tests.harness.figures_page
