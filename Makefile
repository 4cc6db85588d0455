# Entry points for developers and CI. Every target installs missing Debian packages; Rust and Go must be installed.
# CAUSEWAY_… variables are passed to `causeway serve`; ARGS adds flags to it, FILTER selects tests by name.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

export CARGO_TARGET_DIR ?= target
# One profile and one selection for everything: Cargo unifies the features of the selected packages, and another
# selection would rebuild RocksDB and libp2p.
PROFILE := --release --locked --workspace
# Variables of the tools and tests, which a node would reject as unknown settings.
NOT_SETTINGS := -u CAUSEWAY_TOOLS -u CAUSEWAY_CRASH_ROUNDS -u CAUSEWAY_FAULTS_SEED -u CAUSEWAY_SOAK_SECONDS -u CAUSEWAY_CONSOLE_SECONDS \
    -u CAUSEWAY_CONSOLE_SOURCES -u CAUSEWAY_CONSOLE_FLOWS

.PHONY: help run build build-all install image deb sbom test test-api test-browser test-console test-compliance test-conformance test-http2 test-tls test-rpc test-monitoring test-helm test-deb test-long lint docs bench bench-tiers bench-stores bench-compression \
    bench-network bench-transfer bench-site bench-trace bench-policies kubo pebble otelcol versitygw deny

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-17s %s\n", $$1, $$2 }'

run: build ## Build and start a gateway, which prints the URL of its welcome page
	@exec env $(NOT_SETTINGS) "$(CARGO_TARGET_DIR)/release/causeway" serve $(ARGS)

# With the features of the whole workspace, so that "make test" does not rebuild RocksDB and libp2p, but without linking
# the load tests.
build: ## Build the binary
	@scripts/install-missing build
	cargo build $(PROFILE) --bin causeway

build-all:
	@scripts/install-missing build
	cargo build $(PROFILE) --bins

install: PREFIX ?= /usr/local
install: ## Install the built binary, manual pages and completions below PREFIX (/usr/local), with DESTDIR as prefix
	install -D --strip "$(CARGO_TARGET_DIR)/release/causeway" "$(DESTDIR)$(PREFIX)/bin/causeway"
	install -d "$(DESTDIR)$(PREFIX)/bin/.debug"
	objcopy --only-keep-debug --compress-debug-sections=zlib "$(CARGO_TARGET_DIR)/release/causeway" \
	    "$(DESTDIR)$(PREFIX)/bin/.debug/causeway.debug"
	objcopy --add-gnu-debuglink="$(DESTDIR)$(PREFIX)/bin/.debug/causeway.debug" "$(DESTDIR)$(PREFIX)/bin/causeway"
	"$(CARGO_TARGET_DIR)/release/causeway" man "$(DESTDIR)$(PREFIX)/share/man/man1"
	install -d "$(DESTDIR)$(PREFIX)/share/bash-completion/completions" "$(DESTDIR)$(PREFIX)/share/zsh/site-functions" \
	    "$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d"
	"$(CARGO_TARGET_DIR)/release/causeway" completions bash > "$(DESTDIR)$(PREFIX)/share/bash-completion/completions/causeway"
	"$(CARGO_TARGET_DIR)/release/causeway" completions zsh > "$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_causeway"
	"$(CARGO_TARGET_DIR)/release/causeway" completions fish > "$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/causeway.fish"

image: ## Build the container image
	docker build --tag causeway .

deb: build ## Build a Debian package of the binary in the target directory
	scripts/deb "$(CARGO_TARGET_DIR)/release/causeway" "$(CARGO_TARGET_DIR)"

sbom: ## Print the software bill of materials of the binary (CycloneDX)
	@scripts/sbom

# "cargo test" puts the binary where "cargo build" does. A separate build would recompile much of it, because the tests'
# dependencies enable more features of shared crates.
test: lint kubo pebble otelcol versitygw ## Check style, then run all tests, including those with a real Kubo and in a browser
	cargo test $(PROFILE) --no-run
	scripts/all-tests "$(CARGO_TARGET_DIR)/release/causeway" "$(FILTER)" cargo test $(PROFILE) --no-fail-fast $(FILTER)

