# People and CI call the same targets. `make help` lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

# With this set, PyTorch would be compiled anew at each import.
unexport PYTHONDONTWRITEBYTECODE
# A clean build needs no incremental files, and nobody opens its programs in a debugger.
ifdef CI
export CARGO_INCREMENTAL := 0
export CARGO_PROFILE_DEV_DEBUG := false
LOCKED := --locked
endif
export PATH := $(PATH):$(HOME)/.cargo/bin
# uv takes the system's certificates, as pip and cargo do: behind a proxy there are no others.
export UV_SYSTEM_CERTS ?= 1

STEP := scripts/step.sh
PYTHON := .venv/bin/python
# Arguments for the program behind a target: make run ARGS="--rounds 2"
ARGS ?=
# full is the size of the paper, ci what runs in two minutes.
SCALE ?= full
FUZZ_FRAMES ?= 10000000
FUZZ_SEED ?= 1
RELEASE ?= newest
SECONDS ?= 3600
SEED ?= 1

# With 1 the core has the baselines: the ways of papers that experiments compare with. Tests cover them, releases lack them.
bench experiment lint test: export BASELINES ?= 1

.PHONY: help
help: ## this list
	@echo 'make TARGET [ARGS="..."], where TARGET is'
	@awk -F ':[^#]*## ' '/^[a-z-]+:[^#]*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## prepare everything: .venv, its packages, the compiled core (BASELINES=1: with the ways that experiments compare with)
	@$(STEP) "set-up" scripts/setup.sh

.PHONY: system
system: ## as root on Debian or Ubuntu: programs that some tests, the lab and brokers use
	@$(STEP) "programs of the system" scripts/system.sh

.PHONY: guest
guest: ## build the kernel for thalweg run --clock virtual, once; kept in the user's cache
	@$(STEP) "guest kernel" python/thalweg/lab/guest/build.sh

.PHONY: run
run: setup ## train a federated model on this machine: thalweg run $(ARGS)
	@.venv/bin/thalweg run $(ARGS)

.PHONY: test
test: system setup ## all tests: Rust, documents, Python; make test ARGS=tests/plan runs one folder (arguments of pytest)
	@$(PYTHON) scripts/run_tests.py $(ARGS)

.PHONY: lint
lint: setup lint-rust lint-python check ## all checks that run no tests

.PHONY: lint-rust
lint-rust: # rustfmt and clippy; warnings are errors
	@cargo fmt --version >/dev/null 2>&1 || { echo "error: rustfmt is not installed" >&2; \
	  echo "hint: rustup component add rustfmt" >&2; exit 1; }
	@cargo clippy --version >/dev/null 2>&1 || { echo "error: clippy is not installed" >&2; \
	  echo "hint: rustup component add clippy" >&2; exit 1; }
	@$(STEP) "rustfmt" cargo fmt --all --check
	@$(STEP) "rustfmt of fuzz" cargo fmt --manifest-path fuzz/Cargo.toml --check
ifndef RUSTC_WORKSPACE_WRAPPER # in CI each build runs clippy (scripts/rustc_clippy.sh)
	@$(STEP) "clippy" cargo clippy --workspace --all-targets --features thalweg-py/baselines $(LOCKED) -- -D warnings
	@$(STEP) "clippy without baselines" cargo clippy -p thalweg-py $(LOCKED) -- -D warnings
endif

# Examples are typed as little as a reader would.
PYTHON_FOLDERS = $(wildcard python tests scripts benches experiments examples)

.PHONY: lint-python
lint-python: # ruff, mypy, and the stub of the compiled module
	@$(STEP) "ruff" $(PYTHON) -m ruff check $(PYTHON_FOLDERS)
	@$(STEP) "ruff format" $(PYTHON) -m ruff format --check $(PYTHON_FOLDERS)
	@$(STEP) "mypy --strict" $(PYTHON) -m mypy $(patsubst python,python/thalweg,$(filter-out examples,$(PYTHON_FOLDERS)))
	@$(STEP) "stub of thalweg._core" env MYPYPATH=python $(PYTHON) -m mypy.stubtest thalweg._core --concise

.PHONY: check
check: # rules of this repository
	@$(STEP) "purity of the crates without IO" $(PYTHON) scripts/check_purity.py
	@$(STEP) "retired words" $(PYTHON) scripts/check_words.py
	@$(STEP) "licences" $(PYTHON) scripts/check_licences.py
	@$(STEP) "lock files" $(PYTHON) scripts/check_locks.py
	@$(STEP) "advisories" $(PYTHON) scripts/check_advisories.py

.PHONY: docs-check
docs-check: setup ## links, commands and plan keys in the documents
	@$(STEP) "documents" $(PYTHON) scripts/check_docs.py

.PHONY: bench
bench: setup ## the figures thalweg has to reach, beside their references
	@$(PYTHON) -m benches $(ARGS)

.PHONY: experiment
experiment: setup ## a paper's experiment again: make experiment NAME=fedcomm/fig08 SCALE=ci (without NAME: the list)
	@$(PYTHON) -m experiments $(if $(NAME),run $(NAME) --scale $(SCALE) $(ARGS),list)

