//! The request that a thread serves: what a crash report names beside the place of an error.
//!
//! Invariants: noting a request is a store to the thread's own memory, without a lock, an allocation or a destructor; reading it is
//! allowed in a panic hook and in a signal handler.

use std::{cell::Cell, fmt, marker::PhantomData};

/// Longest name of a request that is kept, bytes.
const NAME_BYTES_MAX: usize = 32;

thread_local! {
    static SERVED: Cell<Option<ServedRequest>> = const { Cell::new(None) };
}

/// A kind of request, of one of the front ends.
#[derive(Clone, Copy)]
pub struct ServedRequest {
    front: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    /// Its number in the protocol, and who knows its name.
    Code(u32, fn(u32) -> &'static str),
    /// Its name, cut off.
    Name([u8; NAME_BYTES_MAX], u8),
}

impl fmt::Display for ServedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Code(code, name) => write!(f, "{} request {code} ({})", self.front, name(*code)),
            Kind::Name(name, length) => {
                let name = name.get(..usize::from(*length)).unwrap_or_default();
                let name = std::str::from_utf8(name).unwrap_or("?");
                write!(f, "{} request '{name}'", self.front)
            }
        }
    }
}

/// As long as it lives, the thread serves the request.
pub struct Serving {
    before: Option<ServedRequest>,
    // Of the thread that made it.
    _thread: PhantomData<*const ()>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        SERVED.set(self.before);
    }
}

impl ServedRequest {
    /// The calling thread serves a request with this number in the protocol of `front`; `name` knows what it is called.
    #[inline]
    pub fn begin(front: &'static str, code: u32, name: fn(u32) -> &'static str) -> Serving {
        Self::note(Self {
            front,
            kind: Kind::Code(code, name),
        })
    }

    /// The same, with its name.
    pub fn begin_named(front: &'static str, name: &str) -> Serving {
        let mut length = name.len().min(NAME_BYTES_MAX);
        while !name.is_char_boundary(length) {
            length -= 1;
        }
        let mut kept = [0; NAME_BYTES_MAX];
        kept[..length].copy_from_slice(&name.as_bytes()[..length]);
        Self::note(Self {
            front,
            kind: Kind::Name(kept, length as u8),
        })
    }

    #[inline]
    fn note(request: Self) -> Serving {
        Serving {
            before: SERVED.replace(Some(request)),
            _thread: PhantomData,
        }
    }

    /// What the calling thread serves.
    pub fn of_this_thread() -> Option<Self> {
        SERVED.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told() -> Option<String> {
        ServedRequest::of_this_thread().map(|request| request.to_string())
    }

    #[test]
    fn a_request_is_noted_for_as_long_as_it_is_served_and_for_its_thread_alone() {
        assert_eq!(told(), None);
        let outer = ServedRequest::begin("fuse", 16, |_| "WRITE");
        assert_eq!(told().as_deref(), Some("fuse request 16 (WRITE)"));
        let inner = ServedRequest::begin_named("control", &"é".repeat(40));
        assert_eq!(told().unwrap(), format!("control request '{}'", "é".repeat(16)));
        assert_eq!(std::thread::spawn(told).join().unwrap(), None);
        drop(inner);
        assert_eq!(told().as_deref(), Some("fuse request 16 (WRITE)"));
        drop(outer);
        assert_eq!(told(), None);
    }
}