test-monitoring: build ## Test alert rules, recording rules and dashboards with a real Prometheus
	scripts/monitoring-tests "$(CARGO_TARGET_DIR)/release/causeway"

test-helm: ## Lint the Helm chart, and check what it renders against the schemas of Kubernetes
	@scripts/install-missing api
	scripts/helm-tests

test-deb: build ## Install, upgrade and purge the Debian package in a new Debian (needs root and debootstrap)
	scripts/deb-tests "$(CARGO_TARGET_DIR)/release/causeway"

test-api: build ## Test the admin API against its description, deterministically, or with random requests for ARGS seconds
	scripts/api-tests "$(CARGO_TARGET_DIR)/release/causeway" $(ARGS)

test-http2: build ## Test HTTP/2 with h2spec; ARGS selects sections, such as http2/6.5
	scripts/http2-tests "$(CARGO_TARGET_DIR)/release/causeway" $(ARGS)

test-tls: build ## Test what TLS negotiates and refuses, with openssl and curl; FILTER selects checks
	scripts/tls-tests "$(CARGO_TARGET_DIR)/release/causeway" "$(FILTER)"

test-conformance: kubo ## Run the official gateway conformance suite over HTTP/1.1, TLS, HTTP/2, and through nginx
	@scripts/install-missing test
	cargo test $(PROFILE) --test conformance -- --ignored --nocapture official

test-compliance: build ## Run the official compliance tests of the Pinning Service API
	scripts/compliance-tests "$(CARGO_TARGET_DIR)/release/causeway"

test-rpc: build ## Test the admin listener with clients from npm: of Kubo's RPC, of tus and of the Pinning Service API
	scripts/rpc-tests "$(CARGO_TARGET_DIR)/release/causeway" "$(FILTER)"

test-browser: build ## Run the tests in a browser and with a verifying client
	scripts/browser-tests "$(CARGO_TARGET_DIR)/release/causeway" "$(FILTER)"

test-console: build ## Test the console in a browser; ARGS=--pictures renews the pictures of the documentation
	scripts/console-tests $(ARGS) "$(CARGO_TARGET_DIR)/release/causeway" "$(FILTER)"

test-long: export PROPTEST_CASES ?= 20000
test-long: export CAUSEWAY_CRASH_ROUNDS ?= 200
test-long: export CAUSEWAY_SOAK_SECONDS ?= 1200
test-long: export CAUSEWAY_CONSOLE_SECONDS ?= 3600
test-long: export CAUSEWAY_CONSOLE_FLOWS ?= all
test-long: FUZZ_SECONDS ?= 600
test-long: lint kubo pebble otelcol versitygw ## Run all tests with more crash rounds and inputs, a soak test, and fuzzing; takes three to four hours
	cargo test $(PROFILE) --no-fail-fast $(FILTER) -- --include-ignored
	scripts/acceptance-tests "$(CARGO_TARGET_DIR)/release/causeway" "$(FILTER)"
	scripts/api-tests "$(CARGO_TARGET_DIR)/release/causeway" $(FUZZ_SECONDS)
	scripts/helm-tests
	scripts/fuzz $(FUZZ_SECONDS)

lint: ## Check formatting, and run clippy
	@scripts/install-missing test
	cargo fmt --all --check
	cargo clippy $(PROFILE) --all-targets -- -D warnings

docs: ## Build the documentation as a book with checked links, and the crates' documentation
	@scripts/install-missing build
	scripts/book
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links -A rustdoc::bare_urls" cargo doc $(PROFILE) --no-deps

