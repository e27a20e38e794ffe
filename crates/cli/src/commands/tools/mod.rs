//! Commands that are tools of their own: benchmark, demonstration, doctor.

pub(crate) mod bench;
mod bench_jobs;
pub(crate) mod demo;
mod demo_checks;
pub(crate) mod doctor;
mod scratch;
pub(crate) mod shell;
