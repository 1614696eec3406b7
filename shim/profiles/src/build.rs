//! Builds of programs: `b10167` as llama.cpp counts, or `0.32.0`.

use std::fmt;
use std::str::FromStr;

/// Most numbers in a dotted version.
const PARTS_MAX: usize = 4;

/// One build of a program, ordered within its way of counting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build {
    is_counted: bool,
    parts: Vec<u32>,
}

/// A range of builds, both ends included: `b10167`, `b6300..b10605`, `b6300..`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildRange {
    first: Build,
    last: Option<Build>,
}

impl FromStr for Build {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || format!("'{text}' is not a build: want b10167 or 0.32.0");
        let (is_counted, numbers) = match text.strip_prefix('b') {
            Some(number) => (true, number),
            None => (false, text),
        };
        let number =
            |part: &str| part.parse::<u32>().ok().filter(|_| part.bytes().all(|c| c.is_ascii_digit()));
        let parts: Option<Vec<u32>> = numbers.split('.').map(number).collect();
        let parts =
            parts.filter(|p| p.len() <= if is_counted { 1 } else { PARTS_MAX }).ok_or_else(malformed)?;
        Ok(Self { is_counted, parts })
    }
}

impl FromStr for BuildRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((first, last)) = text.split_once("..") else {
            let only: Build = text.parse()?;
            return Ok(Self { first: only.clone(), last: Some(only) });
        };
        let first: Build = first.parse()?;
        let last = if last.is_empty() { None } else { Some(last.parse::<Build>()?) };
        let is_ordered = last
            .as_ref()
            .is_none_or(|last| last.is_counted == first.is_counted && *last.parts >= *first.parts);
        if is_ordered { Ok(Self { first, last }) } else { Err(format!("'{text}' ends before it begins")) }
    }
}

impl BuildRange {
    /// Is this build in the range? A build counted in another way never is.
    #[must_use]
    pub fn contains(&self, build: &Build) -> bool {
        build.is_counted == self.first.is_counted
            && build.parts >= self.first.parts
            && self.last.as_ref().is_none_or(|last| build.parts <= last.parts)
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.parts.iter().map(u32::to_string).collect();
        write!(f, "{}{}", if self.is_counted { "b" } else { "" }, parts.join("."))
    }
}

impl fmt::Display for BuildRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.last {
            Some(last) if *last == self.first => write!(f, "{last}"),
            Some(last) => write!(f, "{}..{last}", self.first),
            None => write!(f, "{}..", self.first),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> BuildRange {
        text.parse().expect("a range")
    }

    fn build(text: &str) -> Build {
        text.parse().expect("a build")
    }

    #[test]
    fn ranges_hold_both_ends() {
        let closed = range("b6300..b10605");
        for (text, inside) in
            [("b6299", false), ("b6300", true), ("b10605", true), ("b10606", false), ("6301", false)]
        {
            assert_eq!(closed.contains(&build(text)), inside, "{text}");
        }
        assert!(range("b6300..").contains(&build("b99999")));
        assert!(range("0.32.0").contains(&build("0.32.0")) && !range("0.32.0").contains(&build("0.32.1")));
        assert!(range("0.9.0..0.10").contains(&build("0.9.5")));
    }

    #[test]
    fn what_is_not_a_build() {
        for text in
            ["", "b", "10167b", "b1.2", "1..2", "-1", "+1", "1.2.3.4.5", "b99999999999", "latest", "1. 2"]
        {
            assert!(text.parse::<Build>().is_err(), "{text}");
        }
        for text in ["..b1", "b2..b1", "b1..2", "b1...b2"] {
            assert!(text.parse::<BuildRange>().is_err(), "{text}");
        }
    }

    #[test]
    fn they_print_as_they_read() {
        for text in ["b10167", "b6300..", "b6300..b10605", "0.32.0"] {
            assert_eq!(range(text).to_string(), text);
        }
    }
}
