#!/usr/bin/env bash
# Block volumes as their users use them: filesystems of the kernel's on an attached volume, fio, dd, and the NBD clients that
# people have (libnbd's, qemu's, fio's), with the daemon killed under them. Each case is a function `case_NAME` with a
# volume of that name; none of them depends on how long anything takes. Guests are booted by scripts/guest-boot.sh, ublk-guest.sh and
# nbd-guest.sh, databases killed by scripts/volume-kill.sh.
#   scripts/volume-test.sh TERRACE-BINARY [CASE…]
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/stage.sh
. scripts/scratch-pool.sh
. scripts/cases.sh
PATH=$PATH:/usr/sbin:/sbin
scratch_begin "$1"
shift
CASES=(ext4_on_a_volume xfs_on_a_volume fio_verifies_a_device image_with_holes sectors_of_4096_and_512 resized_both_ways
    snapshot_is_compared readonly_on_and_off detach_under_load kill_under_load
    nbd_info_and_copies qemu_img qemu_io_requests fio_over_nbd nbd_for_reading_alone nbd_new_size nbd_after_a_kill tls_with_certificates)
NOT_ATTACHABLE=
if [ "$(id -u)" != 0 ]; then NOT_ATTACHABLE='devices are made by root alone'
elif [ ! -c /dev/loop-control ]; then NOT_ATTACHABLE='no loop devices'
elif ! : 2>/dev/null <>/dev/fuse; then NOT_ATTACHABLE='no /dev/fuse'
fi

# Whatever becomes of the cases, no mount, no device and no daemon stays.
leave() {
    local status=$? volume
    nothing_mounted
    for volume in "${CASES[@]}"; do
        [ -e "$TERRACE_STATE_DIR/run/disk/$POOL/$volume" ] && timeout 60 "$TERRACE" detach --force "$POOL/$volume" >/dev/null 2>&1
    done
    scratch_end
    return "$status"
}
trap leave EXIT

# Also what a case that failed has left, one over the other.
nothing_mounted() { while mountpoint -q "$MOUNT" && umount -l "$MOUNT"; do :; done; }

# $1 name, $2 size, more options: makes a volume, which VOLUME names.
volume() {
    VOLUME=$POOL/$1
    "$TERRACE" volume create "$VOLUME" --size "$2" --sparse "${@:3}"
}
# The same, attached as DISK; 77 where there are no devices.
disk() {
    [ -z "$NOT_ATTACHABLE" ] || { skip_because "$NOT_ATTACHABLE"; return 77; }
    nothing_mounted
    volume "$@" && attached
}
# Through a loop device: what another kernel does with ublk is tried in guests.
attached() { DISK=$("$TERRACE" attach "$VOLUME" --via loop) && [ -b "$DISK" ]; }
ended() { "$TERRACE" detach "$VOLUME" && "$TERRACE" destroy --yes "$VOLUME"; }
mounted() { mount -o "$1" "$DISK" "$MOUNT"; }
# The same, served over NBD, as URI: $1 name, $2 size.
export_of() {
    volume "$1" "$2" && URI=$("$TERRACE" serve "$VOLUME" --nbd "unix:$SCRATCH/$1.sock")
}
unexported() { "$TERRACE" unserve "$VOLUME" && "$TERRACE" destroy --yes "$VOLUME"; }
# A number of the pool from the outermost level of `status --json`.
pool_number() { "$TERRACE" status "$POOL" --json | sed -n "s/^  \"$1\": *\([0-9]*\).*/\1/p"; }
referenced() { "$TERRACE" list -t volume "$VOLUME" --json | tr ',{}' '\n\n\n' | sed -n 's/^ *"referenced_bytes": *\([0-9]*\).*/\1/p'; }
# What is freed in the background: $1 the number below which the rest, a command, comes.
falls_below() {
    local _ limit=$1
    shift
    for _ in $(seq 1 300); do
        [ "$("$@")" -lt "$limit" ] && return 0
        sleep 0.1
    done
    echo "$* is $("$@") still, not below $limit"
    return 1
}
refused() { if "$@" >"$SCRATCH/refused" 2>&1; then echo "not refused: $*"; return 1; fi; }

