//! Status lines: what a shim has to say about itself.
//!
//! One line each, appended by a single write, so that several processes may share a file:
//! `ferry-metal-shim[PID]: STATE: DETAIL`.

use core::fmt;

const PREFIX: &str = "ferry-metal-shim[";
/// Longest status line in bytes, newline included; longer ones are cut. Below `PIPE_BUF` (512 on macOS), so that
/// a line is never torn.
pub const LINE_LENGTH_MAX: usize = 512;

/// What a shim is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Configuration accepted; waiting for the process to make a device.
    Armed,
    /// A device that is not the paravirtual one was made and left alone.
    Skipped,
    /// The answers are raised.
    Installed,
    /// Installed, but the device calls itself something else: all answers are stock again.
    Withdrawn,
    /// The configuration, the token or the process was not acceptable; nothing was touched.
    Refused,
    /// Installing went wrong; what had been changed was put back.
    Failed,
}

impl State {
    const ALL: [Self; 6] =
        [Self::Armed, Self::Skipped, Self::Installed, Self::Withdrawn, Self::Refused, Self::Failed];

    /// The word that stands for it in a line.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Armed => "armed",
            Self::Skipped => "skipped",
            Self::Installed => "installed",
            Self::Withdrawn => "withdrawn",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }

    /// Whether it is bad news, which goes to the system log where no sink was named.
    #[must_use]
    pub fn is_trouble(self) -> bool {
        matches!(self, Self::Withdrawn | Self::Refused | Self::Failed)
    }
}

/// One status line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusLine<T> {
    /// The process that wrote it.
    pub pid: u32,
    /// What its shim is doing.
    pub state: State,
    /// Why, or with what.
    pub detail: T,
}

impl<T: fmt::Display> fmt::Display for StatusLine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}]: {}: {}", self.pid, self.state.word(), self.detail)
    }
}

impl<'a> StatusLine<&'a str> {
    /// Reads a line back; `None` if it is not one of ours.
    #[must_use]
    pub fn parse(line: &'a str) -> Option<Self> {
        let (pid, rest) = line.strip_prefix(PREFIX)?.split_once("]: ")?;
        let (word, detail) = rest.split_once(": ")?;
        let state = State::ALL.into_iter().find(|state| state.word() == word)?;
        Some(Self { pid: pid.parse().ok()?, state, detail })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn lines_come_back_as_they_went() {
        for state in State::ALL {
            let text = StatusLine { pid: 42, state, detail: "class=X: y" }.to_string();
            assert_eq!(StatusLine::parse(&text), Some(StatusLine { pid: 42, state, detail: "class=X: y" }));
        }
    }

    #[test]
    fn strangers_are_not_ours() {
        for line in ["", "hello", "ferry-metal-shim[x]: armed: y", "ferry-metal-shim[1]: asleep: y"] {
            assert_eq!(StatusLine::parse(line), None, "{line}");
        }
    }
}
