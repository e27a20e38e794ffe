//! What several parts of the engine tell in the same words.

/// `1 file`, `2 files`.
pub(crate) fn counted(number: u64, thing: &str) -> String {
    let more = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{more}")
}

/// Some of these names, and how many more there are.
pub(crate) fn list_names(names: &[String], most: usize, of: u64) -> String {
    let named = names.len().min(most);
    let mut words = names[..named].join(", ");
    let more = of.saturating_sub(named as u64);
    if more > 0 {
        words.push_str(&format!(" and {more} more"));
    }
    words
}

/// What is said where the end of the log was given up.
pub(crate) fn describe_abandoned_tail(cause: &str) -> String {
    format!(
        "the pool was opened in the last whole state that can be read, and what came after it was given up, as was asked for: {}",
        cause.split("; nothing was changed").next().unwrap_or(cause)
    )
}

/// What it means when the newest part of the log may have gone with a device.
pub(crate) const LOST_TAIL: &str = "the newest part of the log may have been on it alone: the pool is in one \
    whole state from before it was lost, and what was acknowledged in the last seconds before that (the pool's \
    commit_interval at most) may be gone";

/// What is said of a device that turned out to be older than the pool when that was opened.
pub(crate) fn describe_outdated(path: &str) -> String {
    format!(
        "'{path}' is older than the pool, though nobody had noted it as away: it is an old copy, or lost what was written to it; it \
         was taken as it is, and what it lacks is read from copies on other devices, or gives errors"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_names_is_cut_and_says_so() {
        let names = ["a".to_owned(), "b".to_owned(), "c".to_owned()];
        assert_eq!(list_names(&names, 5, 3), "a, b, c");
        assert_eq!(list_names(&names, 2, 30), "a, b and 28 more");
        assert_eq!(list_names(&[], 2, 0), "");
    }
}
