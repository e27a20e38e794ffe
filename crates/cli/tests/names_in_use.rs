//! Names that change while somebody begins to use them.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{path::Path, time::Duration};

use harness::Machine;
use serde_json::{Value, json};
use terrace_control::{Connection, Request};

/// Whether the daemon did what it was asked for. (Commands of their own would seldom come at the same moment.)
fn asked(socket: &Path, operation: &str, arguments: Value) -> bool {
    let mut connection = Connection::connect(socket).unwrap();
    let answer = connection.call(&Request::new(operation, arguments), &mut |_| Ok(()));
    answer.is_ok()
}

/// Either it is served, and not renamed, or it has its new name, and is served nowhere.
#[test]
fn nothing_is_renamed_while_it_begins_to_be_served() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["volume", "create", "tank/a", "--size", "8M", "--sparse"]);
    let socket = &*machine.path("state/run/tank.sock");
    let address = format!("unix:{}", machine.text("nbd.sock"));
    let (mut from, mut to) = ("tank/a", "tank/b");
    for round in 0..48u64 {
        let (served, renamed) = std::thread::scope(|scope| {
            let serving = scope.spawn(|| {
                let wanted = json!({ "volume": from, "address": address, "read_only": false, "tls": null });
                asked(socket, "serve", wanted)
            });
            // Meets it at another point each time.
            std::thread::sleep(Duration::from_micros(200 * (round % 16)));
            let renamed = asked(socket, "rename", json!({ "from": from, "to": to }));
            (serving.join().unwrap(), renamed)
        });
        assert!(!(served && renamed), "both, in round {round}");
        if served {
            assert!(asked(socket, "unserve", json!({ "volume": from })));
        }
        if renamed {
            (from, to) = (to, from);
        }
    }
}
