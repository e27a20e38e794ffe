//! What travels: requests one way, messages the other. One JSON object per line.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Failure;

/// What the client asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// [`PROTOCOL_VERSION`](crate::PROTOCOL_VERSION) of the client.
    pub version: u32,
    /// Name of the operation, for example `status`.
    pub operation: String,
    /// Its arguments, an object.
    #[serde(default)]
    pub arguments: Value,
}

impl Request {
    /// A request of this version.
    pub fn new(operation: impl Into<String>, arguments: Value) -> Self {
        Self {
            version: crate::PROTOCOL_VERSION,
            operation: operation.into(),
            arguments,
        }
    }
}

/// How far long work is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// What is being done.
    pub what: String,
    /// Done so far, bytes.
    pub done_bytes: u64,
    /// All of it, bytes; 0: unknown.
    pub total_bytes: u64,
}

/// What the daemon answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// How far it is; any number of them.
    Progress(Progress),
    /// One piece of a long answer; any number of them.
    Item(Value),
    /// A frame of this many bytes follows the line; 0 ends the content.
    Content(usize),
    /// The end: it worked.
    Result(Value),
    /// The end: it failed.
    Error(Failure),
}
