//! Arguments of requests taken apart, and errors turned into what users read.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use terrace_control::Failure;
use terrace_dataset::DatasetError;

/// Longest text argument, bytes.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// The arguments of a request.
pub struct Parameters {
    operation: String,
    arguments: Value,
}

impl Parameters {
    /// Of a request.
    pub fn new(operation: &str, arguments: Value) -> Self {
        Self {
            operation: operation.into(),
            arguments,
        }
    }

    /// The operation.
    pub fn operation(&self) -> &str {
        &self.operation
    }

    fn wrong(&self, name: &str) -> Failure {
        Failure::new(
            format!("do '{}'", self.operation),
            format!("argument '{name}' is missing or of the wrong kind"),
            "use the terrace command of the same version as the daemon",
        )
    }

    /// A text.
    pub fn text(&self, name: &str) -> Result<String, Failure> {
        self.optional_text(name)?.ok_or_else(|| self.wrong(name))
    }

    /// A text that may be absent.
    pub fn optional_text(&self, name: &str) -> Result<Option<String>, Failure> {
        match self.arguments.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if text.len() <= TEXT_BYTES_MAX => Ok(Some(text.clone())),
            Some(_) => Err(self.wrong(name)),
        }
    }

    /// A flag; false if absent.
    pub fn flag(&self, name: &str) -> Result<bool, Failure> {
        match self.arguments.get(name) {
            None | Some(Value::Null) => Ok(false),
            Some(value) => value.as_bool().ok_or_else(|| self.wrong(name)),
        }
    }

    /// A number that may be absent.
    pub fn optional_number(&self, name: &str) -> Result<Option<u64>, Failure> {
        match self.arguments.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_u64().map(Some).ok_or_else(|| self.wrong(name)),
        }
    }

    /// A number; 0 if absent.
    pub fn number(&self, name: &str) -> Result<u64, Failure> {
        Ok(self.optional_number(name)?.unwrap_or(0))
    }

    /// Anything else.
    pub fn value<T: DeserializeOwned>(&self, name: &str) -> Result<T, Failure> {
        let value = self.arguments.get(name).cloned().unwrap_or(Value::Null);
        serde_json::from_value(value).map_err(|_| self.wrong(name))
    }
}

/// A value as the answer.
pub fn encode(value: &impl Serialize) -> Result<Value, Failure> {
    serde_json::to_value(value).map_err(|error| Failure::new("encode the answer", error, ""))
}

/// An error of a change to a dataset: a mistake in the request itself is told as one.
pub fn refused(what: &str, error: &DatasetError) -> Failure {
    let failure = failed(what, error);
    match error {
        DatasetError::InvalidName { .. }
        | DatasetError::InvalidSize { .. }
        | DatasetError::InvalidProperty(_) => failure.as_usage(),
        _ => failure,
    }
}

/// What a command that waits for a job says beside its figures: also why nothing goes on, if so.
pub fn in_progress(pool: &str, id: u64, kind: &str, state: &str, reason: &str) -> String {
    match state {
        "waiting" => {
            let why = reason
                .split("; ")
                .filter(|part| part.contains("waiting") || part.contains("again"));
            let why: Vec<&str> = why.collect();
            match why.is_empty() {
                true => format!("{kind}, waiting"),
                false => format!("{kind}, {}", why.join("; ")),
            }
        }
        "paused" => format!("{kind}, paused ('terrace jobs resume {id} --pool {pool}' lets it go on)"),
        _ => kind.to_owned(),
    }
}

/// An error of the floors below, whose text may carry its own way out behind the first `; `.
pub fn failed(what: &str, error: &dyn std::fmt::Display) -> Failure {
    let text = error.to_string();
    let (why, remedy) = text.split_once("; ").unwrap_or((&text, ""));
    Failure::new(what, why, remedy)
}
