//! Figures of several rounds, and a table of them.

use std::fmt::Write;

use crate::llama::Speed;

/// One arm of a comparison and what its rounds measured.
#[derive(Debug, Clone)]
pub struct Arm {
    /// The arm's name in the table.
    pub name: String,
    /// One entry a round.
    pub rounds: Vec<Speed>,
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

/// The arms as a table. A ratio is the median of those to the first arm in the same round: what changes from round to round
/// on a shared machine concerns both.
pub fn table(arms: &[Arm], (prompt, generate): (u32, u32)) -> String {
    let name_width = arms.iter().map(|arm| arm.name.chars().count()).max().unwrap_or(0);
    let (pp, tg) = (format!("pp{prompt} tok/s"), format!("tg{generate} tok/s"));
    let mut text = format!("{:name_width$}  {pp:>24}  ratio  {tg:>24}  ratio\n", "");
    let of = |arm: &Arm, pick: fn(&Speed) -> f64| spread(arm.rounds.iter().map(pick));
    for arm in arms {
        let _ = write!(text, "{:name_width$}", arm.name);
        for pick in [(|speed| speed.prompt) as fn(&Speed) -> f64, |speed| speed.generate] {
            let own = of(arm, pick);
            let ratios = arm.rounds.iter().zip(&arms[0].rounds).map(|(own, first)| pick(own) / pick(first));
            let range = format!("{:.1} ({:.1}–{:.1})", own.median, own.min, own.max);
            let _ = write!(text, "  {range:>24}  {:>5.3}", spread(ratios).median);
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
        let speed = |generate| Speed { prompt: 100.0, generate };
        let arm = |name: &str, generate| Arm { name: name.into(), rounds: vec![speed(generate)] };
        let text = table(&[arm("native", 50.0), arm("Ferry", 49.0)], (128, 48));
        let last = text.lines().last().unwrap();
        assert!(last.starts_with("Ferry") && last.ends_with("0.980"), "{text}");
    }
}