# Real files, bounded: some thousand.
source_tree() {
    [ -d "$SCRATCH/source" ] && return
    mkdir "$SCRATCH/source" && cp -a crates docs scripts "$SCRATCH/source/"
    (cd /usr/share && find . -xdev -type f -size -128k 2>/dev/null | LC_ALL=C sort | head -n 2000 | tar -cf - -T - 2>/dev/null) |
        tar -xf - -C "$SCRATCH/source"
    head -c 4000000 /dev/urandom >"$SCRATCH/source/random"
}

# An image of 96 MiB of which a few MiB are not zeroes.
image() {
    IMAGE=$SCRATCH/image
    [ -e "$IMAGE" ] && return
    truncate -s 96M "$IMAGE"
    local at
    for at in 0 7 33 90; do dd if=/dev/urandom of="$IMAGE" bs=64k count=12 seek=$((at * 16 + 3)) conv=notrunc status=none; done
}

# $1 how to make the filesystem, $2 how to look at it
filesystem_case() {
    local before
    source_tree
    # shellcheck disable=SC2086
    $1 "$DISK" && mounted discard && cp -a "$SCRATCH/source" "$MOUNT/tree" || return 1
    umount "$MOUNT" && $2 "$DISK" && mounted discard && diff -r --no-dereference "$SCRATCH/source" "$MOUNT/tree" || return 1
    # What is deleted comes back to the pool at the latest with fstrim.
    head -c 80000000 /dev/urandom >"$MOUNT/large" && sync -f "$MOUNT/large" && umount "$MOUNT" && mounted nodiscard || return 1
    before=$(pool_number used_bytes)
    [ "$(pool_number logical_bytes)" -gt 80000000 ] || { echo "logical_bytes: $(pool_number logical_bytes)"; return 1; }
    local logical
    logical=$(pool_number logical_bytes)
    # XFS lets go of deleted files in the background, but before it is unmounted.
    rm "$MOUNT/large" && umount "$MOUNT" && mounted nodiscard && fstrim -v "$MOUNT" || return 1
    falls_below $((logical - 70000000)) pool_number logical_bytes && falls_below $((before - 40000000)) pool_number used_bytes || return 1
    umount "$MOUNT" && $2 "$DISK" && "$TERRACE" scrub "$POOL" --wait && ended
}

case_ext4_on_a_volume() {
    needs mkfs.ext4 e2fsck fstrim || return 77
    disk ext4_on_a_volume 512M || return
    filesystem_case 'mkfs.ext4 -q' 'e2fsck -fn'
}

case_xfs_on_a_volume() {
    needs mkfs.xfs xfs_repair fstrim || return 77
    disk xfs_on_a_volume 512M || return
    grep -qw xfs /proc/filesystems || modprobe xfs 2>/dev/null
    grep -qw xfs /proc/filesystems || { skip_because 'the kernel has no xfs'; ended; return 77; }
    filesystem_case 'mkfs.xfs -q' 'xfs_repair -n'
}

verify_job=(--name=verify --verify=crc32c --verify_state_save=0 --verify_fatal=1 --verify_dump=0 --randrepeat=1 --bsrange=4k-64k --size=48M --iodepth=8
    --output-format=terse)

case_fio_verifies_a_device() {
    needs fio || return 77
    disk fio_verifies_a_device 64M || return
    fio "${verify_job[@]}" --ioengine=libaio --direct=1 --filename="$DISK" --rw=randwrite --do_verify=1 &&
        fio "${verify_job[@]}" --ioengine=libaio --direct=1 --filename="$DISK" --rw=randrw --bsrange=4k-32k --do_verify=1 && ended
}

case_image_with_holes() {
    disk image_with_holes 96M || return
    image
    # Zeroes that are written out take no room either.
    dd if="$IMAGE" of="$DISK" bs=1M oflag=direct conv=fsync status=none && cmp "$IMAGE" "$DISK" || return 1
    [ "$(referenced)" -lt 6000000 ] || { echo "$(referenced) bytes for some 3 MiB"; return 1; }
    dd if="$DISK" of="$SCRATCH/back" bs=64k conv=sparse status=none && cmp "$IMAGE" "$SCRATCH/back" &&
        [ "$(($(stat -c %b "$SCRATCH/back") * 512))" -lt 6000000 ] || return 1
    rm "$SCRATCH/back"
    # What was there makes way for a hole.
    blkdiscard "$DISK" && falls_below 100000 referenced && cmp -n 100663296 "$DISK" /dev/zero && ended
}

