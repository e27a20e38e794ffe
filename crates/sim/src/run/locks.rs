//! The page of locks: which ones each operation took in a run, in their order.

use std::fmt::Write as _;

use terrace_sync::{
    rank::{ALL, Place},
    trace,
};

/// The page, of all that was recorded.
pub fn page() -> String {
    let mut page = String::from(
        "# Locks that operations take\n\n\
         Written by `terrace-sim --locks docs/internals/locks.md` from what seeds of the simulator did.\n\
         The order is that of `crates/sync/src/rank.rs`, which also says what each lock is for.\n\
         A star: it may be held across device I/O. Leaves are left out: nothing is taken below them.\n\n",
    );
    for (operation, taken) in trace::taken() {
        let locks: Vec<String> = ALL
            .iter()
            .filter(|place| taken.contains(place.name))
            .map(words)
            .collect();
        if !locks.is_empty() {
            let _ = writeln!(page, "- **{}**: {}", spaced(operation), locks.join(", "));
        }
    }
    folded(&page, 118)
}

fn words(place: &Place) -> String {
    let star = if place.across_io { "*" } else { "" };
    format!("`{}`{star}", place.name)
}

/// `OneOfThem` as `one of them`.
fn spaced(name: &str) -> String {
    let mut spaced = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !spaced.is_empty() {
            spaced.push(' ');
        }
        spaced.extend(letter.to_lowercase());
    }
    spaced
}

/// With no line longer than this, where words allow it.
fn folded(text: &str, most: usize) -> String {
    let mut folded = String::new();
    for line in text.lines() {
        let mut at = 0;
        for word in line.split(' ') {
            if at > 0 && at + 1 + word.len() > most {
                folded.push_str("\n  ");
                at = 2;
            } else if at > 0 {
                folded.push(' ');
                at += 1;
            }
            folded.push_str(word);
            at += word.len();
        }
        folded.push('\n');
    }
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words_and_lines_are_short() {
        assert_eq!(spaced("ChangeAttributes"), "change attributes");
        assert_eq!(folded("one two three", 8), "one two\n  three\n");
    }
}
