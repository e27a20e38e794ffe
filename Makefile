# The commands of the README. Everything real is in scripts/ and crates/.
#
#   make test     everything that CI runs            make demo     the whole story on real data
#   make sim      SEEDS=1000 FROM=1 LEVEL=all        make soak     HOURS=8
#   make bench-volumes   block volumes beside raw files, loop devices and qemu
#   make bench-tiers     a fast and a slow tier in emulation, before and after training, beside each device alone
#   make bench-peers  the same beside bcache, dm-cache and dm-writecache, each in a virtual machine
#   make bench    BENCH='512 3'                make mutants  deliberate faults that the simulator must catch
#   make fuzz     FUZZ_SECONDS=60              coverage-guided fuzzing of every parser (nightly, cargo-fuzz)
SEEDS ?= 1000
FROM ?= 1
LEVEL ?= all
HOURS ?= 8
BENCH ?=
MUTANT_SEEDS ?= 5000

.PHONY: test demo sim soak fuzz bench bench-volumes bench-tiers bench-peers mutants deps
test:
	@scripts/test.sh

deps:
	@scripts/install-deps.sh build test demo

demo:
	@scripts/demo.sh

sim:
	cargo run --release --quiet --bin terrace-sim -- --from $(FROM) --seeds $(SEEDS) --level $(LEVEL)

FUZZ_ITERATIONS ?= 1000000
soak:
	TERRACE_FUZZ_ITERATIONS=$(FUZZ_ITERATIONS) TERRACE_FUZZ_SEED=$$(date +%s) cargo test --workspace --lib --quiet hostile_bytes
	scripts/fuzz.sh $(FUZZ_SECONDS)
	scripts/thread-sanitizer.sh
	cargo run --release --quiet --bin terrace-sim -- --hours $(HOURS) --level $(LEVEL)
	cargo build --release --quiet --bin terrace
	scripts/kill-soak.sh $${CARGO_TARGET_DIR:-target}/release/terrace 100
	scripts/power-cut.sh $${CARGO_TARGET_DIR:-target}/release/terrace 100
	scripts/guest-boot.sh $${CARGO_TARGET_DIR:-target}/release/terrace --fetch
	scripts/ublk-guest.sh $${CARGO_TARGET_DIR:-target}/release/terrace --fetch
	scripts/nbd-guest.sh $${CARGO_TARGET_DIR:-target}/release/terrace --fetch
	scripts/volume-kill.sh $${CARGO_TARGET_DIR:-target}/release/terrace 20
	scripts/volume-kill.sh $${CARGO_TARGET_DIR:-target}/release/terrace 20 $$(date +%s) --power

FUZZ_SECONDS ?= 60
fuzz:
	@scripts/fuzz.sh $(FUZZ_SECONDS)

bench:
	@scripts/bench.sh $(BENCH)

bench-volumes:
	@scripts/bench-volumes.sh $(BENCH)

bench-tiers:
	@scripts/bench-tiers.sh $(BENCH)

bench-peers:
	@scripts/bench-peers.sh $(BENCH)

mutants:
	@scripts/mutants.sh $(MUTANT_SEEDS)
