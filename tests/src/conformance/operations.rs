//! `test-backend-ops`: ggml's operations one by one, against its CPU reference.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::row::{Row, Tally};
use super::site::Site;
use crate::llama::{Device, FERRY_DEVICE};
use crate::process::{self, Finished};
use crate::progress::Step;

/// All operations, on two cores that others use too.
const TIMEOUT: Duration = Duration::from_secs(3 * 3600);
/// What is timed: a few that take seconds, not minutes.
const TIMED: &str = "ADD,ARGMAX";

/// What test-backend-ops says in its `test` mode.
#[derive(Debug, Default, PartialEq)]
struct Tested {
    passed: u64,
    run: u64,
    failing: Vec<String>,
}

impl Site {
    fn operations_command(
        &self,
        mode: &str,
        device: &Device,
        name: &str,
        only: Option<&str>,
    ) -> Result<Command> {
        let mut command = Command::new(self.llama.bin.join("test-backend-ops"));
        device.environment(&mut command)?.args([mode, "-b", name]);
        if let Some(only) = only.or(self.operations.as_deref()) {
            command.args(["-o", only]);
        }
        Ok(command)
    }

    /// The name of a suite, which says if not all of it was run.
    fn titled(&self, suite: &str) -> String {
        match &self.operations {
            Some(only) => format!("{suite} -o {only}"),
            None => suite.to_owned(),
        }
    }
}

/// Runs it with the number of cases shown as it grows. Returns its process id too.
fn attend(command: &mut Command, what: &str) -> Result<(i32, Finished)> {
    let mut step = Step::begin(what);
    let running = process::spawn(command)?;
    let pid = running.pid().as_raw();
    let finished = running.watch(TIMEOUT, |running| {
        let said = running.stdout();
        let last = said.lines().rev().find_map(|line| line.trim_start().split_once('('));
        step.update(&format!("{} cases, {}", said.lines().count(), last.unwrap_or_default().0));
    })?;
    step.done();
    Ok((pid, finished))
}

/// Each operation computes through Ferry what the CPU reference computes.
pub fn test(site: &Site) -> Result<Vec<Row>> {
    let daemon = site.daemon()?;
    let mut command = site.operations_command("test", &Device::Ferry(daemon.socket()), FERRY_DEVICE, None)?;
    let mut suite = "`test-backend-ops test`".to_owned();
    if site.jobs > 1 {
        command.args(["-j", &site.jobs.to_string()]);
        suite = format!("`test-backend-ops test -j {}`", site.jobs);
    }
    let (pid, finished) = attend(&mut command, "test-backend-ops test through Ferry")?;
    let tested = tested(&finished.stdout).with_context(|| finished.tail())?;
    daemon.expect_graphs(pid, tested.run)?;
    let failed_natively = native_failures(site, &tested.failing)?;
    let tally = Tally { passed: tested.passed, failures: tested.failing };
    let row = site.row(&site.titled(&suite), tally);
    Ok(vec![Row { failed_natively, ..row }])
}

/// How many of these cases fail on the back-end itself.
fn native_failures(site: &Site, failing: &[String]) -> Result<u64> {
    let mut failures = 0;
    for case in failing {
        let mut command = site.operations_command("test", &site.native, site.native_name(), Some(case))?;
        let finished = process::run(&mut command, TIMEOUT)?;
        failures += u64::from(!tested(&finished.stdout).with_context(|| finished.tail())?.failing.is_empty());
    }
    Ok(failures)
}

/// Reads the summary. There is none if the program ended early.
fn tested(stdout: &str) -> Result<Tested> {
    let summary = |line: &str| -> Option<(u64, u64)> {
        let (passed, run) = line.trim().strip_suffix(" tests passed")?.split_once('/')?;
        Some((passed.parse().ok()?, run.parse().ok()?))
    };
    let (passed, run) = stdout.lines().find_map(summary).context("test-backend-ops gives no summary")?;
    let failing: Vec<String> = stdout
        .lines()
        .skip_while(|line| *line != "Failing tests:")
        .skip(1)
        .map_while(|line| line.strip_prefix("  ").filter(|case| !case.starts_with("Backend ")))
        .map(str::to_owned)
        .collect();
    ensure!(passed + failing.len() as u64 == run, "{passed} of {run} passed, but these failed: {failing:?}");
    Ok(Tested { passed, run, failing })
}