case_sectors_of_4096_and_512() {
    disk sectors_of_4096_and_512 32M || return
    [ "$(blockdev --getss "$DISK")" = 4096 ] && [ "$(blockdev --getsize64 "$DISK")" = 33554432 ] || return 1
    refused "$TERRACE" set block_size=512 "$VOLUME" && "$TERRACE" detach "$VOLUME" && "$TERRACE" set block_size=512 "$VOLUME" && attached &&
        [ "$(blockdev --getss "$DISK")" = 512 ] || return 1
    # One sector in the middle of a block leaves its neighbours alone.
    head -c 8192 /dev/urandom >"$SCRATCH/blocks" && head -c 512 /dev/urandom >"$SCRATCH/sector" &&
        dd if="$SCRATCH/blocks" of="$DISK" oflag=direct bs=8192 status=none && dd if="$SCRATCH/sector" of="$DISK" oflag=direct bs=512 seek=3 status=none &&
        dd if="$SCRATCH/sector" of="$SCRATCH/blocks" bs=512 seek=3 conv=notrunc status=none && cmp -n 8192 "$SCRATCH/blocks" "$DISK" && ended
}

case_resized_both_ways() {
    needs mkfs.ext4 resize2fs e2fsck || return 77
    disk resized_both_ways 64M || return
    mkfs.ext4 -q "$DISK" && mounted discard && head -c 20000000 /dev/urandom >"$SCRATCH/kept" && cp "$SCRATCH/kept" "$MOUNT/kept" || return 1
    # Larger while it is mounted, the filesystem too; where root may not do that (no CAP_SYS_RESOURCE, as in containers), afterwards.
    "$TERRACE" volume resize "$VOLUME" 160M && [ "$(blockdev --getsize64 "$DISK")" = 167772160 ] || return 1
    if ! resize2fs "$DISK" >"$SCRATCH/resize2fs" 2>&1; then
        cat "$SCRATCH/resize2fs"
        grep -q 'Permission denied' "$SCRATCH/resize2fs" && umount "$MOUNT" && e2fsck -fp "$DISK" && resize2fs "$DISK" && mounted discard || return 1
    fi
    [ "$(df --output=size -B1M "$MOUNT" | tail -n 1)" -gt 120 ] && cmp "$SCRATCH/kept" "$MOUNT/kept" && umount "$MOUNT" || return 1
    # Nothing is to be mended; that it was looked at is noted, or resize2fs refuses where the mount was in a later second than the last look.
    e2fsck -fp "$DISK" || return 1
    # Smaller: the filesystem first, and nobody is asked here, so that it is refused without --yes.
    resize2fs "$DISK" 80M && refused "$TERRACE" volume resize "$VOLUME" 96M </dev/null && [ "$(blockdev --getsize64 "$DISK")" = 167772160 ] &&
        "$TERRACE" volume resize "$VOLUME" 96M --yes && [ "$(blockdev --getsize64 "$DISK")" = 100663296 ] || return 1
    e2fsck -fn "$DISK" && mounted discard && cmp "$SCRATCH/kept" "$MOUNT/kept" && umount "$MOUNT" && ended
}

case_snapshot_is_compared() {
    needs mkfs.ext4 || return 77
    disk snapshot_is_compared 96M || return
    local past
    dd if=/dev/urandom of="$DISK" bs=1M count=24 oflag=direct status=none && mkfs.ext4 -q "$DISK" && mounted discard &&
        echo one >"$MOUNT/file" && umount "$MOUNT" && cp --sparse=always "$DISK" "$SCRATCH/past" || return 1
    "$TERRACE" snapshot "$VOLUME@one" && mounted discard && echo two >"$MOUNT/file" && umount "$MOUNT" || return 1
    past=$("$TERRACE" attach "$VOLUME@one" --via loop) || return 1
    [ "$(blockdev --getro "$past")" = 1 ] && refused dd if=/dev/zero of="$past" bs=4k count=1 oflag=direct && cmp "$SCRATCH/past" "$past" &&
        mount -o ro "$past" "$MOUNT" && [ "$(cat "$MOUNT/file")" = one ] && umount "$MOUNT" || return 1
    rm "$SCRATCH/past"
    refused "$TERRACE" destroy --yes "$VOLUME@one" && "$TERRACE" detach "$past" && "$TERRACE" destroy --yes "$VOLUME@one" && mounted discard &&
        [ "$(cat "$MOUNT/file")" = two ] && umount "$MOUNT" && ended
}

