# shellcheck shell=bash
# Programs that are told that what they wrote is durable, and the question whether it is still there after the daemon or
# the power went: sourced after scripts/scratch-pool.sh by what cuts. Each writer notes, outside of the pool, what it
# was told, and ends when its files are gone from under it. A program that is not installed is left out.

HAVE_SQLITE=$(command -v sqlite3) HAVE_GIT=$(command -v git) HAVE_POSTGRES=''
export GIT_CONFIG_COUNT=4 GIT_CONFIG_KEY_0=core.fsync GIT_CONFIG_VALUE_0=all GIT_CONFIG_KEY_1=core.fsyncMethod \
    GIT_CONFIG_VALUE_1=fsync GIT_CONFIG_KEY_2=gc.auto GIT_CONFIG_VALUE_2=0 GIT_CONFIG_KEY_3=safe.directory \
    GIT_CONFIG_VALUE_3='*' GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@t GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@t

# Replaces the note whole: it is read while it is written.
note() { echo "$2" >"$SCRATCH/next.$1" && mv "$SCRATCH/next.$1" "$SCRATCH/acked.$1"; }
# From the cut on nobody writes: any command of terrace would start the daemon again, and the mount would be back.
not_cut() { [ ! -e "$SCRATCH/cut" ]; }
# $1 the daemon
cut_now() { : >"$SCRATCH/cut" && kill -9 "$1"; }
number_in() { cat "$SCRATCH/acked.$1" 2>/dev/null || echo 0; }

# The files of all writers, in the directory $1, made durable.
writers_prepare() {
    WRITTEN=$1
    : >"$WRITTEN/lines"
    [ -z "$HAVE_SQLITE" ] || sqlite3 "$WRITTEN/base.db" "CREATE TABLE t(i INTEGER PRIMARY KEY, x BLOB)" || return 1
    [ -z "$HAVE_GIT" ] || git init -q "$WRITTEN/repository" || return 1
    sync -f "$WRITTEN"
}

# Starts them; their process ids are in WRITERS. What was on its way when the last cut came may have become durable
# without having been told so, so that counting starts from what is there.
writers_start() {
    local rows=0
    note lines "$(wc -l <"$WRITTEN/lines")"
    WRITERS=()
    rm -f "$SCRATCH/cut"
    log_writer $(($(number_in lines) + 1)) & WRITERS+=($!)
    if [ -n "$HAVE_SQLITE" ]; then
        rows=$(sqlite3 "$WRITTEN/base.db" 'SELECT count(*) FROM t') || return 1
        note rows "$rows"
        sqlite_writer "$rows" & WRITERS+=($!)
    fi
    if [ -n "$HAVE_GIT" ]; then git_writer & WRITERS+=($!); fi
    if [ -n "$HAVE_POSTGRES" ]; then
        postgres_start || return 1
        rows=$(postgres_ask 'SELECT count(*) FROM t') || return 1
        note inserted "$rows"
        postgres_writer "$rows" & WRITERS+=($!)
    fi
}

# Whether everything that they were told is durable is there; says what is not.
writers_check() {
    local acked check there
    acked=$(number_in lines)
    if [ "$(head -n "$acked" "$WRITTEN/lines" | sha256sum)" != "$(seq 1 "$acked" | sed 's/^/line /' | sha256sum)" ]; then
        echo "of $acked lines that were synced, $(wc -l <"$WRITTEN/lines") are there"
        return 1
    fi
    if [ -n "$HAVE_SQLITE" ]; then
        check=$(sqlite3 "$WRITTEN/base.db" 'PRAGMA integrity_check')
        there=$(sqlite3 "$WRITTEN/base.db" 'SELECT count(*) FROM t')
        if [ "$check" != ok ] || [ "$there" -lt "$(number_in rows)" ]; then
            echo "SQLite says '$check' and has $there of $(number_in rows) committed rows"
            return 1
        fi
    fi
    if [ -n "$HAVE_GIT" ] && [ -f "$SCRATCH/acked.commit" ]; then
        if ! git -C "$WRITTEN/repository" cat-file -e "$(cat "$SCRATCH/acked.commit")" ||
            ! git -C "$WRITTEN/repository" fsck --full >"$SCRATCH/fsck" 2>&1; then
            head "$SCRATCH/fsck"
            echo "git lost a commit that it was told is durable, or is damaged"
            return 1
        fi
    fi
    if [ -n "$HAVE_POSTGRES" ]; then
        postgres_start || { echo "PostgreSQL does not recover"; return 1; }
        there=$(postgres_ask 'SELECT count(*) FROM t WHERE length(x) = 400')
        check=$("$HAVE_POSTGRES/pg_amcheck" -U postgres -h "$SCRATCH/postgres" -d postgres --heapallindexed 2>&1) || {
            echo "PostgreSQL's own check fails: $check"
            return 1
        }
        if [ "${there:-0}" -lt "$(number_in inserted)" ]; then
            echo "PostgreSQL has ${there:-0} of $(number_in inserted) committed rows"
            return 1
        fi
    fi
}

