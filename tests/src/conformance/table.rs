//! The table of what passes: for a terminal, and for the README.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::builds::PAIRS;
use super::row::Row;

/// What the README has before and after the part that is made here.
const MARKERS: [&str; 2] =
    ["<!-- conformance: what follows is written by a run -->", "<!-- conformance: end -->"];
const TITLES: [&str; 8] =
    ["suite", "guest", "host", "back-end", "run", "passed", "failed", "supported: Ferry / native"];
/// The first of [`TITLES`] whose column is of numbers.
const FIRST_NUMBER: usize = 4;

/// 1234567 as 1,234,567.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn cells(row: &Row) -> [String; 8] {
    let failed = match row.failed_natively {
        0 => thousands(row.failed),
        natively => format!("{} (natively too: {natively})", row.failed),
    };
    let supported = match (row.supported_ferry, row.supported_native) {
        (Some(ferry), Some(native)) => format!("{} / {}", thousands(ferry), thousands(native)),
        (Some(ferry), None) => thousands(ferry),
        _ => String::new(),
    };
    let host = if row.host == row.client { "same".into() } else { row.host.clone() };
    let (run, passed) = (thousands(row.run), thousands(row.passed));
    // One CPU computes what the other does; of GPUs it matters which.
    let backend = match row.backend.as_str() {
        "cpu" => row.backend.clone(),
        backend => format!("{backend}: {}", row.device),
    };
    [row.suite.clone(), row.client.clone(), host, backend, run, passed, failed, supported]
}

/// The rows in columns, with what is wrong below.
pub fn text(rows: &[Row]) -> String {
    let lines: Vec<[String; 8]> =
        std::iter::once(TITLES.map(str::to_owned)).chain(rows.iter().map(cells)).collect();
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..TITLES.len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let mut padded = String::new();
        for (at, (cell, &width)) in line.iter().zip(&widths).enumerate() {
            let _ = match at < FIRST_NUMBER {
                true => write!(padded, "{cell:width$}  "),
                false => write!(padded, "{cell:>width$}  "),
            };
        }
        text.push_str(padded.trim_end());
        text.push('\n');
    }
    for row in rows {
        for failure in &row.failures {
            let _ = writeln!(text, "\n✗ {}, {} to {}: {failure}", row.suite, row.client, row.host);
        }
    }
    text
}

/// The rows for the README: the suites in one table, the pairs of releases in another.
fn markdown(rows: &[Row]) -> String {
    let (pairs, suites): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.suite == PAIRS);
    let mut text = String::new();
    let mut sources: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    rows.iter().for_each(|row| {
        sources.entry(&row.command).or_default().insert(&row.commit);
    });
    let sources = sources.into_iter().map(|(command, commits)| {
        format!("`{command}` at {}", commits.into_iter().collect::<Vec<_>>().join(" and "))
    });
    let _ = writeln!(text, "Made by {}.\n", sources.collect::<Vec<_>>().join(", "));
    let _ = writeln!(text, "| {} |\n|---|---|---|---|---:|---:|---:|---:|", TITLES.join(" | "));
    for row in suites {
        let _ = writeln!(text, "| {} |", cells(row).join(" | "));
    }
    if !pairs.is_empty() {
        let _ = write!(text, "\n{}", matrix(&pairs));
    }
    text
}

/// Guests downwards, hosts across.
fn matrix(pairs: &[&Row]) -> String {
    let order = |side: fn(&Row) -> &str| {
        let mut names: Vec<&str> = Vec::new();
        for row in pairs {
            if !names.contains(&side(row)) {
                names.push(side(row));
            }
        }
        names
    };
    let (clients, hosts) = (order(|row| &row.client), order(|row| &row.host));
    let mut text = format!(
        "{PAIRS}, guests downwards and hosts across (passed of run; what two releases do not mean alike may be declined):\n\n"
    );
    let _ = writeln!(text, "| | {} |\n|---|{}", hosts.join(" | "), "---|".repeat(hosts.len()));
    for client in clients {
        let found = |host: &&str| pairs.iter().find(|row| row.client == client && row.host == *host);
        let cell = |host: &&str| match found(host) {
            Some(row) => format!("{} of {}", row.passed, row.run),
            None => "—".to_owned(),
        };
        let _ = writeln!(text, "| {client} | {} |", hosts.iter().map(cell).collect::<Vec<_>>().join(" | "));
    }
    text
}

