#!/usr/bin/env bash
# overlayfs, as Docker and Podman use it, with Terrace as its layers: by root, and in a user namespace as rootless Podman
# mounts it. Each case is a function `case_NAME`.
#   scripts/overlay-test.sh TERRACE-BINARY [CASE…]
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/stage.sh
. scripts/scratch-pool.sh
. scripts/cases.sh
scratch_begin "$1"
shift
CASES=(upper_layer upper_layer_of_a_user renamed_directories metadata_copies indexed_links lower_layer layers_after_kill)

# A lower layer at $1: what an image has.
image() {
    mkdir -p "$1/etc/conf.d" "$1/bin" "$1/deep/er/tree" "$1/gone" "$1/swap" &&
        echo 'lower file' >"$1/etc/file" && echo 'lower other' >"$1/etc/other" && echo 'lower conf' >"$1/etc/conf.d/one" &&
        echo deep >"$1/deep/er/tree/leaf" && echo gone >"$1/gone/one" && echo swap >"$1/swap/one" &&
        printf '#!/bin/sh\necho ran "$@"\n' >"$1/bin/tool" && chmod 755 "$1/bin/tool" && ln -s file "$1/etc/link" &&
        echo linked >"$1/etc/first" && ln "$1/etc/first" "$1/etc/second" && head -c 300000 /dev/urandom >"$1/etc/big"
}

# Layers of a case: $1/lower on the machine's own filesystem, $1/upper and $1/work on Terrace.
layers() {
    BASE=$SCRATCH/overlay-$1 UPPER=$MOUNT/$1
    mkdir -p "$BASE/lower" "$BASE/merged" "$UPPER/upper" "$UPPER/work" && image "$BASE/lower"
}

# $1 more options
overlay() {
    mount -t overlay overlay -o "lowerdir=$BASE/lower,upperdir=$UPPER/upper,workdir=$UPPER/work$1" "$BASE/merged" 2>"$BASE/err" &&
        return 0
    cat "$BASE/err"
    dmesg 2>/dev/null | grep overlayfs | tail -n 3
    return 1
}

again() { umount "$BASE/merged" && overlay "$1"; }
same() { [ "$1" = "$2" ] || { echo "'$1' instead of '$2'"; return 1; }; }
# A whiteout.
whiteout() { [ -c "$1" ] && same "$(stat -c '%t:%T %a' "$1")" "0:0 0"; }
# The attribute $2 of $1; $XATTRS is trusted.overlay or user.overlay.
overlay_xattr() { getfattr --only-values --absolute-names -n "$XATTRS.$2" "$1" 2>/dev/null; }

