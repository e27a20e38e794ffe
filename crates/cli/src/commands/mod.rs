//! The commands: each takes its arguments, asks the daemon (or acts itself where there is none), and prints.

pub mod data;
mod pool;
mod tools;
mod watch;

use std::{cell::RefCell, collections::BTreeSet, process::ExitCode};

use serde_json::{Value, json};
use terrace_control::Failure;

use crate::{
    arguments::{Arguments, Command, DatasetCommand, DebugCommand, FileCommand, PlacementCommand, names},
    client::{Accepted, Client},
    daemon,
    machine::Places,
};

/// What every command needs.
pub struct Session {
    /// Where things are.
    pub places: Places,
    /// Whether to print JSON.
    pub json: bool,
    /// Pools that were to be looked at beside others and did not answer.
    pub unanswered: RefCell<BTreeSet<String>>,
}

impl Session {
    /// With the state directory of this user.
    fn new(json: bool) -> Result<Self, Failure> {
        Ok(Self {
            places: Places::find()?,
            json,
            unanswered: RefCell::default(),
        })
    }

    /// What one of several pools answered. One that did not is said and left out: the others are shown, and the command fails at its
    /// end.
    pub fn heard<T>(&self, pool: &str, answer: Result<T, Failure>) -> Option<T> {
        answer
            .inspect_err(|failure| {
                if self.unanswered.borrow_mut().insert(pool.to_owned()) {
                    eprintln!("terrace: {failure}");
                }
            })
            .ok()
    }

    /// The daemon of the pool that a name starts with.
    pub fn client_for(&self, name: &str) -> Result<Client, Failure> {
        let (pool, _) = names::split_pool(name)?;
        Client::open(&self.places, pool)
    }

    /// Asks the daemon of the pool that a name starts with to change something; the command is logged.
    pub fn change(&self, name: &str, operation: &str, arguments: Value) -> Result<Value, Failure> {
        self.client_for(name)?.call(operation, logged(arguments))
    }
}

/// Arguments with the command line and the user, for the pool's command log.
pub fn logged(mut arguments: Value) -> Value {
    if let Some(object) = arguments.as_object_mut() {
        let words: Vec<String> = std::env::args_os()
            .skip(1)
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let user = std::env::var("SUDO_USER").or_else(|_| std::env::var("USER"));
        let user = user.unwrap_or_else(|_| format!("uid {}", rustix::process::getuid().as_raw()));
        object.insert(
            "command_line".into(),
            json!(format!("terrace {}", words.join(" "))),
        );
        object.insert("user".into(), json!(user));
    }
    arguments
}

/// What will surprise the users of what was changed or made: beside the answer, which scripts read.
fn tell_note(answer: &Value) {
    if let Some(note) = answer["note"].as_str() {
        eprintln!("{note}");
    }
}

/// Does what the command line says.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    // These need no state directory.
    match &arguments.command {
        Command::Completions { shell } => {
            return tools::shell::completions(*shell).map(|()| ExitCode::SUCCESS);
        }
        Command::Man { directory } => {
            return tools::shell::man(directory.as_deref()).map(|()| ExitCode::SUCCESS);
        }
        _ => {}
    }
    let session = Session::new(arguments.json)?;
    let code = perform(&session, arguments.command)?;
    Ok(match session.unanswered.borrow().is_empty() {
        true => code,
        false => ExitCode::from(1),
    })
}

