//! Records of heat, one parser a function: what must hold of any bytes. The harness of the tests
//! (`hostile_bytes.rs`) and the coverage-guided targets (`fuzz/`) call the same functions.
//!
//! Invariant: a function panics only where something is wrong with the parser.

use crate::heat::{Access, CELL_BYTES, Heat};

/// The heat of an object's regions: as seen from before and after the times that it claims, and not more than its bytes.
pub fn heat(bytes: &[u8]) {
    let heat = Heat::new(100);
    heat.load(1, 2, bytes, 1 << 20);
    for minutes in [0, 5, u32::MAX] {
        let _ = heat.of(1, 2, 7, minutes);
        heat.record(1, 2, 7, Access::Read, 1.0, minutes);
    }
    assert!(heat.regions() <= bytes.len() / CELL_BYTES + 1);
}
