//! Records of jobs, one parser a function: what must hold of any bytes. The harness of the tests
//! (`hostile_bytes.rs`) and the coverage-guided targets (`fuzz/`) call the same functions.
//!
//! Invariant: a function panics only where something is wrong with the parser.

use crate::jobs::Job;

/// A job: what decodes encodes to itself.
pub fn job(bytes: &[u8]) {
    if let Ok(job) = Job::decode(bytes) {
        let value = job.encode();
        assert_eq!(Job::decode(&value).map(|job| job.encode()), Ok(value));
    }
}
