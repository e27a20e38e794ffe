#!/usr/bin/env bash
# Plants deliberate faults, one at a time, in a copy of the tree, and runs the simulator until it notices.
#   scripts/mutants.sh [SEEDS [NAME...]]   all of them, or these
#   scripts/mutants.sh --check             only whether each still applies to this tree
# Each crates/sim/mutants/NAME.patch is one fault, its first line says what it breaks; the second may name a level and a
# seed that noticed it once ('# noticed: fs 65'), which is tried first. Or it names a crate and a test of it ('# noticed:
# test chunk interleaved'): of faults that the simulator cannot notice, since it has one thread; then only that test runs.
# A fault that nothing notices, that does not apply or does not build any more is a failure; so is finding no faults at
# all, or anything without a fault.
set -uo pipefail
cd "$(dirname "$0")/.."
root=$PWD
shopt -s nullglob
check=
if [ "${1:-}" = --check ]; then check=1; shift; fi
seeds=5000
if [ -z "$check" ] && [ $# -gt 0 ]; then seeds=$1; shift; fi
case $seeds in '' | *[!0-9]*) printf "the number of seeds is '%s'; give one, as in 'scripts/mutants.sh 5000'\n" "$seeds" >&2; exit 2 ;; esac
patches=()
if [ $# -gt 0 ]; then
    for name in "$@"; do patches+=("$root/crates/sim/mutants/$name.patch"); done
else
    patches=("$root"/crates/sim/mutants/*.patch)
fi
if [ ${#patches[@]} -eq 0 ]; then
    printf 'no faults in crates/sim/mutants: nothing was tested\n' >&2
    exit 1
fi
missed=0 caught=0 table=
row() { table+=$(printf '| %-34s | %-16s | %7s |' "$1" "$2" "$3")$'\n'; }
miss() { printf '%-34s %s\n' "$1" "$2"; row "$1" MISSED ''; missed=$((missed + 1)); }

if [ -n "$check" ]; then
    for patch in "${patches[@]}"; do
        name=$(basename "$patch" .patch)
        [ "$(head -c 2 "$patch" 2>/dev/null)" = '# ' ] || { miss "$name" 'is missing, or does not start with what it breaks'; continue; }
        git apply --check "$patch" || miss "$name" 'does not apply any more'
    done
    printf '%d faults, %d do not apply\n' "${#patches[@]}" "$missed"
    [ "$missed" -eq 0 ]
    exit
fi

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
git init -q . || exit 1
run() { cargo build --locked --quiet --bin terrace-sim 2>"$copy/log"; }
hint() { sed -n '2s/^# noticed: \([a-z]*\) \([0-9]*\)$/\1 \2/p' "$1"; }
test_hint() { sed -n '2s/^# noticed: test \([a-z_]*\) \([a-z0-9_:]*\)$/\1 \2/p' "$1"; }
# A test; whether it ran and found nothing.
try_test() {
    cargo test --locked --quiet -p "terrace-${1//_/-}" --lib --test all "$2" >"$copy/log" 2>&1 && grep -q '^test result: ok. [1-9]' "$copy/log"
}
# One seed; whether the simulator found nothing.
try() { "$sim" --level "$1" --from "$2" --seeds 1 --failures 1 >"$copy/log" 2>&1; }

# What is there without any fault is no finding.
run || { printf 'does not build without any fault: %s\n' "$(grep -m 1 '^error' "$copy/log")" >&2; exit 1; }
for patch in "${patches[@]}"; do
    read -r crate name <<<"$(test_hint "$patch")"
    if [ -n "$name" ] && ! try_test "$crate" "$name"; then
        printf 'the test %s of %s fails without any fault, or there is none\n' "$name" "$crate" >&2
        exit 1
    fi
    read -r level seed <<<"$(hint "$patch")"
    if [ -n "$seed" ] && ! try "$level" "$seed"; then
        printf '%s seed %s fails without any fault: %s\n' "$level" "$seed" "$(grep -m 1 '^FAILED' "$copy/log")" >&2
        exit 1
    fi
done
for patch in "${patches[@]}"; do
    name=$(basename "$patch" .patch)
    began=
    if ! git apply "$patch"; then
        miss "$name" 'does not apply any more'
    elif [ -n "$(test_hint "$patch")" ]; then
        began=$SECONDS
        read -r crate test <<<"$(test_hint "$patch")"
        if try_test "$crate" "$test"; then
            miss "$name" "MISSED by the test $test of $crate"
        elif ! grep -q '^test result: FAILED' "$copy/log"; then
            miss "$name" "ended without a finding: $(grep -m 1 '^error' "$copy/log" || tail -n 1 "$copy/log")"
        else
            printf '%-34s caught: test %s of %s\n' "$name" "$test" "$crate"
            row "$name" "test $crate" $((SECONDS - began))
            caught=$((caught + 1))
        fi
    elif ! run; then
        miss "$name" "does not build: $(grep -m 1 '^error' "$copy/log")"
    elif
        began=$SECONDS
        read -r level seed <<<"$(hint "$patch")"
        { [ -z "$seed" ] || try "$level" "$seed"; } && "$sim" --seeds "$seeds" --level all --failures 1 >"$copy/log" 2>&1
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
    git apply -R "$patch" 2>/dev/null
done
printf '\n| %-34s | %-16s | %-7s |\n' fault 'noticed at seed' seconds
printf '%s' "$table"
printf '%d caught, %d missed\n' "$caught" "$missed"
[ "$missed" -eq 0 ]
