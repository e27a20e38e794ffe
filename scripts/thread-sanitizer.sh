#!/usr/bin/env bash
# The tests of the crates whose threads share most, under ThreadSanitizer: races that no outcome shows.
#
#   scripts/thread-sanitizer.sh [CRATE]...     default: chunk dataset nbd
#
# The standard library is built with it (-Zbuild-std): what it orders by its locks looks like a race otherwise. That needs a
# nightly toolchain with rust-src; without these it says so and ends well.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
[ -d "$HOME/.cargo/bin" ] && PATH="$PATH:$HOME/.cargo/bin"
skip() { printf 'skipped: thread sanitizer: %s\n' "$1"; exit 0; }
command -v rustup >/dev/null || skip 'rustup is not installed, and with it no nightly toolchain'
rustup toolchain list | grep -q '^nightly' || skip "there is no nightly toolchain ('rustup toolchain install nightly')"
[ -f "$(rustc +nightly --print sysroot)/lib/rustlib/src/rust/library/Cargo.lock" ] ||
    skip "the nightly toolchain has no rust-src ('rustup component add rust-src --toolchain nightly')"
host=$(rustc +nightly -vV | sed -n 's/^host: //p')
crates=("$@")
[ ${#crates[@]} -eq 0 ] && crates=(chunk dataset nbd)
packages=()
for crate in "${crates[@]}"; do packages+=(-p "terrace-$crate"); done
# A target directory of its own: nothing built with it can be used without it, nor the reverse.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/thread-sanitizer
export RUSTFLAGS=-Zsanitizer=thread
# Whatever is found, all tests run.
export TSAN_OPTIONS="halt_on_error=0 exitcode=66"
# What counts memory or threads of its process counts the sanitizer's too: these stand alone and are not run.
cargo +nightly test -Zbuild-std --target "$host" "${packages[@]}" --lib --test all
