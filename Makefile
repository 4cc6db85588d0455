# What people and CI call. Every target installs what it needs and is missing (Debian packages; Rust and Go are expected).
# CAUSEWAY_… variables reach `causeway serve`; ARGS adds flags to it, FILTER picks tests by name.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

export CARGO_TARGET_DIR ?= target
# One profile and one selection for everything: Cargo unites the features of what is selected, and another selection
# would build RocksDB and libp2p once more.
PROFILE := --release --locked --workspace
# Variables of the tools and tests, which are no settings of a node: it would refuse to start with them.
NOT_SETTINGS := -u CAUSEWAY_TOOLS -u CAUSEWAY_CRASH_ROUNDS -u CAUSEWAY_SOAK_SECONDS

.PHONY: help run build build-all install test test-api test-browser test-compliance test-rpc test-long lint docs bench bench-tiers bench-stores bench-compression \
    bench-network bench-trace bench-policies kubo deny

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-17s %s\n", $$1, $$2 }'

run: build ## Build and start a gateway, which prints the address of its welcome page
	@exec env $(NOT_SETTINGS) "$(CARGO_TARGET_DIR)/release/causeway" serve $(ARGS)

# With the features of the whole workspace, so that "make test" does not build RocksDB and libp2p once more, but without linking the
# load tests.
build: ## Build the binary
	@scripts/install-missing build
	cargo build $(PROFILE) --bin causeway

build-all:
	@scripts/install-missing build
	cargo build $(PROFILE) --bins

install: PREFIX ?= /usr/local
install: ## Install what was built, its manual pages and completions below PREFIX (/usr/local); DESTDIR goes before it
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

# "cargo test" leaves the binary where "cargo build" does. Another build would compile much of it once more, because the tests'
# own dependencies ask for more features of what they share with it.
test: lint kubo ## Check style, then run every test, those against a real Kubo and in a browser included
	cargo test $(PROFILE) --no-fail-fast $(FILTER)
	scripts/browser-tests "$(CARGO_TARGET_DIR)/release/causeway" "$(FILTER)"
	scripts/compliance-tests "$(CARGO_TARGET_DIR)/release/causeway"
	scripts/rpc-tests "$(CARGO_TARGET_DIR)/release/causeway" "$(FILTER)"
	scripts/api-tests "$(CARGO_TARGET_DIR)/release/causeway"

test-api: build ## Send the admin API what its description allows, and what not: the same each time, or others for ARGS seconds
	scripts/api-tests "$(CARGO_TARGET_DIR)/release/causeway" $(ARGS)

test-compliance: build ## Have the official tool test the Pinning Service API
	scripts/compliance-tests "$(CARGO_TARGET_DIR)/release/causeway"

test-rpc: build ## Have clients from npm drive the admin listener: of Kubo's RPC, of tus and of the Pinning Service API
	scripts/rpc-tests "$(CARGO_TARGET_DIR)/release/causeway" "$(FILTER)"

test-browser: build ## Run the tests in a browser and with a client that verifies
	scripts/browser-tests "$(CARGO_TARGET_DIR)/release/causeway" "$(FILTER)"

test-long: export PROPTEST_CASES ?= 20000
test-long: export CAUSEWAY_CRASH_ROUNDS ?= 200
test-long: export CAUSEWAY_SOAK_SECONDS ?= 1200
test-long: FUZZ_SECONDS ?= 600
test-long: lint kubo ## The same with many more crash rounds and random inputs, a soak, and fuzzing; takes two to three hours
	cargo test $(PROFILE) --no-fail-fast $(FILTER) -- --include-ignored
	scripts/browser-tests "$(CARGO_TARGET_DIR)/release/causeway" "$(FILTER)"
	scripts/compliance-tests "$(CARGO_TARGET_DIR)/release/causeway"
	scripts/rpc-tests "$(CARGO_TARGET_DIR)/release/causeway" "$(FILTER)"
	scripts/api-tests "$(CARGO_TARGET_DIR)/release/causeway"
	scripts/api-tests "$(CARGO_TARGET_DIR)/release/causeway" $(FUZZ_SECONDS)
	scripts/fuzz $(FUZZ_SECONDS)

lint: ## Check formatting, and let clippy warn of nothing
	@scripts/install-missing test
	cargo fmt --all --check
	cargo clippy $(PROFILE) --all-targets -- -D warnings

docs: ## Build the documentation as a book, with every link checked, and the crates' documentation
	@scripts/install-missing build
	scripts/book
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links -A rustdoc::bare_urls" cargo doc $(PROFILE) --no-deps

bench: ## Compare cold fetches with Kubo's on this machine, without a link; results go to load-tests/results
	@scripts/install-missing bench
	cargo build $(PROFILE) --bins
	"$(CARGO_TARGET_DIR)/release/causeway-load-tests" network --name network-loopback --rows loopback,loopback-quic \
	    --causeway "$(CARGO_TARGET_DIR)/release/causeway" --kubo "$$(scripts/kubo)" $(ARGS)

bench-tiers: ## Measure content in memory and on disk, beside nginx and Kubo; results go to load-tests/results
	@scripts/install-missing bench
	cargo build $(PROFILE) --bins
	"$(CARGO_TARGET_DIR)/release/causeway-load-tests" tiers \
	    --causeway "$(CARGO_TARGET_DIR)/release/causeway" --kubo "$$(scripts/kubo)" $(ARGS)

bench-stores: build-all kubo ## Measure datastores, Causeway's beside Kubo's; results go to load-tests/results
	"$(CARGO_TARGET_DIR)/release/causeway-load-tests" stores \
	    --causeway "$(CARGO_TARGET_DIR)/release/causeway" --kubo "$$(scripts/kubo)" $(ARGS)

bench-compression: build-all ## Measure what compression saves, on disk and in transfer; results go to load-tests/results
	"$(CARGO_TARGET_DIR)/release/causeway-load-tests" compression --causeway "$(CARGO_TARGET_DIR)/release/causeway" $(ARGS)

bench-network: ## Measure cache misses over a long link, beside Kubo and plain HTTP; results go to load-tests/results
	@scripts/install-missing bench
	@scripts/install-missing browser
	cargo build $(PROFILE) --bins
	"$(CARGO_TARGET_DIR)/release/causeway-load-tests" network \
	    --causeway "$(CARGO_TARGET_DIR)/release/causeway" --kubo "$$(scripts/kubo)" \
	    --chromium "$$(command -v chromium)" --browser-modules "$$(scripts/browser-packages)" $(ARGS)

bench-trace: build-all ## Replay a trace shaped like a public gateway's day; results go to load-tests/results
	"$(CARGO_TARGET_DIR)/release/causeway-load-tests" trace --causeway "$(CARGO_TARGET_DIR)/release/causeway" $(ARGS)

bench-policies: build-all ## Simulate the memory tier's hit rate on that day by each policy; results go to load-tests/results
	"$(CARGO_TARGET_DIR)/release/causeway-load-tests" policies $(ARGS)

kubo: ## Build Kubo, the real peer of tests and benchmarks, unless it is there
	@scripts/kubo

deny: ## Check licences, sources and known vulnerabilities of dependencies (needs cargo-deny and a network)
	cargo deny --locked --all-features check
