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
scratch_begin "${CARGO_TARGET_DIR:-$PWD/target}/release/terrace"
RESULTS=$SCRATCH/results
JOBS=(seq-read rand-read seq-write rand-write fsync-p50 first-pass second-pass create list stat list-long remove rsync-5)

note() { printf '%s %s %s\n' "$1" "$2" "$3" >>"$RESULTS"; }   # filesystem, job, figure (more is better)
rate() { awk -v n="$1" -v ns="$2" 'BEGIN { printf "%.1f", n * 1e9 / (ns ? ns : 1) }'; }
timed() { local began; began=$(date +%s%N); "$@" >/dev/null 2>&1; echo $(($(date +%s%N) - began)); }

fio_job() { # $1 filesystem, $2 job, $3 directory, fio options…
    local fs=$1 label=$2 dir=$3
    shift 3
    note "$fs" "$label" "$(fio --name=j --filename="$dir/fio.dat" --size="${size}M" --direct=1 --ioengine=libaio --iodepth=4 --bs=4k \
        --runtime=8 --time_based --randrepeat=0 --output-format=terse --terse-version=3 "$@" 2>/dev/null | awk -F';' '{ printf "%d", $8 + $49 }')"
}
# Copies the files of a directory, each synced.
copy_synced() { local file; mkdir -p "$2"; for file in "$1"/*; do dd if="$file" of="$2/${file##*/}" bs=1M conv=fsync status=none; done; }
create_files() { mkdir "$1" && cd "$1" && for ((i = 0; i < files; i++)); do echo "$i" >"f$i"; done; }
back_up() { local i; for i in 1 2 3 4 5; do rsync -a "$SCRATCH/tree/" "$1/backup$i/"; done; }

measure() { # $1 filesystem, $2 directory
    local fs=$1 dir=$2
    fio --name=lay --filename="$dir/fio.dat" --size="${size}M" --bs=1M --rw=write --refill_buffers --randrepeat=0 --end_fsync=1 >/dev/null
    fio_job "$fs" seq-write "$dir" --rw=write --refill_buffers
    fio_job "$fs" seq-read "$dir" --rw=read
    fio_job "$fs" rand-read "$dir" --rw=randread
    fio_job "$fs" rand-write "$dir" --rw=randwrite --refill_buffers
    # The median of write+fsync, told as how many of them fit into a second.
    note "$fs" fsync-p50 "$(fio --name=s --filename="$dir/sync.dat" --size=64M --bs=4k --rw=randwrite --fsync=1 --runtime=8 --time_based --randrepeat=0 \
        --output-format=json 2>/dev/null | tr -d ' \n' | sed 's/.*"sync":{//; s/.*"50.000000":\([0-9]*\),"60.*/\1/' |
        awk '{ printf "%.1f", $1 ? 1e9 / $1 : 0 }')"
    rm -f "$dir/fio.dat" "$dir/sync.dat"
    note "$fs" first-pass "$(rate "$size" "$(timed copy_synced "$SCRATCH/random" "$dir/first")")"
    note "$fs" second-pass "$(rate "$size" "$(timed copy_synced "$SCRATCH/random" "$dir/second")")"
    rm -r "$dir/first" "$dir/second"
    note "$fs" create "$(rate $files "$( (timed create_files "$dir/small") )")"
    note "$fs" list "$(rate $files "$(timed ls -f "$dir/small")")"
    note "$fs" stat "$(rate $files "$(timed find "$dir/small" -size +1)")"
    note "$fs" list-long "$(rate $files "$(timed ls -lU "$dir/small")")"
    note "$fs" remove "$(rate $files "$(timed rm -r "$dir/small")")"
    note "$fs" rsync-5 "$(rate 300 "$(timed back_up "$dir")")"
    rm -rf "$dir"/backup*
}

mkdir "$SCRATCH/random" "$SCRATCH/tree"
for i in 1 2 3 4 5 6 7 8; do head -c $((size / 8))M /dev/urandom >"$SCRATCH/random/$i"; done
(cd /usr/share && find . -xdev -type f -size -256k 2>/dev/null | LC_ALL=C sort | head -n 5000 | tar -cf - -T - 2>/dev/null) | tar -xf - -C "$SCRATCH/tree"

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
