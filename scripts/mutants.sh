#!/usr/bin/env bash
# Plants deliberate faults, one at a time, in a copy of the tree, and runs the simulator until it notices.
#   scripts/mutants.sh [SEEDS [NAME...]]   all of them, or these
#   scripts/mutants.sh --check [NAME...]   only whether each still fits this tree
# Each crates/sim/faults/NAME.toml is one fault: what it breaks, and which code in which item of which crate stands for which other
# (crates/faults/src/fault.rs). It may name a level and a seed that noticed it once (noticed = "fs 65"), which is tried first. Or it
# names a crate and a test of it (noticed = "test chunk interleaved"): of faults that the simulator cannot notice, since it has one
# thread; then only that test runs. A fault that nothing notices, that does not fit or does not build any more is a failure; so is
# finding no faults at all, or anything without a fault.
set -uo pipefail
cd "$(dirname "$0")/.."
root=$PWD
check=
if [ "${1:-}" = --check ]; then check=1; shift; fi
seeds=5000
if [ -z "$check" ] && [ $# -gt 0 ]; then seeds=$1; shift; fi
case $seeds in '' | *[!0-9]*) printf "the number of seeds is '%s'; give one, as in 'scripts/mutants.sh 5000'\n" "$seeds" >&2; exit 2 ;; esac
cargo build --locked --quiet -p terrace-faults || exit 1
faults=${CARGO_TARGET_DIR:-$root/target}/debug/terrace-faults
[ -z "$check" ] || exec "$faults" check "$root" "$@"
listed=$("$faults" list "$root" "$@") || exit 1
missed=0 caught=0 table=
row() { table+=$(printf '| %-34s | %-16s | %7s |' "$1" "$2" "$3")$'\n'; }
miss() { printf '%-34s %s\n' "$1" "$2"; row "$1" MISSED ''; missed=$((missed + 1)); }

# The profile of `make test`: overflow checks and assertions are part of what notices. One target directory, so that
# each fault costs the crates above it only.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}/mutants
sim=$CARGO_TARGET_DIR/debug/terrace-sim
# Always at the same place, so that crates which no fault touches stay built from one run to the next.
copy=$CARGO_TARGET_DIR/faults
rm -rf "$copy"
mkdir -p "$copy/tree"
cp -r Cargo.toml Cargo.lock clippy.toml rust-toolchain.toml rustfmt.toml crates "$copy/tree/"
cd "$copy/tree" || exit 1
run() { cargo build --locked --quiet --bin terrace-sim </dev/null 2>"$copy/log"; }
# A test; whether it ran and found nothing.
try_test() {
    cargo test --locked --quiet -p "terrace-${1//_/-}" --lib --test all "$2" </dev/null >"$copy/log" 2>&1 && grep -q '^test result: ok. [1-9]' "$copy/log"
}
# One seed; whether the simulator found nothing.
try() { "$sim" --level "$1" --from "$2" --seeds 1 --failures 1 </dev/null >"$copy/log" 2>&1; }

# What is there without any fault is no finding.
run || { printf 'does not build without any fault: %s\n' "$(grep -m 1 '^error' "$copy/log")" >&2; exit 1; }
while read -r name kind where test; do
    case $kind in
    -) ;;
    test)
        if ! try_test "$where" "$test"; then
            printf 'the test %s of %s fails without any fault, or there is none\n' "$test" "$where" >&2
            exit 1
        fi
        ;;
    *)
        if ! try "$kind" "$where"; then
            printf '%s seed %s fails without any fault: %s\n' "$kind" "$where" "$(grep -m 1 '^FAILED' "$copy/log")" >&2
            exit 1
        fi
        ;;
    esac
done <<<"$listed"
while read -r name kind where test; do
    began=$SECONDS
    if ! changed=$("$faults" plant "$copy/tree" "$name"); then
        miss "$name" 'does not fit any more'
    elif [ "$kind" = test ]; then
        if try_test "$where" "$test"; then
            miss "$name" "MISSED by the test $test of $where"
        elif ! grep -q '^test result: FAILED' "$copy/log"; then
            miss "$name" "ended without a finding: $(grep -m 1 '^error' "$copy/log" || tail -n 1 "$copy/log")"
        else
            printf '%-34s caught: test %s of %s\n' "$name" "$test" "$where"
            row "$name" "test $where" $((SECONDS - began))
            caught=$((caught + 1))
        fi
    elif ! run; then
        miss "$name" "does not build: $(grep -m 1 '^error' "$copy/log")"
    elif
        began=$SECONDS
        { [ "$kind" = - ] || try "$kind" "$where"; } && "$sim" --seeds "$seeds" --level all --failures 1 </dev/null >"$copy/log" 2>&1
    then
        miss "$name" "MISSED by $seeds seeds"
    elif ! grep -q '^FAILED' "$copy/log"; then
        # Killed or aborted: not a finding of the simulator's.
        miss "$name" "ended without a finding: $(tail -n 1 "$copy/log")"
    else
        printf '%-34s caught: %s\n' "$name" "$(grep -m 1 '^FAILED' "$copy/log" | cut -c 1-120)"
        row "$name" "$(sed -n 's/^FAILED: \([a-z]*\) seed \([0-9]*\):.*/\1 \2/p' "$copy/log" | head -n 1)" $((SECONDS - began))
        caught=$((caught + 1))
    fi
    for file in $changed; do cp "$root/$file" "$copy/tree/$file"; done
done <<<"$listed"
printf '\n| %-34s | %-16s | %-7s |\n' fault 'noticed at seed' seconds
printf '%s' "$table"
printf '%d caught, %d missed\n' "$caught" "$missed"
[ "$missed" -eq 0 ]
