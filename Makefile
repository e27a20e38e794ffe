# The commands of the README. Everything real is in scripts/.
.PHONY: test
test:
	cargo test --workspace
