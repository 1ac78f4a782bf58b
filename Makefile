# `make help` lists the targets. Each one sets up what it needs: see scripts/setup.

SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# sfdisk and mkfs.ext4 live in sbin, which is not in every user's path.
export PATH := $(HOME)/.cargo/bin:$(PATH):/usr/sbin:/sbin
export RUST_BACKTRACE ?= 1

CARGO ?= cargo
# Seconds per fuzz target in `make fuzz`.
FUZZ_SECONDS ?= 30
# Cases per property in `make soak`; `make test` takes each property's own number.
SOAK_CASES ?= 100000

# Each test has a limit of its own (.config/nextest.toml); this one is for what hangs beside them. At a terminal the
# tests stay in its foreground, so that Ctrl-C reaches them.
TIMEOUT := timeout --kill-after=30s $(shell [ -t 0 ] && echo --foreground)

.PHONY: help setup demo test test-platforms bench bench-boot bench-swarm bench-harvest bench-containers bench-starts \
	bench-builds lint docs dist fuzz soak clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what building, testing and the demo need (root or sudo)
	@scripts/setup build disks servers clients demo lint

demo: ## boot a real Debian disk over a slow link: after a download, lazily, and faster from boot to boot
	@scripts/setup build disks demo
	@scripts/demo

# On two cores that have built nothing yet, some 25 minutes, half of them for the compiler. The limit is for what hangs,
# on a machine half as fast.
test: ## all tests
	@scripts/setup build tests disks servers clients demo
	@scripts/demo-disk || echo 'test: going on without the Debian disk: the tests that boot it are SKIPPED'
	@scripts/demo-image || echo 'test: going on without the demo image: the tutorial of containers is SKIPPED'
	$(TIMEOUT) 60m scripts/test

test-platforms: ## tests that take minutes each: emulated guests, containerd's own suite, containerd 2, nerdctl, BuildKit
	@scripts/setup build tests disks servers clients demo peers ublk
	@scripts/demo-disk
	@scripts/ublk-guest || echo 'test-platforms: going on without a kernel with ublk: its test is SKIPPED'
	PATH="$$PATH:/usr/local/go/bin" $(TIMEOUT) 60m scripts/test --run-ignored only -E 'binary(boot) | test(containerd_suite::)'
	HEADSTART_CONTAINERD="$(CURDIR)/target/peers/bin" $(TIMEOUT) 60m scripts/test \
		-E 'package(headstart) & binary(agent) & test(/^(container\w+|layer_directories|pods|pull_secrets|starts)::/)'

bench: ## measure, with the peer's figure beside ours
	@scripts/setup build disks servers clients
	@scripts/bench

bench-boot: ## boots over slow links, ours and others', into docs/benchmarks.md: hours, see BENCH=--help
	@scripts/setup build disks demo
	@$(CARGO) build --release --locked --quiet -p headstart --bin headstart -p headstart-testkit --bin headstart-shaper
	@$(CARGO) build --release --locked --quiet -p headstart-lab --bin headstart-lab
	@$(CARGO) build --release --locked --quiet -p headstart-plot --example draw
	@python3 -B benches/boot $(BENCH)

bench-swarm: ## many hosts read one image at once, as network namespaces of this machine (root): see BENCH=--help
	@scripts/setup build servers clients
	@$(CARGO) build --release --locked --quiet -p headstart --bin headstart
	@$(CARGO) build --release --locked --quiet -p headstart-peer-net --example rogue
	@$(CARGO) build --release --locked --quiet -p headstart-lab --bin headstart-lab
	@python3 -B benches/swarm $(BENCH)

bench-harvest: ## vSSDs beside other servers, a regular VM beside a harvest VM: ten quiet minutes, see BENCH=--help
	@scripts/setup build servers clients
	@$(CARGO) build --release --locked --quiet -p headstart --bin headstart
	@python3 -B benches/harvest $(BENCH)

bench-containers: ## container images to disks, beside umoci, containerd, mke2fs: ten quiet minutes, see BENCH=--help
	@scripts/setup build disks servers
	@$(CARGO) build --release --locked --quiet -p headstart --bin headstart
	@$(CARGO) build --release --locked --quiet -p headstart-testkit --bin headstart-shaper
	@python3 -B benches/containers $(BENCH)

bench-starts: ## starts of containers over a slow link, beside a full pull: ten quiet minutes (root), see BENCH=--help
	@scripts/setup build servers clients peers
	@$(CARGO) build --release --locked --quiet -p headstart --bin headstart
	@$(CARGO) build --release --locked --quiet -p headstart-testkit --bin headstart-shaper
	@python3 -B benches/starts $(BENCH)

bench-builds: ## builds with commit and compression, beside overlayfs: ten quiet minutes (root), see BENCH=--help
	@scripts/setup build
	@$(CARGO) build --release --locked --quiet -p headstart --bin headstart
	@python3 -B benches/builds $(BENCH)

lint: ## formatting, clippy, documentation, shell scripts, project rules
	@scripts/setup build
	@scripts/setup lint || echo 'lint: going on without what could not be installed'
	@scripts/lint

docs: ## the documentation site, into target/site
	@scripts/setup build docs
	@scripts/docs

dist: ## man pages and shell completions, into target/dist
	@scripts/setup build
	@$(CARGO) run --locked --quiet -p headstart-reference -- dist target/dist
	@echo "target/dist: $$(ls target/dist/man | wc -l) man pages, completions of $$(ls target/dist/completions | wc -l) shells"

fuzz: ## every parser on hostile input, FUZZ_SECONDS (30) each
	@scripts/setup build fuzz
	@scripts/fuzz $(FUZZ_SECONDS)

soak: ## all tests at length: every crash point and byte, longer simulations, SOAK_CASES (100000) per property
	@scripts/setup build disks servers clients demo
	HEADSTART_SOAK=1 PROPTEST_CASES=$(SOAK_CASES) $(TIMEOUT) 12h $(CARGO) test --workspace --locked --no-fail-fast

clean: ## remove everything that was built
	$(CARGO) clean
