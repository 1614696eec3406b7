//! Interleaved rounds, their figures, and a table of them.

use std::fmt::{self, Display, Formatter, Write};

use anyhow::Result;
use serde::Serialize;

/// One arm of a comparison and what its rounds measured.
#[derive(Debug, Clone)]
pub struct Arm {
    /// The arm's name in the table.
    pub name: String,
    /// For each round, a figure of each column.
    pub rounds: Vec<Vec<f64>>,
}

/// Lets each of `arms` have a turn in each of so many rounds. Each round begins with another arm: what comes after a
/// pause, or after a certain other one, is not always the same.
pub fn rotate(
    rounds: u32,
    arms: &mut [Arm],
    mut turn: impl FnMut(u32, usize, &str) -> Result<Vec<f64>>,
) -> Result<()> {
    for round in 0..rounds {
        for at in 0..arms.len() {
            let at = (round as usize + at) % arms.len();
            let figures = turn(round, at, &arms[at].name)?;
            arms[at].rounds.push(figures);
        }
    }
    Ok(())
}

impl Arm {
    /// Without figures yet.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), rounds: Vec::new() }
    }

    /// The figures of a column, in the order of the rounds.
    pub fn column(&self, column: usize) -> impl Iterator<Item = f64> {
        self.rounds.iter().map(move |round| round[column])
    }

    /// How a column compares with that of `other`: the median of the ratios in the same round, since what changes from round
    /// to round on a shared machine concerns both.
    pub fn ratio(&self, other: &Self, column: usize) -> Ratio {
        let mut ratios: Vec<f64> =
            self.column(column).zip(other.column(column)).map(|(own, other)| own / other).collect();
        ratios.sort_by(f64::total_cmp);
        let left_out = left_out(ratios.len());
        let (low, high) = (ratios[left_out], ratios[ratios.len() - 1 - left_out]);
        Ratio { median: spread(ratios).median, low, high }
    }
}

/// A median of ratios, and where that of endless rounds would lie.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ratio {
    /// Of the rounds.
    pub median: f64,
    /// With 95 % confidence it is not below this; with fewer than six rounds, the lowest.
    pub low: f64,
    /// Nor above this; the highest.
    pub high: f64,
}

impl Display for Ratio {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ({:.3}–{:.3})", self.median, self.low, self.high)
    }
}

/// How many of so many sorted figures at each end are not needed for an interval that has the median of what they are
/// drawn from in it with 95 % probability. Each figure is as likely to be below that median as above it, whatever the
/// distribution (the interval of the sign test).
fn left_out(figures: usize) -> usize {
    let n = figures as f64;
    // That exactly `k` lie below has the binomial probability; both ends count.
    let mut probability = 2.0 * 0.5f64.powf(n);
    let (mut sum, mut k) = (probability, 0usize);
    while sum <= 0.05 {
        probability *= (n - k as f64) / (k as f64 + 1.0);
        sum += probability;
        k += 1;
    }
    k.saturating_sub(1)
}

/// The middle of some figures, and how far they spread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Smallest.
    pub min: f64,
    /// Median: the mean of the middle two if the number is even.
    pub median: f64,
    /// Largest.
    pub max: f64,
}

/// The spread of at least one figure.
pub fn spread(figures: impl IntoIterator<Item = f64>) -> Spread {
    let mut sorted: Vec<f64> = figures.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let (first, last) = (sorted[0], sorted[sorted.len() - 1]);
    let median = (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0;
    Spread { min: first, median, max: last }
}

/// The arms as a table with these columns; ratios are to the first arm.
pub fn table(arms: &[Arm], columns: &[String]) -> String {
    let name_width = arms.iter().map(|arm| arm.name.chars().count()).max().unwrap_or(0);
    let mut text = format!("{:name_width$}", "");
    for column in columns {
        let _ = write!(text, "  {column:>24}  {:<19}", "ratio");
    }
    text.push('\n');
    for arm in arms {
        let _ = write!(text, "{:name_width$}", arm.name);
        for column in 0..columns.len() {
            let own = spread(arm.column(column));
            let digits = if own.median < 10.0 { 2 } else { 1 };
            let range = format!("{:.digits$} ({:.digits$}–{:.digits$})", own.median, own.min, own.max);
            let _ = write!(text, "  {range:>24}  {}", arm.ratio(&arms[0], column));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_middle_two() {
        assert_eq!(spread([3.0, 1.0, 2.0]), Spread { min: 1.0, median: 2.0, max: 3.0 });
        assert_eq!(spread([4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(spread([7.0]), Spread { min: 7.0, median: 7.0, max: 7.0 });
    }

    #[test]
    fn ratios_are_to_the_first_arm() {
        let arm = |name: &str, generate| Arm { name: name.into(), rounds: vec![vec![100.0, generate]] };
        let columns = ["pp128".to_owned(), "tg48".to_owned()];
        let text = table(&[arm("native", 50.0), arm("Ferry", 49.0)], &columns);
        let last = text.lines().last().unwrap();
        assert!(last.starts_with("Ferry") && last.ends_with("0.980 (0.980–0.980)"), "{text}");
    }

    #[test]
    fn a_ratio_lies_between_the_figures_that_the_sign_test_names() {
        // From tables of that test at 5 %, both ends: how many may be on the rarer side.
        let table = [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (12, 2), (16, 3), (20, 5), (25, 7)];
        for (figures, critical) in table {
            assert_eq!(left_out(figures), critical, "{figures}");
        }
        let arm =
            |figures: [f64; 9]| Arm { name: String::new(), rounds: figures.map(|one| vec![one]).into() };
        let (own, other) = (arm([9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]), arm([1.0; 9]));
        assert_eq!(own.ratio(&other, 0), Ratio { median: 5.0, low: 2.0, high: 8.0 });
    }

    #[test]
    fn each_round_begins_with_another_arm_and_every_arm_has_its_turn() {
        let (mut arms, mut order) = ([Arm::new("a"), Arm::new("b"), Arm::new("c")], String::new());
        rotate(2, &mut arms, |round, at, name| {
            order += name;
            Ok(vec![f64::from(round), at as f64])
        })
        .unwrap();
        assert_eq!(order, "abcbca");
        assert_eq!(arms[2].rounds, [[0.0, 2.0], [1.0, 2.0]]);
    }
}
