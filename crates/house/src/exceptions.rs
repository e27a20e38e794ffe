//! What breaks a rule today, and the list of it: `exceptions.txt`, one line each: `rule crate subject count`.
//!
//! Invariant: the list is exact. Who breaks a rule anew, or more than before, is refused; who mends something lowers the
//! count or strikes the line.

use std::{collections::BTreeMap, fs, path::Path};

/// How often something breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The rule's name.
    pub rule: &'static str,
    /// Where: a crate's folder name, or `docs`.
    pub crate_name: String,
    /// What breaks it: a folder, a type, a function, a file.
    pub subject: String,
    /// How often, or by how much.
    pub count: usize,
}

impl Finding {
    /// A finding. The subject has no blanks.
    pub fn new(rule: &'static str, crate_name: &str, subject: impl Into<String>, count: usize) -> Self {
        Self {
            rule,
            crate_name: crate_name.to_string(),
            subject: subject.into().replace(' ', ""),
            count,
        }
    }
}

/// What the list and the findings of `rule` disagree on, in words; empty if they agree.
pub fn disagreements(root: &Path, rule: &str, findings: &[Finding]) -> Vec<String> {
    let text = fs::read_to_string(root.join("crates/house/exceptions.txt")).expect("the list is there");
    let mut listed = BTreeMap::new();
    for line in text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [of_rule, crate_name, subject, count] = words[..] else {
            panic!("exceptions.txt: '{line}' is not: rule crate subject count");
        };
        let count: usize = count
            .parse()
            .unwrap_or_else(|_| panic!("exceptions.txt: '{line}' ends with no count"));
        if of_rule == rule {
            listed.insert((crate_name.to_string(), subject.to_string()), count);
        }
    }
    let mut wrong = Vec::new();
    for finding in findings {
        let key = (finding.crate_name.clone(), finding.subject.clone());
        let allowed = listed.remove(&key).unwrap_or(0);
        let line = format!(
            "{rule} {} {} {}",
            finding.crate_name, finding.subject, finding.count
        );
        if finding.count > allowed {
            wrong.push(format!("{line}: at most {allowed} are excused; mend it"));
        } else if finding.count < allowed {
            wrong.push(format!(
                "{line}: better than the {allowed} that are listed; write this line into exceptions.txt"
            ));
        }
    }
    for ((crate_name, subject), count) in listed {
        wrong.push(format!(
            "{rule} {crate_name} {subject} {count}: nothing breaks it any more; strike it from exceptions.txt"
        ));
    }
    wrong
}
