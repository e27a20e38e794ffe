#!/usr/bin/env bash
# Compares two builds in the cells of `make bench`, in pairs: whole rounds in turn, new old, old new, new old, … on fresh
# pools of one disk, as root. For each cell: the median figure of both, the median of the paired ratios (new / old) with
# its 95 % interval (Student's t on the logarithms), and the ratio of the daemon's CPU time per operation likewise.
#
#   scripts/bench-compare.sh AGAINST [SIZE_MB] [PAIRS] [CELL…]      default 256 5, all cells
#
# AGAINST is a revision, which is built below the target directory, or the path of a `terrace` program. NEW in the
# environment is the path of a program to compare instead of the build of this tree.
# A cell is called worse if the whole interval of its ratio is below 0.95, or the whole interval of CPU above 1.02.
# Exit status 1 says that some cell is worse.
set -uo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || { sed -n '2,11p' "$0" >&2; exit 2; }
against=$1 size=${2:-256} pairs=${3:-5} files=20000
shift $(($# < 3 ? $# : 3))
wanted=" $* "
[ "$(id -u)" = 0 ] || { echo "run as root: it mounts filesystems" >&2; exit 1; }
scripts/install-deps.sh build bench
target=${CARGO_TARGET_DIR:-$PWD/target}

build_revision() { # $1 revision; prints the program
    local tree=$target/against/tree
    git worktree remove --force "$tree" 2>/dev/null
    git worktree add --quiet --detach "$tree" "$1" || return 1
    (cd "$tree" && CARGO_TARGET_DIR="$target/against/build" cargo build --locked --release --quiet --bin terrace) || return 1
    git worktree remove --force "$tree"
    echo "$target/against/build/release/terrace"
}

if [ -f "$against" ] && [ -x "$against" ]; then old=$(realpath "$against")
else
    git rev-parse --verify --quiet "$against^{commit}" >/dev/null || { echo "'$against' is neither a program nor a revision" >&2; exit 2; }
    old=$(build_revision "$against") || { echo "$against does not build" >&2; exit 1; }
fi
if [ -n "${NEW:-}" ]; then new=$(realpath "$NEW")
else
    cargo build --locked --release --quiet --bin terrace || exit 1
    new=$target/release/terrace
fi

. scripts/scratch-pool.sh
. scripts/bench-cells.sh
FIO_SECONDS=${FIO_SECONDS:-5}
scratch_begin "$new"
RESULTS=$SCRATCH/results

# Clock ticks that the daemon has used, in user and kernel mode.
daemon_ticks() { sed 's/.*) //' "/proc/$daemon/stat" | awk '{ print $12 + $13 }'; }
cell() {
    local began figure
    [ "$wanted" = "  " ] || [[ $wanted == *" $2 "* ]] || [[ $2 == *-pass || $2 == create ]] || return 0
    began=$(daemon_ticks)
    figure=$("${@:3}")
    # Side, pair, cell, figure, operations, ticks.
    printf '%s %s %s %s %s\n' "$1" "$pair" "$2" "$figure" $(($(daemon_ticks) - began)) >>"$RESULTS"
}

round() { # $1 old or new
    TERRACE=${!1}
    POOL=compare_$1_$pair
    "$TERRACE" pool create "$POOL" --tier "fast=$SCRATCH/fast.img:4G" >/dev/null && "$TERRACE" fs create "$POOL/data" >/dev/null &&
        "$TERRACE" mount "$POOL/data" "$MOUNT" >/dev/null || { echo "no pool with $TERRACE" >&2; exit 1; }
    daemon=$(scratch_daemon)
    measure "$1" "$MOUNT"
    "$TERRACE" destroy "$POOL" --yes >/dev/null 2>&1
    "$TERRACE" stop "$POOL" >/dev/null 2>&1
    rm -f "$SCRATCH/fast.img"
}

make_sources
for pair in $(seq 1 "$pairs"); do
    printf 'pair %d of %d\n' "$pair" "$pairs" >&2
    if ((pair % 2)); then order="new old"; else order="old new"; fi
    for side in $order; do round "$side"; done
done

awk -v order="${JOBS[*]}" -v wanted="$wanted" -v hz="$(getconf CLK_TCK)" '
    function median(list, count,   i, j, swap) {
        for (i = 2; i <= count; i++) for (j = i; j > 1 && list[j - 1] > list[j]; j--) { swap = list[j]; list[j] = list[j - 1]; list[j - 1] = swap }
        return count ? (count % 2 ? list[(count + 1) / 2] : (list[count / 2] + list[count / 2 + 1]) / 2) : 0
    }
    # Of the logarithms in `list`: fills low, middle (median), high.
    function interval(list, count,   i, sum, squares, mean, half) {
        if (!count) { low = middle = high = 0; return }
        for (i = 1; i <= count; i++) sum += list[i]
        mean = sum / count
        for (i = 1; i <= count; i++) squares += (list[i] - mean) ^ 2
        half = count > 1 ? student[count - 1 > 30 ? 30 : count - 1] * sqrt(squares / (count - 1) / count) : 99
        low = exp(mean - half); high = exp(mean + half); middle = exp(median(list, count))
    }
    BEGIN {
        split("12.71 4.303 3.182 2.776 2.571 2.447 2.365 2.306 2.262 2.228 2.201 2.179 2.160 2.145 2.131 2.120 2.110 2.101 2.093 2.086 2.080 2.074 2.069 2.064 2.060 2.056 2.052 2.048 2.045 2.042", student, " ")
    }
    # Fewer ticks of the clock say nothing of the processor.
    { figure[$1, $2, $3] = $4; cpu[$1, $2, $3] = $5 && $6 >= 10 ? $6 / $5 : 0; if ($2 > pairs) pairs = $2 }
    END {
        printf "| cell | old | new | new / old | 95 %% | CPU per operation, µs (old, new) | new / old | 95 %% | |\n|---|---|---|---|---|---|---|---|---|\n"
        cells = split(order, name, " ")
        for (c = 1; c <= cells; c++) {
            if (wanted != "  " && index(wanted, " " name[c] " ") == 0) continue
            rates = costs = olds = news = 0
            for (p = 1; p <= pairs; p++) {
                o = figure["old", p, name[c]]; n = figure["new", p, name[c]]
                if (!(o > 0 && n > 0)) continue
                old_list[++olds] = o; new_list[++news] = n; ratios[++rates] = log(n / o)
                o = cpu["old", p, name[c]]; n = cpu["new", p, name[c]]
                if (o > 0 && n > 0) { cpu_old[++costs] = o; cpu_new[costs] = n; cost_ratios[costs] = log(n / o) }
            }
            if (!rates) { printf "| %s | not measured ||||||||\n", name[c]; worse++; continue }
            interval(ratios, rates); slower = high < 0.95
            line = sprintf("| %s | %.0f | %.0f | %.2f | %.2f–%.2f |", name[c], median(old_list, olds), median(new_list, news), middle, low, high)
            interval(cost_ratios, costs); dearer = costs > 2 && low > 1.02
            line = line (costs < 3 ? " – | | |" : sprintf(" %.1f, %.1f | %.2f | %.2f–%.2f |", median(cpu_old, costs) * 1e6 / hz, median(cpu_new, costs) * 1e6 / hz, middle, low, high))
            if (slower || dearer) worse++
            printf "%s %s |\n", line, slower ? "slower" : dearer ? "dearer" : ""
        }
        exit worse > 0
    }' "$RESULTS"
status=$?
printf '\n%s, %s against %s, %s pairs, %s MiB, %s s for each fio job.\n' "$(date -I)" "$(git rev-parse --short HEAD)" "$against" "$pairs" "$size" "$FIO_SECONDS"
exit $status
