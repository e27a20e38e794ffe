//! The daemon's socket against peers that do not play by the rules: an error or a closed connection, never a dead
//! daemon and never more memory than the bounds say.

#![allow(clippy::unwrap_used)]

use std::{
    io::{Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::PathBuf,
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use proptest::prelude::*;
use serde_json::{Value, json};
use terrace_control::{
    Answer, Connection, ControlError, Exchange, FRAME_BYTES_MAX, Failure, Handler, LINE_BYTES_MAX, Message,
    Progress, Request, Server,
};

struct Echo;

impl Handler for Echo {
    fn handle(&self, request: Request, exchange: &mut Exchange) -> Result<Value, Failure> {
        match request.operation.as_str() {
            "echo" => {
                exchange.progress(Progress {
                    what: "echo".into(),
                    done_bytes: 1,
                    total_bytes: 2,
                })?;
                exchange.item(&request.arguments)?;
                Ok(request.arguments)
            }
            "sum" => {
                let mut sum = 0u64;
                while let Some(frame) = exchange.receive_content()? {
                    sum += frame.iter().map(|byte| u64::from(*byte)).sum::<u64>();
                }
                Ok(json!(sum))
            }
            "content" => {
                exchange.send_content(&vec![7; FRAME_BYTES_MAX + 5])?;
                Ok(Value::Null)
            }
            "long" => Ok(Value::String("x".repeat(LINE_BYTES_MAX))),
            other => Err(Failure::new(other, "is not known", "see 'terrace help'").as_usage()),
        }
    }
}

struct Running {
    server: Arc<Server>,
    path: PathBuf,
    thread: Option<JoinHandle<()>>,
    _directory: tempfile::TempDir,
}

impl Running {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/pool.sock");
        let server = Server::bind(&path).unwrap();
        let thread = std::thread::spawn({
            let server = server.clone();
            move || server.run(Arc::new(Echo), Duration::from_secs(5)).unwrap()
        });
        Self {
            server,
            path,
            thread: Some(thread),
            _directory: directory,
        }
    }

    fn call(&self, operation: &str, arguments: Value) -> Result<Value, ControlError> {
        Connection::connect(&self.path)
            .unwrap()
            .call(&Request::new(operation, arguments), &mut |_| Ok(()))
    }

    /// Sends raw bytes, closes that side, returns everything that comes back.
    fn raw(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = UnixStream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // The server may have closed already: then there is nothing to send to.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    }

    fn assert_alive(&self) {
        assert_eq!(self.call("echo", json!({"a": 1})).unwrap(), json!({"a": 1}));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.server.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[test]
fn a_request_gets_progress_items_and_a_result() {
    let running = Running::start();
    let mut seen = Vec::new();
    let result = Connection::connect(&running.path)
        .unwrap()
        .call(&Request::new("echo", json!([1, 2])), &mut |answer| {
            seen.push(answer);
            Ok(())
        })
        .unwrap();
    assert_eq!(result, json!([1, 2]));
    assert_eq!(
        seen,
        [
            Answer::Progress(Progress {
                what: "echo".into(),
                done_bytes: 1,
                total_bytes: 2
            }),
            Answer::Item(json!([1, 2]))
        ]
    );
}

#[test]
fn content_travels_both_ways() {
    let running = Running::start();
    let mut connection = Connection::connect(&running.path).unwrap();
    connection.send(&Request::new("sum", Value::Null)).unwrap();
    connection
        .send_content(&vec![1; FRAME_BYTES_MAX * 2 + 17])
        .unwrap();
    connection.end_content().unwrap();
    let sum = connection.finish(&mut |_| Ok(())).unwrap();
    assert_eq!(sum, json!(FRAME_BYTES_MAX * 2 + 17));

    let mut content = Vec::new();
    Connection::connect(&running.path)
        .unwrap()
        .call(&Request::new("content", Value::Null), &mut |answer| {
            if let Answer::Content(frame) = answer {
                content.extend_from_slice(&frame);
            }
            Ok(())
        })
        .unwrap();
    assert_eq!(content, vec![7; FRAME_BYTES_MAX + 5]);
}

#[test]
fn the_socket_is_for_its_owner_only() {
    let running = Running::start();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&running.path), 0o600);
    assert_eq!(mode(running.path.parent().unwrap()), 0o700);
}

#[test]
fn failures_are_told_and_survived() {
    let running = Running::start();
    let ControlError::Failed(failure) = running.call("nonsense", Value::Null).unwrap_err() else {
        panic!("no failure")
    };
    assert!(failure.usage);
    let ControlError::Failed(failure) = running.call("long", Value::Null).unwrap_err() else {
        panic!("no failure")
    };
    assert!(failure.why.contains("longer than"), "{failure}");
    running.assert_alive();
}

#[test]
fn another_version_is_refused() {
    let running = Running::start();
    let answer = running.raw(b"{\"version\":999,\"operation\":\"echo\"}\n");
    let Message::Error(failure) = serde_json::from_slice(&answer).unwrap() else {
        panic!("served")
    };
    assert!(failure.why.contains("999"), "{failure}");
}

#[test]
fn endless_lines_and_huge_frames_are_cut_off() {
    let running = Running::start();
    let answer = running.raw(&vec![b'{'; LINE_BYTES_MAX + 10]);
    assert!(String::from_utf8_lossy(&answer).contains("error") || answer.is_empty());
    let mut bytes = serde_json::to_vec(&Request::new("sum", Value::Null)).unwrap();
    bytes.extend_from_slice(b"\n{\"content\":18446744073709551615}\n");
    let answer = running.raw(&bytes);
    assert!(
        String::from_utf8_lossy(&answer).contains("error"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    // A frame that is announced and does not come.
    let mut bytes = serde_json::to_vec(&Request::new("sum", Value::Null)).unwrap();
    bytes.extend_from_slice(b"\n{\"content\":1000}\nshort");
    let answer = running.raw(&bytes);
    assert!(String::from_utf8_lossy(&answer).contains("error"));
    running.assert_alive();
}

#[test]
fn deep_nesting_is_an_error() {
    let running = Running::start();
    let mut bytes = b"{\"version\":1,\"operation\":\"echo\",\"arguments\":".to_vec();
    bytes.extend(std::iter::repeat_n(b'[', 500_000));
    bytes.push(b'\n');
    assert!(String::from_utf8_lossy(&running.raw(&bytes)).contains("error"));
    running.assert_alive();
}

#[test]
fn it_stops_when_told_to() {
    let mut running = Running::start();
    running.assert_alive();
    // Also when somebody has cleaned up the run directory.
    std::fs::remove_file(&running.path).unwrap();
    running.server.stop();
    running.thread.take().unwrap().join().unwrap();
    assert!(running.server.is_stopping());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_kill_the_daemon(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
        let running = Running::start();
        running.raw(&bytes);
        running.assert_alive();
    }

    #[test]
    fn damaged_requests_never_kill_the_daemon(position in 0usize..60, byte in any::<u8>()) {
        let running = Running::start();
        let mut bytes = serde_json::to_vec(&Request::new("echo", json!({"key": "value"}))).unwrap();
        bytes.push(b'\n');
        let position = position % bytes.len();
        bytes[position] = byte;
        running.raw(&bytes);
        running.assert_alive();
    }
}
