#!/usr/bin/env bash
# Measures Terrace beside ext4 and btrfs (compress=zstd:1) on loop files of the same disk, in the same run, as root; prints a
# table with ratios to ext4 and keeps it in docs/performance.md between its markers, with the date and the command.
#   scripts/bench.sh [SIZE_MB] [ROUNDS]      default 512 3; of the rounds the median counts
set -uo pipefail
cd "$(dirname "$0")/.."
size=${1:-512} rounds=${2:-3} files=20000
[ "$(id -u)" = 0 ] || { echo "run as root: it mounts loop devices" >&2; exit 1; }
scripts/install-deps.sh build bench
cargo build --release --quiet --bin terrace || exit 1
. scripts/scratch-pool.sh
. scripts/bench-cells.sh
scratch_begin "${CARGO_TARGET_DIR:-$PWD/target}/release/terrace"
RESULTS=$SCRATCH/results

note() { printf '%s %s %s\n' "$1" "$2" "$3" >>"$RESULTS"; }   # filesystem, job, figure (more is better)
cell() { local figure; figure=$("${@:3}"); note "$1" "$2" "${figure%% *}"; }

make_sources
for round in $(seq 1 "$rounds"); do
    printf 'round %d of %d\n' "$round" "$rounds" >&2
    for fs in ext4 btrfs; do
        options=loop
        [ $fs = btrfs ] && options=loop,compress=zstd:1
        mkdir -p "$SCRATCH/$fs" && truncate -s 4G "$SCRATCH/$fs.img" && "mkfs.$fs" -q "$SCRATCH/$fs.img" &&
            mount -o $options "$SCRATCH/$fs.img" "$SCRATCH/$fs" && measure $fs "$SCRATCH/$fs" && umount "$SCRATCH/$fs"
        rm -f "$SCRATCH/$fs.img"
    done
    POOL=bench$round
    "$TERRACE" pool create "$POOL" --tier "fast=$SCRATCH/fast$round.img:4G" && "$TERRACE" fs create "$POOL/data" &&
        "$TERRACE" mount "$POOL/data" "$MOUNT" || exit 1
    measure terrace "$MOUNT"
    "$TERRACE" stop "$POOL"
    rm -f "$SCRATCH/fast$round.img"
done

median() { awk -v f="$1" -v j="$2" '$1 == f && $2 == j { print $3 }' "$RESULTS" | sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] + 0 }'; }
table() {
    printf '| job | ext4 | btrfs zstd:1 | terrace | terrace / ext4 | btrfs / ext4 |\n|---|---|---|---|---|---|\n'
    local job
    for job in "${JOBS[@]}"; do
        awk -v l="$job" -v e="$(median ext4 "$job")" -v b="$(median btrfs "$job")" -v t="$(median terrace "$job")" \
            'BEGIN { printf "| %s | %d | %d | %d | %.2f | %.2f |\n", l, e, b, t, e ? t / e : 0, e ? b / e : 0 }'
    done
    printf '\n%s, `make bench BENCH="%s %s"`, %s rounds, medians; fio jobs in IOPS, fsync-p50 as 1 / median latency, passes in MiB/s, small files\nper second (list: ls -f, stat: find -size, list-long: ls -lU), rsync-5 in backups per minute.\n' \
        "$(date -I)" "$size" "$rounds" "$rounds"
}
table | tee "$SCRATCH/table"
page=docs/performance.md
[ -f "$page" ] || printf '# Performance\n\n<!-- bench -->\n<!-- /bench -->\n' >"$page"
awk -v table="$SCRATCH/table" '/<!-- bench -->/ { print; while ((getline line < table) > 0) print line; skip = 1 } /<!-- \/bench -->/ { skip = 0 } !skip' \
    "$page" | awk '!(/<!-- bench -->/ && seen++)' >"$SCRATCH/page" && cp "$SCRATCH/page" "$page"
