//! How full a pool is, for who looks at its status before writes are refused: in one word for programs, in one line for people.
//!
//! Invariants: from figures in memory alone; what others have set aside counts as taken, as writers are refused it; what is on its
//! way back is said, so that nobody deletes more than is needed.

use terrace_device::format_size;
use terrace_store::Space;

/// From so much of a pool down it is nearly full: a twentieth of it, and of large pools what takes minutes to write.
const LOW_PART: u64 = 20;
const LOW_BYTES_MAX: u64 = 32 << 30;

/// `enough`, `low` or `none`, as [`Status::room`](crate::Status::room); and what to do about it, empty if nothing.
/// `retained` tells of the history that retention keeps, where that is worth a word.
pub(crate) fn fullness(space: &Space, pool: &str, retained: &str) -> (&'static str, String) {
    let left = space.available_bytes;
    let state = match () {
        // Less than what is handed out at once: one stream or two take it, and then nobody gets more.
        () if left < space.segment_bytes => "none",
        () if left < (space.size_bytes / LOW_PART).min(LOW_BYTES_MAX) => "low",
        () => return ("enough", String::new()),
    };
    let is_full = match state {
        "none" => format!("full, {} left: writes are refused", format_size(left)),
        _ => format!("nearly full, {} left: writes are refused soon", format_size(left)),
    };
    let mut words = format!(
        "{is_full}; delete files, destroy snapshots ('terrace list -t snapshot -r {pool}' shows them), or add a device: 'terrace \
         pool add {pool} TIER=DEVICE'"
    );
    // No list of files or snapshots shows it.
    if !retained.is_empty() {
        words.push_str(&format!("; {retained}"));
    }
    // Of what is set aside most is for a moment; reservations are what users can take back.
    let aside = space.set_aside_bytes.min(space.room_bytes);
    if aside > left {
        words.push_str(&format!(
            "; {} is set aside, for reservations, preallocated files and what is being written ('terrace get -r reservation {pool}')",
            format_size(aside)
        ));
    }
    if space.pending_free_bytes > 0 {
        words.push_str(&format!(
            "; {} is being freed",
            format_size(space.pending_free_bytes)
        ));
    }
    (state, words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(size_bytes: u64, available_bytes: u64) -> Space {
        Space {
            size_bytes,
            available_bytes,
            room_bytes: available_bytes,
            segment_bytes: 2 << 20,
            ..Space::default()
        }
    }

    #[test]
    fn a_pool_says_that_it_gets_full_before_it_is() {
        const GIB: u64 = 1 << 30;
        assert_eq!(
            fullness(&space(100 * GIB, 5 * GIB), "tank", ""),
            ("enough", String::new())
        );
        let (state, words) = fullness(&space(100 * GIB, 5 * GIB - 1), "tank", "");
        assert_eq!(state, "low");
        assert!(
            words.starts_with("nearly full") && words.contains("terrace pool add tank"),
            "{words}"
        );
        assert!(
            !words.contains("set aside") && !words.contains("freed"),
            "{words}"
        );
        // Of a large pool a twentieth is no reason to worry.
        assert_eq!(fullness(&space(100_000 * GIB, 32 * GIB), "tank", "").0, "enough");
        assert_eq!(fullness(&space(100_000 * GIB, 31 * GIB), "tank", "").0, "low");
        assert_eq!(fullness(&space(100 * GIB, (2 << 20) - 1), "tank", "").0, "none");
    }

    #[test]
    fn what_retention_keeps_is_said() {
        let (_, words) = fullness(&space(100 << 30, 0), "tank", "20G of history is kept");
        assert!(words.contains("TIER=DEVICE'; 20G of history is kept"), "{words}");
        let (state, words) = fullness(&space(100 << 30, 50 << 30), "tank", "20G of history is kept");
        assert_eq!((state, &*words), ("enough", ""));
    }

    #[test]
    fn what_is_set_aside_or_on_its_way_back_is_said() {
        let mut space = space(100 << 30, 0);
        space.room_bytes = 20 << 30;
        space.set_aside_bytes = 30 << 30;
        space.pending_free_bytes = 1 << 30;
        let (state, words) = fullness(&space, "tank", "");
        assert_eq!(state, "none");
        for part in [
            "full, 0B left",
            "20G is set aside",
            "get -r reservation tank",
            "1G is being freed",
        ] {
            assert!(words.contains(part), "{part}: {words}");
        }
    }
}
