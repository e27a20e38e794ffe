#!/usr/bin/env bash
# Plants deliberate faults, one at a time, in a copy of the tree, and runs the simulator until it notices.
#   scripts/mutants.sh [SEEDS]
# Each crates/sim/mutants/NAME.patch is one fault; a fault that no seed notices is a failure.
set -uo pipefail
cd "$(dirname "$0")/.."
seeds=${1:-5000}
copy=$(mktemp -d "${TMPDIR:-/tmp}/terrace-mutants.XXXXXX")
trap 'rm -rf "$copy"' EXIT
missed=0 caught=0
shopt -s nullglob
for patch in crates/sim/mutants/*.patch; do
    name=$(basename "$patch" .patch)
    rm -rf "$copy/tree" && mkdir "$copy/tree"
    cp -r Cargo.toml Cargo.lock clippy.toml rust-toolchain.toml rustfmt.toml crates "$copy/tree/"
    if ! patch -s -d "$copy/tree" -p1 <"$patch"; then
        printf '%-40s does not apply any more\n' "$name"
        missed=$((missed + 1))
        continue
    fi
    if ! (cd "$copy/tree" && CARGO_TARGET_DIR="$copy/target" cargo build --release --quiet --bin terrace-sim) 2>"$copy/log"; then
        printf '%-40s does not build\n' "$name"
        missed=$((missed + 1))
        continue
    fi
    if "$copy/target/release/terrace-sim" --seeds "$seeds" --level all --failures 1 >"$copy/log" 2>&1; then
        printf '%-40s MISSED by %s seeds\n' "$name" "$seeds"
        missed=$((missed + 1))
    else
        printf '%-40s caught: %s\n' "$name" "$(grep -m 1 '^FAILED' "$copy/log" | cut -c 1-120)"
        caught=$((caught + 1))
    fi
done
printf '%d caught, %d missed\n' "$caught" "$missed"
[ "$missed" -eq 0 ]
