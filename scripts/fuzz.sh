#!/usr/bin/env bash
# Coverage-guided fuzzing of every parser of outside bytes: each target of fuzz/ for a bounded time.
#
#   scripts/fuzz.sh [SECONDS] [TARGET]...     SECONDS of each (60), of these targets or all
#
# Needs cargo-fuzz and a nightly toolchain; without them it says so and ends well. It begins with the inputs that are kept in
# the crates' corpora; what it finds of its own stays in fuzz/corpus, and an input that fails in fuzz/artifacts: put that into
# the crate's corpus, so that the tests try it ever after.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
[ -d "$HOME/.cargo/bin" ] && PATH="$PATH:$HOME/.cargo/bin"
seconds=60
case ${1:-} in '') ;; *[!0-9]*) ;; *) seconds=$1; shift ;; esac
skip() { printf 'skipped: fuzz: %s\n' "$1"; exit 0; }
command -v cargo-fuzz >/dev/null || skip "cargo-fuzz is not installed ('cargo install cargo-fuzz')"
command -v rustup >/dev/null || skip 'rustup is not installed, and with it no nightly toolchain'
rustup toolchain list | grep -q '^nightly' || skip "there is no nightly toolchain ('rustup toolchain install nightly')"

targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    mapfile -t targets < <(basename -s .rs -a fuzz/fuzz_targets/*.rs)
fi
# All at once: each by itself would look at every crate again.
cargo +nightly fuzz build || { printf 'the targets do not build\n' >&2; exit 1; }
passed=0 failed=()
for target in "${targets[@]}"; do
    [ -f "fuzz/fuzz_targets/$target.rs" ] || { printf "no target '%s' in fuzz/fuzz_targets\n" "$target" >&2; exit 2; }
    read -r crate parser <<<"$(sed -n 's/.*terrace_\([a-z_]*\)::fuzzing::\([a-z_]*\).*/\1 \2/p' "fuzz/fuzz_targets/$target.rs" | head -n 1)"
    seeds=()
    for directory in "crates/$crate/corpus/$parser" "crates/$crate/corpus/${parser//_/-}"; do
        [ -d "$directory" ] && [[ " ${seeds[*]:-} " != *" $directory "* ]] && seeds+=("$directory")
    done
    mkdir -p "fuzz/corpus/$target"
    log=$(mktemp)
    if cargo +nightly fuzz run "$target" "fuzz/corpus/$target" "${seeds[@]}" -- -max_total_time="$seconds" -timeout=20 \
        -rss_limit_mb=2048 -max_len=262144 >"$log" 2>&1; then
        printf '%-24s %s\n' "$target" "$(grep -E '^Done|^#[0-9]+.DONE' "$log" | tail -n 1)"
        passed=$((passed + 1))
    else
        printf '%-24s FAILED\n' "$target"
        tail -n 40 "$log"
        failed+=("$target")
    fi
    rm -f "$log"
done
printf '%d targets passed, %d failed%s\n' "$passed" "${#failed[@]}" "${failed[*]:+: ${failed[*]}}"
[ ${#failed[@]} -eq 0 ]
