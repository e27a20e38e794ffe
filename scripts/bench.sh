#!/usr/bin/env bash
# Measures Terrace beside ext4 and btrfs on loop files in the same run, as root; prints a table of ratios to ext4.
#   scripts/bench.sh [SIZE_MB]      default 256
set -uo pipefail
cd "$(dirname "$0")/.."
size=${1:-256}
[ "$(id -u)" = 0 ] || { echo "run as root: it mounts loop devices" >&2; exit 1; }
scripts/install-deps.sh build bench
cargo build --release --quiet --bin terrace || exit 1
. scripts/scratch-pool.sh
scratch_begin "${CARGO_TARGET_DIR:-$PWD/target}/release/terrace"
declare -A result

job() { # $1 filesystem, $2 label, $3 directory, fio options…
    local fs=$1 label=$2 dir=$3
    shift 3
    result[$fs/$label]=$(fio --name=j --directory="$dir" --filename=fio.dat --size="${size}M" --direct=1 --ioengine=libaio \
        --iodepth=4 --bs=4k --runtime=10 --time_based --randrepeat=1 --output-format=terse --terse-version=3 "$@" 2>/dev/null |
        awk -F';' '{ printf "%.0f", $8 + $49 }')
}

measure() { # $1 filesystem, $2 directory
    local began
    fio --name=lay --directory="$2" --filename=fio.dat --size="${size}M" --bs=1M --rw=write --refill_buffers --end_fsync=1 >/dev/null
    job "$1" seq-read "$2" --rw=read
    job "$1" rand-read "$2" --rw=randread
    job "$1" seq-write "$2" --rw=write
    job "$1" rand-write "$2" --rw=randwrite
    result[$1/write+fsync]=$(fio --name=s --directory="$2" --filename=sync.dat --size=16M --bs=4k --rw=write --fsync=1 --runtime=5 \
        --time_based --output-format=terse --terse-version=3 2>/dev/null | awk -F';' '{ printf "%.0f", $49 }')
    began=$(date +%s%N)
    mkdir "$2/small" && seq 1 5000 | (cd "$2/small" && while read -r i; do echo "$i" >"f$i"; done) && ls -l "$2/small" >/dev/null && rm -r "$2/small"
    result[$1/small-files]=$((5000 * 1000000000 / ($(date +%s%N) - began)))
    rm -f "$2"/fio.dat "$2"/sync.dat
}

for fs in ext4 btrfs; do
    mkdir "$SCRATCH/$fs" && truncate -s 4G "$SCRATCH/$fs.img" && "mkfs.$fs" -q "$SCRATCH/$fs.img" &&
        mount -o loop "$SCRATCH/$fs.img" "$SCRATCH/$fs" && measure $fs "$SCRATCH/$fs" && umount "$SCRATCH/$fs"
    rm -f "$SCRATCH/$fs.img"
done
scratch_pool 4G 4G || exit 1
measure terrace "$MOUNT"

printf '%-14s %10s %10s %10s %8s %8s\n' job ext4 btrfs terrace 't/ext4' 'b/ext4'
for label in seq-read rand-read seq-write rand-write write+fsync small-files; do
    awk -v l="$label" -v e="${result[ext4/$label]:-0}" -v b="${result[btrfs/$label]:-0}" -v t="${result[terrace/$label]:-0}" \
        'BEGIN { printf "%-14s %10d %10d %10d %8.2f %8.2f\n", l, e, b, t, e ? t / e : 0, e ? b / e : 0 }'
done
printf 'IOPS; small files: files created, listed and removed per second\n'
