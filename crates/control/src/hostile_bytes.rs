//! Messages of the control socket from any bytes: never a panic; what decodes encodes to itself.

use serde_json::json;
use terrace_fuzz::fuzz;

use crate::{Failure, Message, Progress, Request};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn requests_and_messages() {
    let request = Request::new(
        "status",
        json!({ "pool": "tank", "deep": [1, null, { "a": -2.5 }] }),
    );
    let progress = Progress {
        what: "scrub".into(),
        done_bytes: 7,
        total_bytes: u64::MAX,
    };
    let messages = [
        Message::Progress(progress),
        Message::Item(json!([1, 2])),
        Message::Content(4096),
        Message::Result(json!({})),
        Message::Error(Failure::new("do it", "it cannot be done", "do something else")),
    ];
    let mut samples = vec![serde_json::to_vec(&request).expect("encodes")];
    samples.extend(
        messages
            .iter()
            .map(|message| serde_json::to_vec(message).expect("encodes")),
    );
    fuzz(HERE, "message", samples, None, &mut |bytes| {
        if let Ok(request) = serde_json::from_slice::<Request>(bytes) {
            let again = serde_json::to_vec(&request).expect("what decodes encodes");
            assert!(serde_json::from_slice::<Request>(&again).is_ok());
        }
        if let Ok(message) = serde_json::from_slice::<Message>(bytes) {
            let again = serde_json::to_vec(&message).expect("what decodes encodes");
            assert!(serde_json::from_slice::<Message>(&again).is_ok());
        }
    });
}
