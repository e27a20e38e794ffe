//! Messages of the control socket and their framing, one parser a function: what must hold of any bytes. The harness of
//! the tests (`hostile_bytes.rs`) and the coverage-guided targets (`fuzz/`) call the same functions.
//!
//! Invariant: a function panics only where something is wrong with the parser.

use std::{io, net::Shutdown, os::unix::net::UnixStream, thread};

use rustix::net::{SendFlags, send};

use crate::{Connection, FRAME_BYTES_MAX, Message, Request};

/// A line: what decodes encodes to something that decodes.
pub fn message(bytes: &[u8]) {
    if let Ok(request) = serde_json::from_slice::<Request>(bytes) {
        let again = serde_json::to_vec(&request).expect("what decodes encodes");
        assert!(serde_json::from_slice::<Request>(&again).is_ok());
    }
    if let Ok(message) = serde_json::from_slice::<Message>(bytes) {
        let again = serde_json::to_vec(&message).expect("what decodes encodes");
        assert!(serde_json::from_slice::<Message>(&again).is_ok());
    }
}

/// Lines and frames as the daemon reads them: a request, then messages, with content behind those that announce it. What is
/// taken for content came, and is no longer than was announced.
pub fn framing(bytes: &[u8]) {
    let (ours, theirs) = UnixStream::pair().expect("two sockets");
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut rest = bytes;
            while !rest.is_empty() {
                match send(&theirs, rest, SendFlags::NOSIGNAL) {
                    Ok(sent) => rest = &rest[sent..],
                    Err(_) => break,
                }
            }
            // The reader may be gone.
            let _ = theirs.shutdown(Shutdown::Write);
        });
        let mut left = ours.try_clone().expect("a second handle");
        let mut connection = Connection::new(ours).expect("a connection");
        let taken = receive_all(&mut connection);
        assert!(taken <= bytes.len(), "{taken} of {} bytes", bytes.len());
        // Whoever still sends is not kept waiting.
        let _ = io::copy(&mut left, &mut io::sink());
    });
}

/// How much content came, bytes.
fn receive_all(connection: &mut Connection) -> usize {
    let mut taken = 0;
    if !matches!(connection.receive::<Request>(), Ok(Some(_))) {
        return taken;
    }
    loop {
        match connection.receive::<Message>() {
            Ok(Some(Message::Content(length))) => {
                let Ok(frame) = connection.receive_frame(length) else {
                    return taken;
                };
                assert!(frame.len() == length && length <= FRAME_BYTES_MAX);
                taken += length;
            }
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return taken,
        }
    }
}
