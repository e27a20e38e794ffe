#!/usr/bin/env bash
# Boots a virtual machine (qemu, emulated: no /dev/kvm is needed) from a volume, over NBD and over vhost-user-blk. The
# first guest makes a filesystem on its disk and puts a system there; the others have their root on it, write, flush,
# trim, drop their caches and read again what they and the guests before them wrote. Between two guests the daemon is
# killed with -9; under the last ones it is killed and started again while they write.
#   scripts/guest-boot.sh TERRACE-BINARY [--fetch]
# A kernel is taken from TERRACE_GUEST_KERNEL (with TERRACE_GUEST_MODULES, its directory below /lib/modules), from
# TERRACE_GUEST_PACKAGE (a linux-image-*.deb), or from /boot; with --fetch Debian's small one is downloaded. Skipped,
# with the reason, where qemu, busybox or a kernel is missing.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. scripts/stage.sh
binary=${1:?the terrace binary} fetch=${2:-}
# shellcheck source=scripts/guest.sh
. scripts/guest.sh
guest_tools || { skipped 1 "guest boot: $REASON"; exit 0; }
. scripts/scratch-pool.sh
scratch_begin "$binary"
cleanup() {
    guest_kill
    scratch_end
}
trap cleanup EXIT
guest_kernel small "$fetch" '' || { skipped 1 "guest boot: $REASON"; exit 0; }

# What the kernel starts first: loads the drivers, then prepares the disk or goes on with the system there.
guest_root virtio_pci virtio_blk crc32c_generic ext4 && mkdir "$ROOT/new" || exit 1
cat >"$ROOT/init" <<'INIT'
#!/bin/busybox sh
. /begin
stop() { end "FAILED $*"; }
for _ in 1 2 3 4 5 6 7 8 9 10; do [ -b /dev/vda ] && break; sleep 1; done
[ -b /dev/vda ] || stop "there is no disk"
case $(cat /proc/cmdline) in
*terrace=prepare*)
    # busybox makes ext2; the guests mount it with the ext4 driver. Over vhost-user the disk has blocks of 4 KiB.
    mke2fs -b 4096 -F /dev/vda >/dev/null 2>&1 || stop mke2fs
    mount -t ext4 /dev/vda /new || stop "mount what was made"
    mkdir -p /new/bin /new/dev /new/proc /new/sys /new/data
    cp /bin/busybox /new/bin/busybox && cp /system /new/init || stop "copy the system"
    umount /new || stop umount
    echo "GUEST-OK prepared"
    poweroff -f
    ;;
esac
mount -t ext4 /dev/vda /new || stop "mount the root"
umount /proc /sys
mount -o move /dev /new/dev
exec switch_root /new /init
INIT
# The system on the disk. `seconds` (of the kernel's command line): how long it writes.
cat >"$ROOT/system" <<'SYSTEM'
#!/bin/busybox sh
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
/bin/busybox mkdir -p /usr/bin /usr/sbin /sbin
/bin/busybox --install -s
mount -t proc proc /proc; mount -t sysfs sysfs /sys
stop() { echo "GUEST-FAILED $*"; sync; poweroff -f; }
for word in $(cat /proc/cmdline); do case $word in terrace=*) name=${word#*=} ;; seconds=*) seconds=${word#*=} ;; esac; done
echo "disk: $(cat /sys/block/vda/size) sectors, $(cat /sys/block/vda/queue/logical_block_size) bytes a block, $(cat /sys/block/vda/queue/write_cache)"
cd /data
[ -f sums ] && { sha256sum -c sums >/dev/null || stop "what an earlier guest wrote differs"; echo "earlier files: $(wc -l <sums)"; }
round=0 end=$(($(date +%s) + seconds))
while :; do
    file=$name.$round
    dd if=/dev/urandom of="$file" bs=64k count=24 conv=fsync 2>/dev/null || stop "write $file"
    sha256sum "$file" >>sums && sync || stop sync
    round=$((round + 1))
    echo "GUEST-WROTE $round"
    # Everything is flushed: here the daemon is killed. (What was written and not flushed would be lost, as with any disk
    # that loses its cache, but a client that connects again by itself does not notice: docs/durability.md.)
    case $name in *killed) [ "$round" -eq 2 ] && sleep 4 ;; esac
    [ "$(date +%s)" -lt "$end" ] || break
    # The disk is small: only the newest stay.
    [ "$round" -gt 6 ] && { old=$name.$((round - 6)); sed -i "/  $old\$/d" sums; rm "$old"; }