# $1 what 'readonly' is, as the kernel has it, and whether a write is refused.
shown_and_kept() {
    [ "$(blockdev --getro "$DISK")" = "$1" ] || { echo "$DISK is shown as $(blockdev --getro "$DISK")"; return 1; }
    if [ "$1" = 1 ]; then refused dd if=/dev/zero of="$DISK" bs=4k count=1 oflag=direct
    else dd if=/dev/zero of="$DISK" bs=4k count=1 oflag=direct conv=fsync status=none
    fi
}
case_readonly_on_and_off() {
    disk readonly_on_and_off 64M || return
    shown_and_kept 0 && "$TERRACE" set readonly=on "$VOLUME" && shown_and_kept 1 && "$TERRACE" set readonly=off "$VOLUME" && shown_and_kept 0 || return 1
    # A device that comes back while it is on, and one that is made then.
    "$TERRACE" set readonly=on "$VOLUME" && kill_daemon && "$TERRACE" start "$POOL" && attached && shown_and_kept 1 &&
        "$TERRACE" set readonly=off "$VOLUME" && shown_and_kept 0 || return 1
    "$TERRACE" set readonly=on "$VOLUME" && "$TERRACE" detach "$VOLUME" && attached && shown_and_kept 1 && "$TERRACE" inherit readonly "$VOLUME" && shown_and_kept 0 &&
        ended
}

# Random writes to the device beyond $1 MiB, which go on until they fail or LOAD is ended; returns once they are under way.
load_behind() {
    local begun
    begun=$(sectors_written)
    fio --name=load --ioengine=libaio --direct=1 --filename="$DISK" --rw=randwrite --bs=4k --iodepth=8 --offset="$1M" --size=8M --time_based \
        --runtime=300 >"$SCRATCH/load" 2>&1 &
    LOAD=$!
    while [ $(($(sectors_written) - begun)) -lt 20000 ]; do kill -0 "$LOAD" 2>/dev/null && sleep 0.05 || return 1; done
}
sectors_written() { awk '{ print $7 }' "/sys/block/${DISK#/dev/}/stat"; }

case_detach_under_load() {
    needs fio || return 77
    disk detach_under_load 64M || return
    fio "${verify_job[@]}" --ioengine=libaio --direct=1 --filename="$DISK" --rw=randwrite --do_verify=0 --end_fsync=1 && load_behind 56 || return 1
    refused "$TERRACE" detach "$VOLUME" && grep -q 'in use' "$SCRATCH/refused" && "$TERRACE" detach --force "$VOLUME" || { cat "$SCRATCH/refused"; kill "$LOAD"; return 1; }
    # Whoever has it open may go on to his end; another device can be had at once.
    attached && fio "${verify_job[@]}" --ioengine=libaio --direct=1 --filename="$DISK" --rw=randwrite --verify_only || { kill "$LOAD"; return 1; }
    kill "$LOAD"; wait "$LOAD"
    ended
}

case_kill_under_load() {
    needs fio || return 77
    disk kill_under_load 64M || return
    local link count=0 before=$DISK
    link=$TERRACE_STATE_DIR/run/disk/$VOLUME
    [ "$(readlink "$link")" = "$DISK" ] || { echo "$link leads to $(readlink "$link")"; return 1; }
    fio "${verify_job[@]}" --ioengine=libaio --direct=1 --filename="$link" --rw=randwrite --do_verify=0 --end_fsync=1 && load_behind 56 || return 1
    # Numbered blocks of which each is durable before the next.
    while [ "$count" -lt 200 ] && printf '%-4096d' "$count" |
        dd of="$DISK" bs=4k iflag=fullblock oflag=direct,dsync seek=$((12288 + count)) conv=notrunc status=none; do count=$((count + 1)); done
    kill -0 "$LOAD" && kill_daemon || return 1
    # Its device is gone.
    wait "$LOAD" && { echo "fio did not notice that the daemon died"; return 1; }
    "$TERRACE" start "$POOL" && DISK=$(readlink "$link") && [ -b "$DISK" ] && [ "$count" = 200 ] || return 1
    [ "$DISK" = "$before" ] || { echo "another device now: $before, then $DISK"; return 1; }
    dd if="$DISK" bs=4k skip=12288 count=200 status=none | cmp - <(for count in $(seq 0 199); do printf '%-4096d' "$count"; done) &&
        fio "${verify_job[@]}" --ioengine=libaio --direct=1 --filename="$link" --rw=randwrite --verify_only && ended
}