/// No case that is supported natively is not through Ferry.
pub fn support(site: &Site) -> Result<Vec<Row>> {
    let daemon = site.daemon()?;
    let ask = |device: &Device, name: &str, what: &str| -> Result<Vec<(String, bool)>> {
        let mut command = site.operations_command("support", device, name, None)?;
        let (_, finished) = attend(&mut command, &format!("test-backend-ops support {what}"))?;
        Ok(supported(&finished.success()?.stdout))
    };
    let ferry = ask(&Device::Ferry(daemon.socket()), FERRY_DEVICE, "through Ferry")?;
    let native = ask(&site.native, site.native_name(), "natively")?;
    let mut tally = Tally::default();
    ensure!(ferry.len() == native.len(), "{} cases through Ferry, {} natively", ferry.len(), native.len());
    for ((case, here), (native_case, there)) in ferry.iter().zip(&native) {
        ensure!(case == native_case, "{case} comes where {native_case} comes natively");
        tally.check(case, here >= there, || "is supported natively and not through Ferry".into());
    }
    let count =
        |cases: &[(String, bool)]| Some(cases.iter().filter(|(_, supported)| *supported).count() as u64);
    let row = site.row(&site.titled("`test-backend-ops support`"), tally);
    Ok(vec![Row { supported_ferry: count(&ferry), supported_native: count(&native), ..row }])
}

/// The cases of the `support` mode, and whether each is supported.
fn supported(stdout: &str) -> Vec<(String, bool)> {
    let case = |line: &str| {
        let line = without_colours(line);
        let (case, verdict) = line.strip_prefix("  ")?.rsplit_once(": ")?;
        let supported = match verdict.trim() {
            "SUPPORTED" => true,
            "NOT SUPPORTED" => false,
            _ => return None,
        };
        Some((case.to_owned(), supported))
    };
    stdout.lines().filter_map(case).collect()
}

/// Operations can be timed; each of them is computed on the host.
pub fn perf(site: &Site) -> Result<Vec<Row>> {
    let daemon = site.daemon()?;
    let only = site.operations.as_deref().unwrap_or(TIMED);
    let mut command =
        site.operations_command("perf", &Device::Ferry(daemon.socket()), FERRY_DEVICE, Some(only))?;
    let (pid, finished) = attend(&mut command, "test-backend-ops perf through Ferry")?;
    let finished = finished.success()?;
    daemon.successful_session_of(pid)?;
    let mut tally = Tally::default();
    for line in finished.stdout.lines().filter(|line| line.starts_with("  ") && line.contains("): ")) {
        let timed = line.contains(" us/run - ") || line.ends_with("not supported");
        tally.check(line.trim(), timed, || "was not timed".into());
    }
    Ok(vec![site.row(&format!("`test-backend-ops perf -o {only}`"), tally)])
}

/// A line less what makes a terminal colour it.
pub fn without_colours(line: &str) -> String {
    let mut parts = line.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or("", |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_and_the_failing_cases_are_read() {
        let good = "Backend 1/2: Ferry0\n  ADD(type=f32): \x1b[1;32mOK\x1b[0m\n  2/2 tests passed\n  Backend Ferry0: OK\n";
        assert_eq!(tested(good).unwrap(), Tested { passed: 2, run: 2, failing: Vec::new() });
        let bad = "  1/3 tests passed\n\nFailing tests:\n  ADD(a=[1,2])\n  MUL(b)\n  Backend Ferry0: FAIL\n1/2 backends passed\n";
        let failing = ["ADD(a=[1,2])", "MUL(b)"].map(str::to_owned).into();
        assert_eq!(tested(bad).unwrap(), Tested { passed: 1, run: 3, failing });
        // It crashed, or names fewer than it counts.
        assert!(tested("  ADD(type=f32): ").is_err());
        assert!(tested("  1/3 tests passed\n\nFailing tests:\n  ADD(a)\n").is_err());
    }

    #[test]
    fn supported_cases_are_told_from_others() {
        let said = "  ADD(a): \x1b[1;32mSUPPORTED\x1b[0m\n  MUL(b): \x1b[1;31mNOT SUPPORTED\x1b[0m\n  Backend CPU: OK\n";
        assert_eq!(supported(said), [("ADD(a)".into(), true), ("MUL(b)".into(), false)]);
    }
}