.PHONY: fuzz
fuzz: ## ten million damaged frames against the decoders (FUZZ_FRAMES, FUZZ_SEED)
	@THALWEG_FUZZ_FRAMES=$(FUZZ_FRAMES) THALWEG_FUZZ_SEED=$(FUZZ_SEED) $(STEP) "$(FUZZ_FRAMES) damaged frames" \
	  cargo test $(LOCKED) --release -p thalweg-wire --test fuzz -- --nocapture
	@THALWEG_FUZZ_FRAMES=$(FUZZ_FRAMES) THALWEG_FUZZ_SEED=$(FUZZ_SEED) $(STEP) "as many messages, packets and datagrams" \
	  cargo test $(LOCKED) --release -p thalweg-layers -p thalweg-ltp -p thalweg-messages -p thalweg-mqtt -p thalweg-udp --lib fuzz
	@THALWEG_FUZZ_PACKETS=$(FUZZ_FRAMES) THALWEG_FUZZ_SEED=$(FUZZ_SEED) $(STEP) "as many packets at a TCP endpoint" \
	  cargo test $(LOCKED) --release -p thalweg-masking --test unifl hostile -- --nocapture

.PHONY: attack
attack: setup ## an hour of hostile peers against a job over each transport (SECONDS, SEED; ARGS="--transport tcp")
	@$(PYTHON) -m tests.hostile attack --seconds $(SECONDS) --seed $(SEED) $(ARGS)

.PHONY: soak
soak: setup ## three thousand rounds over each transport: memory at the end is where round 100 had it
	@$(PYTHON) -m tests.hostile soak $(ARGS)

.PHONY: flower
flower: setup ## tests of Flower apps with another release of Flower: make flower RELEASE=1.22.0 (newest, nightly; TESTS=DIR)
	@$(PYTHON) scripts/test_flower.py $(RELEASE) $(if $(TESTS),--tests $(TESTS))

.PHONY: test-extras
test-extras: setup ## tests that need the extras lm, ray and trackers, which .venv lacks; downloads some 200 MB
	@$(STEP) "tests of the extras lm, ray and trackers" $(PYTHON) scripts/test_extras.py

.PHONY: site
site: setup ## the documents as a site, in the folder site; its packages are downloaded at first (some 30 MB)
	@$(STEP) "site of the documents" $(PYTHON) scripts/docs_site.py

RESOLVE = $(PYTHON) -m uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-emit-index-url

.PHONY: lock
lock: setup ## resolve requirements/*.lock anew
	@UV_CUSTOM_COMPILE_COMMAND="make lock" $(STEP) "requirements/dev.lock" $(RESOLVE) --extra report --extra torch \
	  --extra data \
	  --override requirements/overrides.txt pyproject.toml requirements/dev.in -o requirements/dev.lock
	@UV_CUSTOM_COMPILE_COMMAND="make lock" $(STEP) "requirements/extras.lock" $(RESOLVE) --extra lm --extra ray \
	  --override requirements/overrides.txt --constraint requirements/dev.lock \
	  $$(sed -n 's/^\([a-z0-9._-]*\)==.*/--no-emit-package \1/p' requirements/dev.lock) \
	  pyproject.toml -o requirements/extras.lock
	@awk '/^[a-z]/ { left_out = /^pillow==/ } !left_out' requirements/dev.lock > requirements/.known
	@UV_CUSTOM_COMPILE_COMMAND="make lock" $(STEP) "requirements/trackers.lock" $(RESOLVE) --extra trackers \
	  --constraint requirements/.known \
	  $$(sed -n 's/^\([a-z0-9._-]*\)==.*/--no-emit-package \1/p' requirements/.known) \
	  pyproject.toml -o requirements/trackers.lock; rm -f requirements/.known
	@UV_CUSTOM_COMPILE_COMMAND="make lock" $(STEP) "requirements/wheel.lock" $(RESOLVE) \
	  requirements/wheel.in -o requirements/wheel.lock
	@UV_CUSTOM_COMPILE_COMMAND="make lock" $(STEP) "requirements/site.lock" $(RESOLVE) \
	  requirements/site.in -o requirements/site.lock

.PHONY: lock-systems
lock-systems: setup ## resolve requirements/systems/*.lock anew: the systems that the table compares with
	@for one in requirements/systems/*.in; do \
	  UV_CUSTOM_COMPILE_COMMAND="make lock-systems" $(PYTHON) -m uv pip compile --quiet --python-version 3.11 --generate-hashes \
	    --no-emit-index-url --override requirements/overrides.txt $$one -o $${one%.in}.lock; done

.PHONY: wheel
wheel: setup ## dist/: wheel and source for Linux, built, audited, tested with each extra (WHEEL_EXTRAS="report" for fewer); some GB
	@$(STEP) "wheel" scripts/wheel.sh

.PHONY: ebpf
ebpf: ## compile the eBPF programs of crates/ebpf anew; needs clang, which a build of the core does not
	@$(STEP) "eBPF programs" scripts/ebpf.sh

.PHONY: clean
clean: ## remove what the targets made; records of runs stay
	rm -rf .venv .site .systems site target fuzz/target .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
	find python tests scripts -name __pycache__ -prune -exec rm -rf {} +
	rm -f python/thalweg/_core*.so
