# shellcheck shell=bash
# A pool and a mount of its own for a test, taken away again however the test ends: sourced, not run. Sets TERRACE to
# the binary, SCRATCH to a directory, POOL and MOUNT. Nothing outside SCRATCH is touched.

scratch_begin() {
    TERRACE=$1
    SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/terrace-test.XXXXXX")
    export TERRACE_STATE_DIR=$SCRATCH/state XDG_RUNTIME_DIR=$SCRATCH/run
    mkdir -p "$TERRACE_STATE_DIR" "$XDG_RUNTIME_DIR"
    POOL=test$$
    MOUNT=$SCRATCH/mount
    mkdir "$MOUNT"
    trap scratch_end EXIT
    trap 'exit 130' INT TERM
}

# $1 fast size, $2 slow size
scratch_pool() {
    timeout 60 "$TERRACE" pool create "$POOL" --tier "fast=$SCRATCH/fast.img:$1" --tier "slow=$SCRATCH/slow.img:$2" &&
        timeout 60 "$TERRACE" fs create "$POOL/data" &&
        timeout 60 "$TERRACE" mount "$POOL/data" "$MOUNT" &&
        mountpoint -q "$MOUNT"
}

# The daemon that holds the pool.
scratch_daemon() {
    timeout 20 "$TERRACE" status "$POOL" --json | tr ',{}' '\n\n\n' | sed -n 's/^ *"daemon_pid": *\([0-9]*\).*/\1/p' | head -n 1
}

scratch_end() {
    local status=$? pid
    pid=$(scratch_daemon 2>/dev/null)
    timeout 60 "$TERRACE" unmount "$MOUNT" >/dev/null 2>&1
    timeout 60 "$TERRACE" stop "$POOL" >/dev/null 2>&1
    if [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null; then kill -9 "$pid" 2>/dev/null; fi
    mountpoint -q "$MOUNT" && umount -l "$MOUNT" 2>/dev/null
    rm -rf "$SCRATCH"
    return "$status"
}