# What programs do to a container's files. $1 where it is mounted, $2 the upper layer.
changes() {
    local m=$1 up=$2
    # A file modified: copied up whole, the lower one stays.
    echo more >>"$m/etc/file" && same "$(cat "$m/etc/file")" $'lower file\nmore' && [ -f "$up/etc/file" ] || return 1
    printf 'x' | dd of="$m/etc/big" bs=1 seek=150000 conv=notrunc status=none && same "$(stat -c %s "$up/etc/big")" 300000 || return 1
    chmod 700 "$m/etc/other" && setfattr -n user.color -v green "$m/etc/other" && same "$(stat -c %a "$up/etc/other")" 700 &&
        same "$(getfattr --only-values --absolute-names -n user.color "$m/etc/other")" green || return 1
    # Removed: a whiteout hides it. Made again: the whiteout goes.
    rm "$m/etc/conf.d/one" && whiteout "$up/etc/conf.d/one" && [ ! -e "$m/etc/conf.d/one" ] &&
        same "$(ls -A "$m/etc/conf.d")" "" || return 1
    echo new >"$m/etc/conf.d/one" && same "$(cat "$up/etc/conf.d/one")" new || return 1
    # Renamed: the new name is there, a whiteout where the old one was.
    mv "$m/etc/other" "$m/etc/renamed" && whiteout "$up/etc/other" && [ -f "$up/etc/renamed" ] && [ ! -e "$m/etc/other" ] || return 1
    # A directory removed and made again is opaque.
    rm -r "$m/gone" && whiteout "$up/gone" && [ ! -e "$m/gone" ] || return 1
    mkdir "$m/gone" && same "$(ls -A "$m/gone")" "" && same "$(overlay_xattr "$up/gone" opaque)" y || return 1
    # Names change places.
    rm -r "$m/swap" && mkdir "$m/swap" && echo fresh >"$m/swap/two" && same "$(ls "$m/swap")" two || return 1
    # Programs, links, files without names, types in listings.
    same "$("$m/bin/tool" a b)" "ran a b" && cp "$m/bin/tool" "$m/bin/copy" && same "$("$m/bin/copy")" "ran" || return 1
    ln "$m/etc/renamed" "$m/etc/hard" && same "$(stat -c %h "$m/etc/renamed")" 2 && same "$(cat "$m/etc/link")" $'lower file\nmore' || return 1
    same "$(find "$m" -type d | wc -l)" "$(find "$m" -printf '%y\n' | grep -c d)" || return 1
    python3 -c "import os, sys
fd = os.open(sys.argv[1], os.O_TMPFILE | os.O_RDWR, 0o600)
os.write(fd, b'unnamed'); os.link('/proc/self/fd/%d' % fd, sys.argv[1] + '/named', follow_symlinks=True)" "$m/etc" 2>/dev/null ||
        echo unnamed >"$m/etc/named"
    [ -s "$m/etc/named" ]
}

# What they left, after the layers were mounted anew.
remain() {
    local m=$1
    same "$(cat "$m/etc/file")" $'lower file\nmore' && same "$(cat "$m/etc/conf.d/one")" new && [ ! -e "$m/etc/other" ] &&
        same "$(stat -c %a "$m/etc/renamed")" 700 && same "$(ls -A "$m/gone")" "" && same "$(ls "$m/swap")" two &&
        same "$(dd if="$m/etc/big" bs=1 skip=150000 count=1 status=none)" x && [ -s "$m/etc/named" ]
}

case_upper_layer() {
    needs setfattr || return 77
    XATTRS=trusted.overlay
    layers upper && overlay "" && changes "$BASE/merged" "$UPPER/upper" && again "" && remain "$BASE/merged" || return 1
    same "$(cat "$BASE/lower/etc/file")" "lower file" && umount "$BASE/merged"
}

case_upper_layer_of_a_user() {
    needs setfattr unshare || return 77
    unshare -Urm true 2>/dev/null || { skip_because "no user namespaces"; return 77; }
    XATTRS=user.overlay
    layers rootless && chown -R 1000:1000 "$UPPER" "$BASE" && chmod 755 "$SCRATCH" || return 1
    export -f overlay again same whiteout overlay_xattr changes remain
    export BASE UPPER SCRATCH XATTRS
    setpriv --reuid=1000 --regid=1000 --clear-groups unshare -Urm bash -c '
        overlay ,userxattr || exit 1
        changes "$BASE/merged" "$UPPER/upper" && again ,userxattr && remain "$BASE/merged"'
}

case_renamed_directories() {
    needs setfattr || return 77
    XATTRS=trusted.overlay
    layers redirect && overlay ,redirect_dir=on || return 1
    local m=$BASE/merged
    # One call, not a copy: the upper layer says where the lower content is.
    python3 -c 'import os, sys; os.rename(*sys.argv[1:])' "$m/deep" "$m/moved" || return 1
    same "$(cat "$m/moved/er/tree/leaf")" deep && whiteout "$UPPER/upper/deep" && same "$(overlay_xattr "$UPPER/upper/moved" redirect)" deep &&
        [ ! -e "$m/deep" ] && again ,redirect_dir=on && same "$(cat "$m/moved/er/tree/leaf")" deep && umount "$m" || return 1
    # Without, the caller has to copy, and mv does.
    layers plain && overlay ,redirect_dir=off || return 1
    m=$BASE/merged
    python3 -c 'import errno, os, sys
try: os.rename(*sys.argv[1:])
except OSError as error: sys.exit(0 if error.errno == errno.EXDEV else 2)
sys.exit(1)' "$m/deep" "$m/moved" || { echo "a lower directory was renamed"; return 1; }
    mv "$m/deep" "$m/moved" && same "$(cat "$m/moved/er/tree/leaf")" deep && whiteout "$UPPER/upper/deep" && umount "$m"
}

