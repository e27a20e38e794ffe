//! `Findings`: what is wrong, in words, as far as anybody reads it.
//!
//! Invariant: bounded, whatever is wrong: the first [`LINES_MAX`] lines are kept, all are counted.

/// Most lines that are kept: more than any report shows.
const LINES_MAX: usize = 1000;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    lines: Vec<String>,
    count: u64,
}

impl Findings {
    /// One more; its words are made only if they are kept.
    pub fn add(&mut self, words: impl FnOnce() -> String) {
        self.count += 1;
        if self.lines.len() < LINES_MAX {
            self.lines.push(words());
        }
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The first of them.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// The first of them.
    pub fn into_lines(self) -> Vec<String> {
        self.lines
    }
}

impl Extend<String> for Findings {
    fn extend<T: IntoIterator<Item = String>>(&mut self, lines: T) {
        lines.into_iter().for_each(|line| self.add(|| line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_are_kept_and_all_are_counted() {
        let mut findings = Findings::default();
        assert!(findings.is_empty());
        for number in 0..5000 {
            findings.add(|| {
                assert!(number < LINES_MAX, "no words are made in vain");
                number.to_string()
            });
        }
        findings.extend(["one more".to_owned()]);
        assert_eq!((findings.count(), findings.lines().len()), (5001, LINES_MAX));
        assert_eq!(findings.into_lines()[999], "999");
    }
}
