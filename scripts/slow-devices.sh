# shellcheck shell=bash
# Two devices that a control group slows down for a script and what it starts, and the wait until the mover rests: sourced
# by the scripts that measure tiers as root, after scripts/scratch-pool.sh.
GROUP='' HOME_GROUP=''

# $1 device, $2 its requests a second, $3 and $4 the same of another: slowed down for this script and what it starts from now on,
# the daemon too. Fails where that cannot be, with slow_devices_leave still to be called.
slow_devices_enter() {
    local name=terrace-bench-$$ direction
    if [ -d /sys/fs/cgroup/blkio ]; then
        HOME_GROUP=/sys/fs/cgroup/blkio GROUP=/sys/fs/cgroup/blkio/$name
        mkdir "$GROUP" || return 1
        for direction in read write; do
            echo "$(device_number "$1") $2" >"$GROUP/blkio.throttle.${direction}_iops_device" &&
                echo "$(device_number "$3") $4" >"$GROUP/blkio.throttle.${direction}_iops_device" || return 1
        done
    elif grep -qw io /sys/fs/cgroup/cgroup.controllers 2>/dev/null; then
        HOME_GROUP=/sys/fs/cgroup GROUP=/sys/fs/cgroup/$name
        echo +io >/sys/fs/cgroup/cgroup.subtree_control
        mkdir "$GROUP" || return 1
        echo "$(device_number "$1") riops=$2 wiops=$2" >"$GROUP/io.max" && echo "$(device_number "$3") riops=$4 wiops=$4" >"$GROUP/io.max" || return 1
    else
        echo "there is no blkio or io control group here: mount one" >&2
        return 1
    fi
    echo $$ >"$GROUP/cgroup.procs"
}
device_number() { cat "/sys/block/${1#/dev/}/dev"; }
slow_devices_leave() {
    [ -n "$HOME_GROUP" ] && echo $$ >"$HOME_GROUP/cgroup.procs"
    [ -n "$GROUP" ] && for _ in $(seq 50); do rmdir "$GROUP" 2>/dev/null && break; sleep 0.1; done
    HOME_GROUP='' GROUP=''
}

# Until the mover has had nothing to do for a round of its policies.
settle() {
    local quiet=0
    for _ in $(seq 120); do
        if [ "$("$TERRACE" jobs "$POOL" --json | grep -c '"state": *"\(running\|waiting\)"')" = 0 ]; then quiet=$((quiet + 1)); else quiet=0; fi
        [ $quiet -ge 12 ] && return
        sleep 1
    done
    echo "the mover is still at work after 2 minutes" >&2
    "$TERRACE" jobs "$POOL" >&2
}
