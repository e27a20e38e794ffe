//! `Terms`: what was negotiated with a client.

/// What the two sides agreed on before transmission.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Terms {
    /// Reads and errors are answered in structured replies.
    pub structured: bool,
    /// Requests and replies have 64-bit lengths.
    pub extended: bool,
    /// The client asked for `base:allocation` of this export.
    pub allocation_of: Option<String>,
}
