#!/usr/bin/env bash
# Installs what is missing, builds, and lets `terrace demo` tell the story on this machine's own files.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install-deps.sh build demo
[ -d "$HOME/.cargo/bin" ] && PATH="$PATH:$HOME/.cargo/bin"
cargo build --release --quiet --bin terrace
exec "${CARGO_TARGET_DIR:-target}/release/terrace" demo "$@"
