//! Messages of the control socket and their framing from any bytes: see `fuzzing.rs`.

use serde_json::json;
use terrace_fuzz::fuzz;

use crate::{Failure, Message, Progress, Request, fuzzing};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

fn samples() -> Vec<Vec<u8>> {
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
    samples
}

#[test]
fn requests_and_messages() {
    fuzz(HERE, "message", samples(), None, &mut fuzzing::message);
}

#[test]
fn lines_and_frames() {
    let mut lines = samples();
    lines.iter_mut().for_each(|line| line.push(b'\n'));
    let content = |length: usize| {
        let mut line = serde_json::to_vec(&Message::Content(length)).expect("encodes");
        line.push(b'\n');
        line.extend(vec![b'\n'; length]);
        line
    };
    let whole = [
        &lines[0][..],
        &lines[1],
        &lines[2],
        &content(300),
        &content(0),
        &lines[5],
    ]
    .concat();
    let announced = [&lines[0][..], &lines[3], b"short"].concat();
    let too_long = [&lines[0][..], b"{\"content\":1048577}\n"].concat();
    let samples = vec![whole, announced, too_long, lines.concat()];
    fuzz(HERE, "framing", samples, None, &mut fuzzing::framing);
}