/// Puts the table where the README has its markers.
pub fn write_readme(path: &Path, rows: &[Row]) -> Result<()> {
    let readme = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let replaced = between_markers(&readme, &markdown(rows))
        .with_context(|| format!("{} has not the lines {MARKERS:?}", path.display()))?;
    fs::write(path, replaced).with_context(|| format!("writing {}", path.display()))
}

fn between_markers(readme: &str, part: &str) -> Option<String> {
    let [begin, end] = MARKERS;
    let (before, rest) = readme.split_once(begin)?;
    let (_, after) = rest.split_once(end)?;
    Some(format!("{before}{begin}\n\n{part}\n{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(suite: &str, client: &str, host: &str, failed: u64) -> Row {
        Row {
            suite: suite.into(),
            client: client.into(),
            host: host.into(),
            backend: "cpu".into(),
            device: "A CPU".into(),
            run: 18_087,
            passed: 18_087 - failed,
            failed,
            supported_ferry: Some(1_000),
            supported_native: Some(999),
            failed_natively: 0,
            failures: vec!["ADD(x): wrong".into(); failed as usize],
            command: "cargo suite -- conformance".into(),
            commit: "c0ffee".into(),
        }
    }

    #[test]
    fn a_suite_is_a_line_and_a_failure_is_listed() {
        let text = text(&[row("ops", "b1", "b1", 0), row("archs", "b1", "b2", 1)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1],
            "ops    b1     same  cpu       18,087  18,087       0                1,000 / 999"
        );
        assert_eq!(
            lines[2],
            "archs  b1     b2    cpu       18,087  18,086       1                1,000 / 999"
        );
        assert_eq!(lines[4], "✗ archs, b1 to b2: ADD(x): wrong");
    }

    #[test]
    fn the_readme_has_a_line_for_each_suite_and_a_cell_for_each_pair() {
        let mut rows =
            vec![row("`ops`", "b1", "b1", 0), row(PAIRS, "b1", "b1", 0), row(PAIRS, "b2", "b1", 0)];
        rows.push(Row { run: 2, passed: 1, commit: "f00".into(), ..row(PAIRS, "b1", "b2", 1) });
        let text = markdown(&rows);
        assert!(
            text.starts_with("Made by `cargo suite -- conformance` at c0ffee and f00.\n\n| suite | guest |"),
            "{text}"
        );
        assert!(
            text.contains("\n| `ops` | b1 | same | cpu | 18,087 | 18,087 | 0 | 1,000 / 999 |\n"),
            "{text}"
        );
        assert!(
            text.contains("\n| | b1 | b2 |\n|---|---|---|\n| b1 | 18087 of 18087 | 1 of 2 |\n"),
            "{text}"
        );
        assert!(text.ends_with("| b2 | 18087 of 18087 | — |\n"), "{text}");
    }

    #[test]
    fn what_is_between_the_markers_is_replaced_and_nothing_else() {
        let [begin, end] = MARKERS;
        let readme = format!("a\n{begin}\nold\n{end}\nb\n");
        let once = between_markers(&readme, "new\n").unwrap();
        assert_eq!(once, format!("a\n{begin}\n\nnew\n\n{end}\nb\n"));
        assert_eq!(between_markers(&once, "new\n").unwrap(), once);
        assert!(between_markers("a\nb\n", "new\n").is_none());
    }

    #[test]
    fn the_readme_has_its_markers() {
        let readme = fs::read_to_string(crate::checkout::root().join("README.md")).unwrap();
        assert!(between_markers(&readme, "").is_some());
    }
}
