//! The client: how daemons are started, found and asked. Owns no state beyond a connection.

mod client;
pub(crate) mod launch;
mod local_path;

pub(crate) use client::{ANSWER_PATIENCE, Client, Unanswered, decode, unreachable};
pub(crate) use launch::{Accepted, PATIENCE, Readiness};
pub(crate) use local_path::check_answers;