case_nbd_info_and_copies() {
    needs nbdinfo nbdcopy || return 77
    export_of nbd_info_and_copies 96M || return
    local said word
    image
    said=$(nbdinfo "$URI") || return 1
    for word in 'export-size: 100663296' 'is_read_only: false' 'can_flush: true' 'can_fua: true' 'can_multi_conn: true' 'can_trim: true' 'can_zero: true' \
        'can_fast_zero: true' 'can_cache: true' 'can_df: true' 'base:allocation' 'block_size_preferred: 4096' 'structured packets'; do
        grep -qF "$word" <<<"$said" || { printf 'no "%s" in\n%s\n' "$word" "$said"; return 1; }
    done
    nbdinfo --list "$URI" | grep -qF "export=\"$VOLUME\"" || return 1
    nbdcopy --flush --connections=4 "$IMAGE" "$URI" && nbdcopy "$URI" "$SCRATCH/back" && cmp "$IMAGE" "$SCRATCH/back" || return 1
    # Holes on the way there and back.
    [ "$(referenced)" -lt 6000000 ] && [ "$(nbdinfo --map --totals "$URI" | awk '/hole/ { print $1 }')" -gt 90000000 ] &&
        [ "$(($(stat -c %b "$SCRATCH/back") * 512))" -lt 10000000 ] || { referenced; nbdinfo --map --totals "$URI"; stat "$SCRATCH/back"; return 1; }
    nbdcopy "$URI" - | cmp "$IMAGE" - && rm "$SCRATCH/back" || return 1
    # The same volume at a TCP port beside, with what the other connections wrote.
    local tcp
    tcp=$("$TERRACE" serve "$VOLUME" --nbd tcp:127.0.0.1:0) && nbdcopy --connections=4 "$tcp" "$SCRATCH/back" && cmp "$IMAGE" "$SCRATCH/back" && rm "$SCRATCH/back" && unexported
}

case_qemu_img() {
    needs qemu-img || return 77
    export_of qemu_img 96M || return
    image
    qemu-img convert -n -f raw -O raw "$IMAGE" "$URI" && qemu-img compare -f raw -F raw "$IMAGE" "$URI" &&
        qemu-img info --output=json "$URI" | grep -q '"virtual-size": 100663296' || return 1
    # What is a hole there is one for qemu.
    [ "$(referenced)" -lt 6000000 ] && qemu-img map --output=json "$URI" | grep -q '"zero": true, "data": false' || { referenced; qemu-img map "$URI"; return 1; }
    qemu-img convert -f raw -O qcow2 "$URI" "$SCRATCH/back.qcow2" && qemu-img check -q "$SCRATCH/back.qcow2" &&
        qemu-img compare -f raw -F qcow2 "$URI" "$SCRATCH/back.qcow2" && [ "$(stat -c %s "$SCRATCH/back.qcow2")" -lt 8000000 ] || return 1
    # And back, over what is there.
    qemu-io -f raw -c 'write -P 9 20M 8M' "$URI" && refused qemu-img compare -f raw -F qcow2 "$URI" "$SCRATCH/back.qcow2" &&
        qemu-img convert -n -f qcow2 -O raw "$SCRATCH/back.qcow2" "$URI" && qemu-img compare -f raw -F raw "$IMAGE" "$URI" && rm "$SCRATCH/back.qcow2" && unexported
}