case_metadata_copies() {
    needs setfattr || return 77
    XATTRS=trusted.overlay
    layers metacopy && overlay ,metacopy=on || return 1
    chmod 600 "$BASE/merged/etc/big" && same "$(stat -c '%s %a' "$BASE/merged/etc/big")" "300000 600" &&
        cmp "$BASE/merged/etc/big" "$BASE/lower/etc/big" && [ "$(stat -c %b "$UPPER/upper/etc/big")" -lt 100 ] &&
        again ,metacopy=on && cmp "$BASE/merged/etc/big" "$BASE/lower/etc/big" && umount "$BASE/merged"
}

# With an index the kernel finds copied files by file handles, so that hard links stay linked.
case_indexed_links() {
    layers index && overlay ,index=on,nfs_export=on || return 1
    grep -q 'index=on' /proc/self/mountinfo || { skip_because "the kernel makes no index here: $(dmesg | grep overlayfs | tail -n 1)"; umount "$BASE/merged"; return 77; }
    echo more >>"$BASE/merged/etc/first" && same "$(cat "$BASE/merged/etc/second")" $'linked\nmore' &&
        same "$(stat -c %h "$BASE/merged/etc/second")" 2 && again ,index=on,nfs_export=on &&
        same "$(cat "$BASE/merged/etc/second")" $'linked\nmore' && umount "$BASE/merged"
}

case_lower_layer() {
    local own=$SCRATCH/own
    BASE=$SCRATCH/overlay-lower UPPER=$own
    mkdir -p "$MOUNT/lower" "$MOUNT/lower-too" "$BASE/merged" "$own/upper" "$own/work" && image "$MOUNT/lower" && echo two >"$MOUNT/lower-too/two" &&
        mount -t tmpfs tmpfs "$own" && mkdir "$own/upper" "$own/work" &&
        mount -t overlay overlay -o "lowerdir=$MOUNT/lower-too:$MOUNT/lower,upperdir=$own/upper,workdir=$own/work" "$BASE/merged" || return 1
    local m=$BASE/merged
    same "$(cat "$m/two")" two && same "$("$m/bin/tool" x)" "ran x" && echo more >>"$m/etc/file" && rm "$m/etc/other" &&
        same "$(cat "$MOUNT/lower/etc/file")" "lower file" && [ -f "$MOUNT/lower/etc/other" ] && [ ! -e "$m/etc/other" ] &&
        umount "$m" && umount "$own"
}

# The daemon is killed with layers that were synced; they are whole when it is back.
case_layers_after_kill() {
    needs setfattr || return 77
    XATTRS=trusted.overlay
    layers killed && overlay "" && changes "$BASE/merged" "$UPPER/upper" && sync -f "$UPPER/upper/etc/file" && umount "$BASE/merged" || return 1
    echo synced | dd of="$UPPER/mark" conv=fsync status=none || return 1
    kill_daemon && timeout 60 "$TERRACE" start "$POOL" && overlay "" && remain "$BASE/merged" && umount "$BASE/merged"
}

# Also after a case that failed.
trap 'for place in "$SCRATCH"/overlay-*/merged "$SCRATCH/own"; do mountpoint -q "$place" && umount -l "$place"; done; scratch_end' EXIT
if ! grep -qw overlay /proc/filesystems && ! modprobe overlay 2>/dev/null; then
    skipped ${#CASES[@]} "no overlayfs in this kernel"
    exit 0
fi
if ! scratch_pool 512M 1G; then
    failed 1 "no pool, filesystem and mount could be made"
    exit 1
fi
[ $# -eq 0 ] && set -- "${CASES[@]}"
run_cases "$@"