done
fstrim / >/dev/null 2>&1 || echo "no fstrim on this filesystem"
echo 3 >/proc/sys/vm/drop_caches
sha256sum -c sums >/dev/null || stop "what was written reads differently"
cd / && sync && mount -o remount,ro / || stop "remount"
echo "GUEST-OK $name $round"
poweroff -f
SYSTEM
chmod +x "$ROOT/system"
guest_pack

# $1 name of the guest, $2 seconds it writes, rest: the disk. In the background; its console is $SCRATCH/console.NAME
start_guest() {
    local name=$1 seconds=$2
    shift 2
    CONSOLE=$SCRATCH/console.$name
    guest_start "terrace=$name seconds=$seconds" -accel tcg -cpu max -machine q35,memory-backend=memory -smp 2 -m 512 \
        -object memory-backend-memfd,id=memory,size=512M,share=on "$@"
}
# $1 name: waits until it ends and says whether it was content.
end_guest() {
    local content=no
    guest_wait 300 && content=yes
    grep -aE 'GUEST-(OK|FAILED)|^disk:|^earlier' "$CONSOLE" | tr -d '\r' | sed "s/^/  $1: /"
    if [ $content = yes ]; then passed 1; return; fi
    guest_complaint 15
    failed 1 "the guest '$1'"
    return 1
}
guest() { start_guest "$@" && end_guest "$1"; }
# Kills the daemon when the guest $1 has written $2 times, and starts it again.
interrupt() {
    local waited=0 pid
    until grep -aqE "GUEST-WROTE $2\b" "$SCRATCH/console.$1" || ! guest_runs || [ $((waited += 1)) -gt 1200 ]; do sleep 0.1; done
    pid=$(scratch_daemon)
    kill -9 "$pid" && timeout 60 "$TERRACE" start "$POOL"
}

timeout 60 "$TERRACE" pool create "$POOL" --tier "fast=$SCRATCH/fast.img:512M" && timeout 60 "$TERRACE" volume create "$POOL/disk" --size 64M ||
    { failed 1 "no volume"; exit 1; }
nbd=(-blockdev "driver=nbd,node-name=d,server.type=unix,server.path=$SCRATCH/nbd.sock,export=$POOL/disk,discard=unmap,reconnect-delay=60"
    -device virtio-blk-pci,drive=d)
vhost=(-chardev "socket,id=c,path=$SCRATCH/vhost.sock,reconnect=1" -device vhost-user-blk-pci,chardev=c,num-queues=2)
timeout 60 "$TERRACE" serve "$POOL/disk" --nbd "unix:$SCRATCH/nbd.sock" >/dev/null || { failed 1 "serve --nbd"; exit 1; }
guest prepare 0 "${nbd[@]}" && guest nbd 1 "${nbd[@]}" || exit 1
kill -9 "$(scratch_daemon)" && timeout 60 "$TERRACE" start "$POOL" || { failed 1 "the pool does not start after kill -9"; exit 1; }
guest nbd-after-kill 1 "${nbd[@]}" || exit 1
start_guest nbd-killed 12 "${nbd[@]}" && interrupt nbd-killed 2 && end_guest nbd-killed || exit 1
timeout 60 "$TERRACE" unserve "$POOL/disk" >/dev/null
timeout 60 "$TERRACE" serve "$POOL/disk" --vhost-user "$SCRATCH/vhost.sock" >/dev/null || { failed 1 "serve --vhost-user"; exit 1; }
guest vhost 1 "${vhost[@]}" || exit 1
start_guest vhost-killed 12 "${vhost[@]}" && interrupt vhost-killed 2 && end_guest vhost-killed || exit 1
guest vhost-again 1 "${vhost[@]}" || exit 1
timeout 60 "$TERRACE" unserve "$POOL/disk" >/dev/null
timeout 120 "$TERRACE" scrub "$POOL" --wait || { failed 1 "scrub after the guests"; exit 1; }
passed 1