fn perform(session: &Session, command: Command) -> Result<ExitCode, Failure> {
    let done = |outcome: Result<(), Failure>| outcome.map(|()| ExitCode::SUCCESS);
    match command {
        Command::Pool(command) => done(pool::pools::run(session, command)),
        Command::Tier(command) => done(pool::tiers::tier(session, command)),
        Command::Attach {
            volume,
            read_only,
            via,
        } => done(data::blocks::attach(session, &volume, read_only, via)),
        Command::Detach { target, force } => done(data::blocks::detach(session, &target, force)),
        Command::Serve(arguments) => done(data::blocks::serve(session, &arguments)),
        Command::Unserve { volume } => done(data::blocks::unserve(session, &volume)),
        Command::Start {
            pool,
            foreground,
            degraded,
            rewind,
            yes,
            dry_run,
        } => start(
            session,
            &pool,
            foreground,
            Accepted::of(degraded, rewind),
            yes,
            dry_run,
        ),
        Command::Stop { pool, force } => done(pool::stop::stop(session, &pool, force)),
        Command::Status { pool, lost: true } => done(watch::lost::lost(session, pool.as_deref())),
        Command::Status { pool, .. } => done(watch::status::status(session, pool.as_deref())),
        Command::Iostat { words, count } => done(watch::iostat::iostat(session, &words, count)),
        Command::Top {
            pool,
            interval,
            count,
        } => done(watch::top::run(session, pool.as_deref(), &interval, count)),
        Command::Events { pool, follow } => done(watch::events::events(session, pool.as_deref(), follow)),
        Command::Log { pool } => done(watch::events::command_log(session, &pool)),
        Command::Where {
            path,
            regions: true,
            from,
            limit,
        } => done(data::where_is::regions(session, &path, from, limit)),
        Command::Where { path, .. } => done(data::where_is::where_is(session, &path)),
        Command::Hold { tag, snapshots } => done(data::properties::hold(session, &tag, &snapshots, false)),
        Command::Release { tag, snapshots } => done(data::properties::hold(session, &tag, &snapshots, true)),
        Command::Prune { dataset, dry_run } => done(data::datasets::prune(session, &dataset, dry_run)),
        Command::Evacuate(arguments) => done(pool::devices::evacuate(session, &arguments)),
        Command::Jobs(arguments) => done(watch::jobs::jobs(session, arguments)),
        Command::Verify(arguments) => pool::verify::verify(session, &arguments),
        Command::Scrub { pool, waiting } => watch::jobs::scrub(session, &pool, waiting),
        Command::Compact {
            pool,
            dry_run,
            waiting,
        } => done(watch::jobs::compact(session, &pool, dry_run, waiting)),
        Command::Doctor => tools::doctor::run(session),
        Command::Demo {
            directory,
            size,
            no_fuse,
        } => done(tools::demo::run(directory.as_deref(), &size, no_fuse)),
        Command::Bench(arguments) => done(tools::bench::run(&arguments, session.json)),
        Command::Debug(DebugCommand::Panic { pool }) => done(
            Client::open(&session.places, &pool)?
                .call("debug_panic", json!({}))
                .map(drop),
        ),
        Command::Completions { .. } | Command::Man { .. } => Ok(ExitCode::SUCCESS),
        Command::Datasets(command) => done(change_datasets(session, command)),
        Command::Placement(command) => done(place(session, command)),
        Command::Files(command) => done(use_files(session, command)),
    }
}

/// What makes, shows, changes and mounts datasets.
fn change_datasets(session: &Session, command: DatasetCommand) -> Result<(), Failure> {
    match command {
        DatasetCommand::Fs(command) => data::datasets::fs(session, command),
        DatasetCommand::Volume(command) => data::datasets::volume(session, command),
        DatasetCommand::List(arguments) => data::datasets::list(session, &arguments),
        DatasetCommand::Get(arguments) => data::properties::get_or_copy(session, &arguments),
        DatasetCommand::Set { words } => data::properties::set(session, &words),
        DatasetCommand::Inherit(arguments) => data::properties::inherit(session, &arguments),
        DatasetCommand::Rename { from, to } => data::datasets::rename(session, &from, &to),
        DatasetCommand::Destroy {
            target,
            recursive,
            consent,
        } => data::datasets::destroy(session, &target, recursive, consent),
        DatasetCommand::Snapshot {
            snapshot,
            recursive,
            note,
        } => data::datasets::snapshot(session, &snapshot, recursive, &note),
        DatasetCommand::Mount {
            dataset,
            directory,
            options,
        } => data::mounts::mount(session, dataset.as_deref(), directory.as_deref(), &options),
        DatasetCommand::Unmount { target, force } => data::mounts::unmount(session, &target, force),
    }
}

/// What moves files by hand.
fn place(session: &Session, command: PlacementCommand) -> Result<(), Failure> {
    match command {
        PlacementCommand::Pin {
            path,
            tier,
            dry_run,
            waiting,
        } => watch::jobs::place(session, "pin", &path, Some(&tier), dry_run, waiting.waits()),
        PlacementCommand::Unpin { path } => watch::jobs::place(session, "unpin", &path, None, false, false),
        PlacementCommand::Promote {
            path,
            dry_run,
            waiting,
        } => watch::jobs::place(session, "promote", &path, None, dry_run, waiting.waits()),
        PlacementCommand::Demote {
            path,
            dry_run,
            waiting,
        } => watch::jobs::place(session, "demote", &path, None, dry_run, waiting.waits()),
    }
}

/// What needs no mount to show files and to put some there.
fn use_files(session: &Session, command: FileCommand) -> Result<(), Failure> {
    match command {
        FileCommand::Ls {
            paths,
            long,
            recursive,
        } => data::files::ls(session, &paths, long, recursive),
        FileCommand::Cat { paths } => data::files::cat(session, &paths),
        FileCommand::Put { target, sources } => data::files::put(session, &target, &sources),
    }
}

/// `terrace start`, here or in the background.
fn start(
    session: &Session,
    pool: &str,
    foreground: bool,
    accepted: Accepted,
    yes: bool,
    dry_run: bool,
) -> Result<ExitCode, Failure> {
    if dry_run {
        return pool::rewind::look(session, pool).map(|()| ExitCode::SUCCESS);
    }
    pool::rewind::confirm_rewind(accepted, &format!("pool '{pool}'"), yes)?;
    if foreground {
        return daemon::run(session.places.clone(), pool, accepted).map(|()| ExitCode::SUCCESS);
    }
    pool::pools::start(session, pool, accepted)
}
