//! Progress on standard error: a spinner on a terminal, plain lines (and not too many) elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How often a step that is still going on says so when nobody watches a spinner.
const PLAIN_INTERVAL: Duration = Duration::from_secs(30);

/// One step of work that takes a while. Ends with [`Step::done`]; dropped before, it just stops.
pub struct Step {
    what: String,
    started: Instant,
    said: Instant,
    spinner: Option<ProgressBar>,
}

impl Step {
    /// Says that `what` begins.
    pub fn begin(what: impl Into<String>) -> Self {
        let what = what.into();
        let now = Instant::now();
        let spinner = std::io::stderr().is_terminal().then(|| {
            let style =
                ProgressStyle::with_template("{spinner} {msg} ({elapsed})").expect("a fixed template");
            let spinner = ProgressBar::new_spinner().with_style(style).with_message(what.clone());
            spinner.enable_steady_tick(Duration::from_millis(120));
            spinner
        });
        if spinner.is_none() {
            eprintln!("  {what} …");
        }
        Self { what, started: now, said: now, spinner }
    }

    /// Says how far it has come; cheap enough to call at each line of a build.
    pub fn update(&mut self, detail: &str) {
        let line = format!("{}: {detail}", self.what);
        match &self.spinner {
            Some(spinner) => spinner.set_message(line),
            None if self.said.elapsed() > PLAIN_INTERVAL => {
                self.said = Instant::now();
                eprintln!("  {line}");
            }
            None => {}
        }
    }

    /// Says that the step is done, and how long it took.
    pub fn done(self) {
        let line = format!("✓ {} ({:.1} s)", self.what, self.started.elapsed().as_secs_f64());
        match &self.spinner {
            Some(spinner) => spinner.suspend(|| eprintln!("{line}")),
            None => eprintln!("{line}"),
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
    }
}