# What has been acknowledged, in words.
writers_told() {
    printf '%s lines, %s rows, %s inserts' "$(number_in lines)" "$(number_in rows)" "$(number_in inserted)"
}

log_writer() {
    local i=$1
    while not_cut && printf 'line %d\n' "$i" | dd of="$WRITTEN/lines" oflag=append conv=notrunc,fsync status=none 2>/dev/null; do
        note lines "$i"
        i=$((i + 1))
    done
}

# EXTRA: with FULL the deletion of the journal, which is the commit, is not synced, and a cut may take the last one back.
# A success that comes after the cut does not count: where the directory cannot be opened to be synced, as after the daemon's
# death, SQLite takes that for done (unixDelete in its os_unix.c).
sqlite_writer() {
    local rows=$1
    while not_cut && sqlite3 -cmd '.timeout 5000' "$WRITTEN/base.db" \
        "PRAGMA synchronous=EXTRA; INSERT INTO t SELECT NULL, randomblob(700) FROM generate_series(1, 20);" >/dev/null 2>&1 && not_cut; do
        rows=$((rows + 20))
        note rows "$rows"
    done
}

git_writer() {
    local i=0
    # Left over by the cut, as after any: git says so itself.
    rm -f "$WRITTEN"/repository/.git/*.lock "$WRITTEN"/repository/.git/refs/heads/*.lock
    git -C "$WRITTEN/repository" reset -q --hard >/dev/null 2>&1
    while not_cut && head -c 3000 /dev/urandom >"$WRITTEN/repository/file$((i % 7))" 2>/dev/null &&
        git -C "$WRITTEN/repository" add -A 2>/dev/null && git -C "$WRITTEN/repository" commit -q -m "$i" 2>/dev/null; do
        git -C "$WRITTEN/repository" rev-parse HEAD >"$SCRATCH/next.commit" 2>/dev/null || return
        mv "$SCRATCH/next.commit" "$SCRATCH/acked.commit"
        i=$((i + 1))
    done
}

# A server of its own with its files in $1, which nobody else can reach: a socket below SCRATCH, no port. It will not run
# as root, so that this needs root and the user that the package makes. Fails if it cannot be had.
postgres_prepare() {
    local directory
    for directory in /usr/lib/postgresql/*/bin; do [ -x "$directory/postgres" ] && HAVE_POSTGRES=$directory; done
    if [ -z "$HAVE_POSTGRES" ] || [ "$(id -u)" != 0 ] || ! id postgres >/dev/null 2>&1; then HAVE_POSTGRES='' && return 1; fi
    POSTGRES_DATA=$1
    chmod 711 "$SCRATCH" && mkdir "$SCRATCH/postgres" "$POSTGRES_DATA" && chown postgres: "$SCRATCH/postgres" "$POSTGRES_DATA" &&
        as_postgres "$HAVE_POSTGRES/initdb" -A trust -U postgres --data-checksums "$POSTGRES_DATA" >"$SCRATCH/initdb" 2>&1 &&
        postgres_start && postgres_ask 'CREATE TABLE t(i serial PRIMARY KEY, x text); CREATE EXTENSION amcheck' >/dev/null
}
as_postgres() { setpriv --reuid=postgres --regid=postgres --init-groups "$@"; }
postgres_ask() {
    "$HAVE_POSTGRES/psql" -q -A -t -v ON_ERROR_STOP=1 -U postgres -h "$SCRATCH/postgres" -d postgres -c "$1" 2>>"$SCRATCH/psql"
}
postgres_start() {
    postgres_ask 'SELECT 1' >/dev/null && return 0
    as_postgres "$HAVE_POSTGRES/pg_ctl" -D "$POSTGRES_DATA" -w -t 120 -l "$SCRATCH/postgres/log" \
        -o "-k $SCRATCH/postgres -c listen_addresses= -c shared_buffers=32MB -c checkpoint_timeout=30s" start >/dev/null 2>&1 &&
        head -n 1 "$POSTGRES_DATA/postmaster.pid" >"$SCRATCH/postmaster"
}
# As the machine would have done to it, if the daemon died of a power cut.
postgres_kill() {
    local pid
    pid=$(cat "$SCRATCH/postmaster" 2>/dev/null) || return 0
    rm "$SCRATCH/postmaster"
    kill -QUIT "$pid" 2>/dev/null
    while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
}
postgres_writer() {
    local rows=$1
    while not_cut && postgres_ask "INSERT INTO t(x) SELECT left(repeat(md5(random()::text), 13), 400) FROM generate_series(1, 10)" >/dev/null; do
        rows=$((rows + 10))
        note inserted "$rows"
    done
}
