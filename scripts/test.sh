#!/usr/bin/env bash
# Everything that CI runs, in named stages; the last line is 'N passed, N failed, N skipped' over all of them.
#
#   scripts/test.sh                    all stages
#   scripts/test.sh unit sim           just these
#
# A stage that cannot run here (no /dev/fuse, not root, a tool that could not be installed, the advisory database out
# of reach) is skipped with its reason and counted. One build profile serves every stage, so that a fresh clone compiles
# once: dependencies are optimised in it, and overflow checks and assertions stay on under the simulator.
set -uo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never} CARGO_NET_RETRY=10 CARGO_HTTP_TIMEOUT=60
# What a rebuild of half a crate would save is worth less here than the gigabytes that it keeps.
export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}
[ -d "$HOME/.cargo/bin" ] && PATH="$PATH:$HOME/.cargo/bin"
export PATH="$PATH:/usr/sbin:/sbin"
TARGET=${CARGO_TARGET_DIR:-$PWD/target}
ALL_STAGES=(format lint deny unit mount volume pjdfstest sim)

# Crates come from the network: fetched once, with patience, before any stage needs them.
fetch() {
    local attempt
    for attempt in 1 2 3 4; do
        cargo fetch --locked --quiet 2>/tmp/terrace-fetch.log && return 0
        printf 'cargo fetch failed (attempt %d): %s\n' "$attempt" "$(tail -n 1 /tmp/terrace-fetch.log)"
        sleep $((attempt * 3))
    done
    printf 'going on with the crates that are here\n'
}

# Why a mount cannot be tried here; nothing when it can.
no_mount_reason() {
    [ "$(uname -s)" = Linux ] || { echo "not Linux"; return; }
    [ "$(id -u)" = 0 ] || { echo "not root"; return; }
    [ -c /dev/fuse ] || { echo "no /dev/fuse"; return; }
    : 2>/dev/null <>/dev/fuse || { echo "/dev/fuse cannot be opened"; return; }
    command -v fusermount3 >/dev/null || { echo "no fusermount3"; return; }
}

stage_format() {
    if cargo fmt --all --check; then passed 1; else failed 1 "run 'cargo fmt --all'"; fi
}

stage_lint() {
    if cargo clippy --locked --workspace --all-targets --quiet -- -D warnings; then passed 1; else failed 1 "clippy"; fi
    # Only whether they fit: running them is `make mutants`.
    if scripts/mutants.sh --check; then passed 1; else failed 1 "a deliberate fault in crates/sim/faults does not fit any more"; fi
}

stage_deny() {
    if ! command -v cargo-deny >/dev/null; then
        skipped 4 "cargo-deny is not installed and could not be"
        return
    fi
    local check
    for check in bans licenses sources; do
        if cargo deny -L error --offline --locked check --hide-inclusion-graph "$check"; then passed 1; else failed 1 "cargo deny check $check"; fi
    done
    # Advisories need the database; whether it can be had is asked first, so that a failure below is a finding.
    if ! timeout 60 git ls-remote -q https://github.com/RustSec/advisory-db HEAD >/dev/null 2>&1; then
        skipped 1 "advisories: https://github.com/RustSec/advisory-db is out of reach"
    elif ! timeout 120 cargo deny --locked fetch db >/dev/null 2>&1; then
        skipped 1 "advisories: the database could not be fetched"
    elif cargo deny -L error --offline --locked check --hide-inclusion-graph advisories; then passed 1
    else failed 1 "cargo deny check advisories"
    fi
}

stage_unit() {
    local out status
    out=$(mktemp)
    cargo test --locked --workspace --no-fail-fast 2>&1 | tee "$out" | grep -v -E '^(test .* ok$|running |$|   Doc-tests|     Running|   Compiling|warning: unused)'
    status=${PIPESTATUS[0]}
    count_cargo_tests "$out"
    # A test binary that did not compile or crashed has no result line.
    if [ "$status" -ne 0 ] && [ "$(sum_of failed)" -eq 0 ]; then failed 1 "cargo test ended with status $status"; fi
    # Orders of threads that a machine seldom takes; a build of its own, since locks are others then.
    cargo test --locked -p terrace-sync --features shuttle --target-dir "$TARGET/shuttle" >"$out" 2>&1
    status=$?
    count_cargo_tests "$out"
    if [ "$status" -ne 0 ]; then failed 1 "the tests under shuttle"; tail -n 30 "$out"; fi
    rm -f "$out"
}

# Builds `terrace` where the unit stage would (the same profile); says whether it can already do anything.
build_terrace() {
    cargo build --locked --quiet --bin terrace || return 1
    TERRACE=$TARGET/debug/terrace
}

stage_mount() {
    local reason
    reason=$(no_mount_reason)
    if [ -n "$reason" ]; then skipped 1 "mount: $reason"; return; fi
    build_terrace || { failed 1 "terrace does not build"; return; }
    if ! "$TERRACE" help >/dev/null 2>&1 || [ -z "$("$TERRACE" help 2>/dev/null)" ]; then
        skipped 1 "mount: terrace has no commands yet"
        return
    fi
    local status=0
    scripts/mount-test.sh "$TERRACE" && scripts/power-cut.sh "$TERRACE" 4 || status=1
    scripts/overlay-test.sh "$TERRACE" || status=1
    scripts/nfs-test.sh "$TERRACE" || status=1
    return "$status"
}

# What cannot be attached here is skipped by the script, case by case: NBD needs neither root nor FUSE.
stage_volume() {
    build_terrace || { failed 1 "terrace does not build"; return; }
    scripts/volume-test.sh "$TERRACE"
}

stage_pjdfstest() {
    local reason
    reason=$(no_mount_reason)
    [ -z "$reason" ] && ! command -v pjdfstest >/dev/null && reason="pjdfstest is not installed and could not be"
    if [ -n "$reason" ]; then skipped 1 "pjdfstest: $reason"; return; fi
    build_terrace || { failed 1 "terrace does not build"; return; }
    if [ -z "$("$TERRACE" help 2>/dev/null)" ]; then
        skipped 1 "pjdfstest: terrace has no commands yet"
        return
    fi
    scripts/pjdfstest.sh "$TERRACE"
}

stage_sim() {
    cargo build --locked --quiet --bin terrace-sim || { failed 1 "terrace-sim does not build"; return; }
    scripts/sim.sh "$TARGET/debug/terrace-sim"
}

. scripts/stage.sh

if [ "${1:-}" = --inside ]; then
    "stage_$2"
    exit
fi

[ $# -eq 0 ] && set -- "${ALL_STAGES[@]}"
for stage in "$@"; do
    declare -F "stage_$stage" >/dev/null || { printf "no stage '%s'; there are: %s\n" "$stage" "${ALL_STAGES[*]}" >&2; exit 2; }
done
printf '== dependencies\n'
began=$SECONDS
timeout 900 scripts/install-deps.sh build test
fetch
printf -- '-- %d s\n' $((SECONDS - began))
limit_of() { case "$1" in format) echo 120 ;; lint) echo 1200 ;; deny) echo 300 ;; unit) echo 2000 ;; mount) echo 900 ;; volume) echo 400 ;; pjdfstest) echo 400 ;; sim) echo 700 ;; esac; }
for stage in "$@"; do run_stage "$stage" "$(limit_of "$stage")"; done
finish
