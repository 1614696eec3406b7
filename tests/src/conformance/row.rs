//! What a suite found, and the file of such rows.

use std::fmt::Display;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Lines of a failure's message that are kept.
const MESSAGE_LINES: usize = 12;

/// One suite with one build on either side and one back-end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What was run.
    pub suite: String,
    /// llama.cpp's build in the guest, and its ggml's version.
    pub client: String,
    /// Those on the host.
    pub host: String,
    /// The back-end that the daemon loaded.
    pub backend: String,
    /// The first device that it has there, as it describes itself.
    #[serde(default)]
    pub device: String,
    /// Cases that ran.
    pub run: u64,
    /// Those that passed.
    pub passed: u64,
    /// Those that did not.
    pub failed: u64,
    /// Of what the suite has, what is supported through Ferry; nothing where that makes no sense.
    pub supported_ferry: Option<u64>,
    /// What is supported if the back-end is used natively.
    pub supported_native: Option<u64>,
    /// How many of the failed ones fail natively too.
    #[serde(default)]
    pub failed_natively: u64,
    /// Each case that failed, and how.
    #[serde(default)]
    pub failures: Vec<String>,
    /// What made this row.
    pub command: String,
    /// The commit of this repository that it was made from.
    pub commit: String,
}

impl Row {
    /// Why this is not what it should be, if it is not.
    pub fn complaint(&self) -> Option<String> {
        if self.failed > self.failed_natively {
            return Some(format!("{} of {} failed", self.failed - self.failed_natively, self.run));
        }
        if self.run == 0 {
            return Some("nothing ran".into());
        }
        match (self.supported_ferry, self.supported_native) {
            (Some(ferry), Some(native)) if ferry < native => {
                Some(format!("{ferry} cases are supported through Ferry, {native} natively"))
            }
            _ => None,
        }
    }

    /// Whether both say of the same thing what became of it.
    fn replaces(&self, other: &Self) -> bool {
        let subject =
            |row: &Self| [&row.suite, &row.client, &row.host, &row.backend, &row.device].map(String::clone);
        subject(self) == subject(other)
    }
}

/// Cases as they come.
#[derive(Debug, Default)]
pub struct Tally {
    /// Those that passed.
    pub passed: u64,
    /// The others.
    pub failures: Vec<String>,
}

impl Tally {
    /// Counts a case that passes if `holds`; what is wrong `otherwise`.
    pub fn check(&mut self, case: impl Display, holds: bool, otherwise: impl FnOnce() -> String) {
        self.count(case, if holds { Ok(()) } else { Err(anyhow::anyhow!(otherwise())) });
    }

    /// Counts a case.
    pub fn count(&mut self, case: impl Display, outcome: Result<()>) {
        match outcome {
            Ok(()) => self.passed += 1,
            Err(error) => {
                let message = format!("{error:#}");
                let lines: Vec<&str> = message.lines().take(MESSAGE_LINES).collect();
                self.failures.push(format!("{case}: {}", lines.join("\n")));
            }
        }
    }
}

/// The rows of a file.
pub fn read(path: &Path) -> Result<Vec<Row>> {
    let json = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_str(&json)
        .with_context(|| format!("{} has no rows of a conformance run", path.display()))
}

/// Puts `rows` into the file.
pub fn write(path: &Path, rows: &[Row]) -> Result<()> {
    let json = serde_json::to_string_pretty(rows)? + "\n";
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    fs::write(path, json).with_context(|| format!("writing {}", path.display()))
}

/// Adds `new` to `rows`: in the place of what it says anew, else at the end.
pub fn merge(rows: &mut Vec<Row>, new: impl IntoIterator<Item = Row>) {
    for row in new {
        match rows.iter_mut().find(|old| row.replaces(old)) {
            Some(old) => *old = row,
            None => rows.push(row),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn row(suite: &str, run: u64, failed: u64) -> Row {
        Row {
            suite: suite.into(),
            client: "b1".into(),
            host: "b1".into(),
            backend: "cpu".into(),
            device: "A CPU".into(),
            run,
            passed: run - failed,
            failed,
            supported_ferry: None,
            supported_native: None,
            failed_natively: 0,
            failures: Vec::new(),
            command: "cargo suite".into(),
            commit: "c0ffee".into(),
        }
    }

    #[test]
    fn a_row_is_good_only_if_something_ran_and_nothing_failed_that_passes_natively() {
        assert_eq!(row("a", 3, 0).complaint(), None);
        assert!(row("a", 3, 1).complaint().unwrap().contains("1 of 3"));
        assert_eq!(Row { failed_natively: 1, ..row("a", 3, 1) }.complaint(), None);
        assert!(row("a", 0, 0).complaint().is_some());
        let supported = |ferry, native| Row {
            supported_ferry: Some(ferry),
            supported_native: Some(native),
            ..row("a", 3, 0)
        };
        assert_eq!(supported(5, 5).complaint(), None);
        assert!(supported(4, 5).complaint().is_some());
    }

    #[test]
    fn a_new_row_takes_the_place_of_the_old_one() {
        let mut rows = vec![row("a", 1, 1), row("b", 1, 0)];
        merge(&mut rows, [row("a", 2, 0), row("c", 1, 0)]);
        let found: Vec<_> = rows.iter().map(|row| (row.suite.as_str(), row.run)).collect();
        assert_eq!(found, [("a", 2), ("b", 1), ("c", 1)]);
    }

    #[test]
    fn a_file_gives_back_its_rows_and_the_names_of_its_fields_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.json");
        let rows = [row("a", 3, 1)];
        write(&path, &rows).unwrap();
        assert_eq!(read(&path).unwrap(), rows);
        let json = fs::read_to_string(&path).unwrap();
        for field in ["suite", "client", "host", "backend", "run", "passed", "failed"] {
            assert!(json.contains(&format!("\"{field}\":")), "{json}");
        }
        assert!(json.contains("\"supported_native\": null"), "{json}");
    }
}