bench: ## Compare cold fetches with Kubo on this machine, without added latency; writes load-tests/results
	@scripts/install-missing bench
	cargo build $(PROFILE) --bins
	"$(CARGO_TARGET_DIR)/release/causeway-load-tests" network --name network-loopback --rows loopback,loopback-quic \
	    --causeway "$(CARGO_TARGET_DIR)/release/causeway" --kubo "$$(scripts/kubo)" $(ARGS)

bench-tiers: ## Measure serving from memory and disk, compared with nginx and Kubo; writes load-tests/results
	@scripts/install-missing bench
	cargo build $(PROFILE) --bins
	"$(CARGO_TARGET_DIR)/release/causeway-load-tests" tiers \
	    --causeway "$(CARGO_TARGET_DIR)/release/causeway" --kubo "$$(scripts/kubo)" $(ARGS)

bench-stores: build-all kubo ## Measure datastores, compared with Kubo's; writes load-tests/results
	"$(CARGO_TARGET_DIR)/release/causeway-load-tests" stores \
	    --causeway "$(CARGO_TARGET_DIR)/release/causeway" --kubo "$$(scripts/kubo)" $(ARGS)

bench-compression: build-all ## Measure what compression saves on the disk and on the network; writes load-tests/results
	"$(CARGO_TARGET_DIR)/release/causeway-load-tests" compression --causeway "$(CARGO_TARGET_DIR)/release/causeway" $(ARGS)

bench-network: ## Measure misses over a high-latency link, compared with Kubo and plain HTTP; writes load-tests/results
	@scripts/install-missing bench
	@scripts/install-missing browser
	cargo build $(PROFILE) --bins
	"$(CARGO_TARGET_DIR)/release/causeway-load-tests" network \
	    --causeway "$(CARGO_TARGET_DIR)/release/causeway" --kubo "$$(scripts/kubo)" \
	    --chromium "$$(command -v chromium)" --browser-modules "$$(scripts/browser-packages)" $(ARGS)

bench-transfer: ## Measure transfers between Causeways, as blocks are stored; ARGS="--quick" shows that the rows work; writes load-tests/results
	@scripts/install-missing bench
	@scripts/install-missing browser
	cargo build $(PROFILE) --bins
	"$(CARGO_TARGET_DIR)/release/causeway-load-tests" transfer \
	    --causeway "$(CARGO_TARGET_DIR)/release/causeway" --kubo "$$(scripts/kubo)" --data "$$(scripts/benchmark-data)" \
	    --chromium "$$(command -v chromium)" --browser-modules "$$(scripts/browser-packages)" $(ARGS)

bench-site: ## Measure several gateways as one site, compared with Kubo, one gateway and plain HTTP; ARGS="--quick" shows that the rows work; writes load-tests/results
	@scripts/install-missing bench
	cargo build $(PROFILE) --bins
	"$(CARGO_TARGET_DIR)/release/causeway-load-tests" site \
	    --causeway "$(CARGO_TARGET_DIR)/release/causeway" --kubo "$$(scripts/kubo)" $(ARGS)

bench-trace: build-all ## Replay a synthetic trace of a public gateway's day; writes load-tests/results
	"$(CARGO_TARGET_DIR)/release/causeway-load-tests" trace --causeway "$(CARGO_TARGET_DIR)/release/causeway" $(ARGS)

bench-policies: build-all ## Compare the memory tier's hit ratios by eviction policy on that trace; writes load-tests/results
	"$(CARGO_TARGET_DIR)/release/causeway-load-tests" policies $(ARGS)

kubo: ## Build Kubo, the real peer of tests and benchmarks, unless it is already built
	@scripts/kubo

pebble: ## Build Pebble, the ACME server of tests, unless it is already built
	@scripts/pebble

otelcol: ## Build the OpenTelemetry Collector of tests, unless it is already built
	@scripts/otelcol

versitygw: ## Build versitygw, the S3 server of tests, unless it is already built
	@scripts/versitygw

deny: ## Check licences, sources and known vulnerabilities of dependencies (needs cargo-deny and network access)
	cargo deny --locked --all-features check
