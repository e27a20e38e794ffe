# shellcheck shell=bash
# The cells that `make bench` and `make bench-compare` measure on a mounted filesystem. Sourced, not run, after
# scripts/scratch-pool.sh. The caller sets `size` (MiB), `files` (how many small ones) and SCRATCH, and defines
#
#   cell FILESYSTEM NAME COMMAND…     runs COMMAND, which prints "FIGURE OPERATIONS"; of the figure more is better
#
# Between two cells there is work that no cell counts: laying out files, removing them.
JOBS=(seq-read rand-read seq-write rand-write fsync-p50 first-pass second-pass create list stat list-long remove rsync-5)
FIO_SECONDS=${FIO_SECONDS:-8}

# $1 operations, $2 nanoseconds, $3 what the figure counts for each operation (1 if absent)
rate() { awk -v n="$1" -v ns="$2" -v by="${3:-1}" 'BEGIN { printf "%.1f %d", n * by * 1e9 / (ns ? ns : 1), n }'; }
# $1 operations, $2 factor of the figure, then the command that does them
timed() {
    local began operations=$1 factor=$2
    shift 2
    began=$(date +%s%N)
    "$@" >/dev/null 2>&1
    rate "$operations" $(($(date +%s%N) - began)) "$factor"
}
fio_job() { # $1 directory, fio options…
    local dir=$1
    shift
    fio --name=j --filename="$dir/fio.dat" --size="${size}M" --direct=1 --ioengine=libaio --iodepth=4 --bs=4k \
        --runtime="$FIO_SECONDS" --time_based --randrepeat=0 --output-format=terse --terse-version=3 "$@" 2>/dev/null |
        awk -F';' -v s="$FIO_SECONDS" '{ printf "%d %d", $8 + $49, ($8 + $49) * s }'
}
# The median of write and fsync, told as how many of them fit into a second.
fsync_job() {
    fio --name=s --filename="$1/sync.dat" --size=64M --bs=4k --rw=randwrite --fsync=1 --runtime="$FIO_SECONDS" --time_based --randrepeat=0 \
        --output-format=json 2>/dev/null | tr -d ' \n' |
        sed 's/.*"total_ios":\([1-9][0-9]*\),.*"sync":{/\1 /; s/^\([0-9]*\) .*"50.000000":\([0-9]*\),"60.*/\1 \2/' |
        awk '{ printf "%.1f %d", $2 ? 1e9 / $2 : 0, $1 }'
}
# Copies the files of a directory, each synced.
copy_synced() { local file; mkdir -p "$2"; for file in "$1"/*; do dd if="$file" of="$2/${file##*/}" bs=1M conv=fsync status=none; done; }
create_files() { (mkdir "$1" && cd "$1" && for ((i = 0; i < files; i++)); do echo "$i" >"f$i"; done); }
back_up() { local i; for i in 1 2 3 4 5; do rsync -a "$SCRATCH/tree/" "$1/backup$i/"; done; }

# What is copied in: random files, and a tree of this machine's own small ones.
make_sources() {
    local i
    mkdir "$SCRATCH/random" "$SCRATCH/tree"
    for i in 1 2 3 4 5 6 7 8; do head -c $((size / 8))M /dev/urandom >"$SCRATCH/random/$i"; done
    (cd /usr/share && find . -xdev -type f -size -256k 2>/dev/null | LC_ALL=C sort | head -n 5000 | tar -cf - -T - 2>/dev/null) |
        tar -xf - -C "$SCRATCH/tree"
}

measure() { # $1 filesystem, $2 directory
    local fs=$1 dir=$2
    fio --name=lay --filename="$dir/fio.dat" --size="${size}M" --bs=1M --rw=write --refill_buffers --randrepeat=0 --end_fsync=1 >/dev/null
    cell "$fs" seq-write fio_job "$dir" --rw=write --refill_buffers
    cell "$fs" seq-read fio_job "$dir" --rw=read
    cell "$fs" rand-read fio_job "$dir" --rw=randread
    cell "$fs" rand-write fio_job "$dir" --rw=randwrite --refill_buffers
    cell "$fs" fsync-p50 fsync_job "$dir"
    rm -f "$dir/fio.dat" "$dir/sync.dat"
    cell "$fs" first-pass timed "$size" 1 copy_synced "$SCRATCH/random" "$dir/first"
    cell "$fs" second-pass timed "$size" 1 copy_synced "$SCRATCH/random" "$dir/second"
    rm -r "$dir/first" "$dir/second"
    cell "$fs" create timed "$files" 1 create_files "$dir/small"
    cell "$fs" list timed "$files" 1 ls -f "$dir/small"
    cell "$fs" stat timed "$files" 1 find "$dir/small" -size +1
    cell "$fs" list-long timed "$files" 1 ls -lU "$dir/small"
    cell "$fs" remove timed "$files" 1 rm -r "$dir/small"
    cell "$fs" rsync-5 timed 5 60 back_up "$dir"
    rm -rf "$dir"/backup*
}
