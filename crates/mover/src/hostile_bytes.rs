//! Records of jobs from any bytes: see `fuzzing.rs`.

use terrace_dataset::Time;
use terrace_fuzz::fuzz;

use crate::{
    fuzzing,
    jobs::{Job, JobKind, JobState, Left},
    policy::Room,
};

#[test]
fn jobs() {
    let mut job = Job {
        kind: JobKind::Demote,
        state: JobState::Paused,
        reason: "for the hours that its tier allows".into(),
        started: Time::from_nanos(1_700_000_000_000_000_001),
        done_bytes: 5 << 20,
        total_bytes: 7 << 30,
        source: 0,
        target: 2,
        dataset: 9,
        body: 77,
        pass: 3,
        cursor: vec![0x22, 0, 1, 2],
        is_directory: false,
        room: None,
        for_pin: false,
        left: Left::default(),
    };
    let mut samples = vec![job.encode()];
    job.body = 0;
    for gives_way in [None, Some(1)] {
        job.room = Some(Room {
            colder: 5.0,
            gives_way,
        });
        samples.push(job.encode());
    }
    (job.kind, job.room, job.is_directory, job.for_pin) = (JobKind::Move, None, true, true);
    job.left.unreadable(1, 4096);
    job.left.lost(8192);
    job.left.pinned(5);
    samples.push(job.encode());
    fuzz(
        env!("CARGO_MANIFEST_DIR"),
        "job",
        samples,
        None,
        &mut fuzzing::job,
    );
}