case_qemu_io_requests() {
    needs qemu-io nbdinfo stdbuf || return 77
    export_of qemu_io_requests 16M || return
    qemu-io -f raw -c 'write -f -P 0x11 0 64k' -c 'write -P 0x12 64k 64k' -c flush -c 'discard 0 64k' -c 'read -P 0 0 64k' -c 'read -P 0x12 64k 64k' \
        -c 'write -z 64k 4k' -c 'write -z -u 72k 4k' -c 'read -P 0 64k 4k' -c 'read -P 0x12 68k 4k' -c 'read -P 0 72k 4k' -c 'read -P 0x12 76k 52k' \
        -c 'write -P 0x13 1000 77' -c 'read -P 0x13 1000 77' -c 'read -P 0 936 64' -c 'read -P 0 1077 512' -c 'aio_write -P 0x14 1M 1M' -c 'aio_write -P 0x15 3M 1M' -c aio_flush \
        -c 'read -P 0x14 1M 1M' -c 'read -P 0 2M 1M' -c 'read -P 0x15 3M 1M' "$URI" >"$SCRATCH/said" 2>&1 || { cat "$SCRATCH/said"; return 1; }
    if grep -i 'fail\|error' "$SCRATCH/said"; then return 1; fi
    [ "$(nbdinfo --map "$URI" | awk '{ print $1, $2, $4 }')" = "0 4096 data
4096 65536 hole,zero
69632 4096 data
73728 4096 hole,zero
77824 53248 data
131072 917504 hole,zero
1048576 1048576 data
2097152 1048576 hole,zero
3145728 1048576 data
4194304 12582912 hole,zero" ] || { nbdinfo --map "$URI"; return 1; }
    # With FUA it is there after the daemon died, without any flush: qemu-io would send one as it ends.
    stdbuf -oL qemu-io -f raw -c 'write -f -P 0x21 8M 64k' -c 'write -f -z 3M 64k' -c 'sleep 600000' "$URI" >"$SCRATCH/said" 2>&1 &
    local client=$!
    until [ "$(grep -c '^wrote' "$SCRATCH/said")" = 2 ]; do kill -0 "$client" && sleep 0.01 || return 1; done
    kill_daemon
    kill "$client"; wait "$client"
    "$TERRACE" start "$POOL" && qemu-io -f raw -c 'read -P 0x21 8M 64k' -c 'read -P 0 3M 64k' -c 'read -P 0x15 3136k 64k' "$URI" >"$SCRATCH/said" 2>&1 || { cat "$SCRATCH/said"; return 1; }
    if grep -i 'fail\|error' "$SCRATCH/said"; then return 1; fi
    unexported
}

case_fio_over_nbd() {
    needs fio || return 77
    fio --enghelp 2>/dev/null | grep -qw nbd || { skip_because "this fio has no engine 'nbd'"; return 77; }
    export_of fio_over_nbd 64M || return
    local tcp
    fio "${verify_job[@]}" --ioengine=nbd --uri="$URI" --rw=randwrite --do_verify=1 && tcp=$("$TERRACE" serve "$VOLUME" --nbd tcp:127.0.0.1:0) &&
        fio "${verify_job[@]}" --ioengine=nbd --uri="$tcp" --rw=randwrite --verify_only && unexported
}

case_nbd_for_reading_alone() {
    needs nbdinfo nbdcopy || return 77
    export_of nbd_for_reading_alone 96M || return
    local tcp past
    image
    nbdcopy --flush "$IMAGE" "$URI" && tcp=$("$TERRACE" serve "$VOLUME" --nbd tcp:127.0.0.1:0 --ro) && nbdinfo "$tcp" | grep -q 'is_read_only: true' &&
        refused nbdcopy "$IMAGE" "$tcp" && "$TERRACE" snapshot "$VOLUME@one" && past=$("$TERRACE" serve "$VOLUME@one" --nbd "unix:$SCRATCH/past.sock") &&
        refused nbdcopy "$IMAGE" "$past" && head -c 4096 /dev/zero | nbdcopy --flush - "$URI" || return 1
    # Another client writes, the past stays as it was.
    nbdcopy "$past" - | cmp - "$IMAGE" || return 1
    if command -v qemu-io >/dev/null; then refused qemu-io -f raw -c 'write 0 4k' "$past" || return 1; fi
    # The property, to a client that comes now.
    "$TERRACE" set readonly=on "$VOLUME" && nbdinfo "$URI" | grep -q 'is_read_only: true' && refused nbdcopy "$IMAGE" "$URI" &&
        "$TERRACE" set readonly=off "$VOLUME" && nbdcopy --flush "$IMAGE" "$URI" && nbdcopy "$URI" - | cmp - "$IMAGE" || return 1
    "$TERRACE" unserve "$VOLUME@one" && "$TERRACE" destroy --yes "$VOLUME@one" && unexported
}

case_nbd_new_size() {
    needs nbdinfo nbdcopy || return 77
    export_of nbd_new_size 32M || return
    "$TERRACE" volume resize "$VOLUME" 96M && [ "$(nbdinfo --size "$URI")" = 100663296 ] || return 1
    image
    nbdcopy --flush "$IMAGE" "$URI" && refused "$TERRACE" volume resize "$VOLUME" 64M </dev/null && "$TERRACE" volume resize "$VOLUME" 64M --yes &&
        [ "$(nbdinfo --size "$URI")" = 67108864 ] && nbdcopy "$URI" - | cmp -n 67108864 - "$IMAGE" || return 1
    # What was cut off is not there when there is room again.
    "$TERRACE" volume resize "$VOLUME" 96M && nbdcopy "$URI" - | tail -c 33554432 | cmp -n 33554432 - /dev/zero && unexported
}

case_nbd_after_a_kill() {
    needs nbdcopy || return 77
    export_of nbd_after_a_kill 96M || return
    image
    nbdcopy --flush "$IMAGE" "$URI" && kill_daemon && "$TERRACE" start "$POOL" && nbdcopy "$URI" - | cmp - "$IMAGE" && unexported
}

# An authority, and a server and a client that it signed, in a directory $1, with the names that libnbd and qemu look for.
certificates() {
    local who new=(openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes)
    mkdir "$1" && "${new[@]}" -x509 -days 3650 -subj /CN=authority -keyout "$1/ca-key.pem" -out "$1/ca-cert.pem" || return 1
    for who in server client; do
        "${new[@]}" -subj "/CN=$who" -keyout "$1/$who-key.pem" -out "$1/$who.csr" &&
            openssl x509 -req -in "$1/$who.csr" -CA "$1/ca-cert.pem" -CAkey "$1/ca-key.pem" -CAcreateserial -days 3650 -out "$1/$who-cert.pem" \
                -extfile <(echo 'subjectAltName=DNS:localhost,IP:127.0.0.1') || return 1
    done
}

case_tls_with_certificates() {
    needs openssl nbdinfo nbdcopy || return 77
    local address host port ours=$SCRATCH/ours stranger=$SCRATCH/stranger
    certificates "$ours" && certificates "$stranger" && volume tls_with_certificates 96M || return
    image
    address=$("$TERRACE" serve "$VOLUME" --nbd tcp:127.0.0.1:0 --tls-cert "$ours/server-cert.pem" --tls-key "$ours/server-key.pem" --tls-ca "$ours/ca-cert.pem") || return 1
    host=${address#*//} host=${host%%/*} port=${host##*:}
    # Who does not begin TLS, has no certificate or one of another authority, gets nothing.
    refused nbdinfo "nbd://$host/$VOLUME" && refused nbdinfo "nbds://$host/$VOLUME" && refused nbdinfo "nbds://$host/$VOLUME?tls-certificates=$stranger" || return 1
    URI="nbds://$host/$VOLUME?tls-certificates=$ours"
    if nbdinfo "$URI" 2>&1 | grep -q 'compiled without TLS'; then
        skip_because 'this libnbd has no TLS'
        unexported && return 77
    fi
    nbdinfo "$URI" | grep -q 'with TLS' && nbdcopy --flush "$IMAGE" "$URI" && nbdcopy "$URI" "$SCRATCH/back" && cmp "$IMAGE" "$SCRATCH/back" && rm "$SCRATCH/back" || return 1
    if command -v qemu-img >/dev/null; then
        local of="driver=nbd,server.type=inet,server.host=127.0.0.1,server.port=$port,export=$VOLUME,tls-creds=t"
        qemu-img convert --object "tls-creds-x509,id=t,dir=$ours,endpoint=client" --image-opts "$of" -O raw "$SCRATCH/back" && cmp "$IMAGE" "$SCRATCH/back" &&
            refused qemu-img info --object "tls-creds-x509,id=t,dir=$stranger,endpoint=client" --image-opts "$of" || return 1
        rm "$SCRATCH/back"
    fi
    unexported
}

if ! timeout 60 "$TERRACE" pool create "$POOL" --tier "fast=$SCRATCH/fast.img:1G" --tier "slow=$SCRATCH/slow.img:1G" -o memory=256M; then
    failed 1 "no pool could be made"
    exit 1
fi
[ $# -eq 0 ] && set -- "${CASES[@]}"
run_cases "$@"
