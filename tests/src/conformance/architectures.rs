//! `test-llama-archs`: a small model of each architecture that llama.cpp knows, on each device, against the CPU.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::operations::without_colours;
use super::row::{Row, Tally};
use super::site::{Site, without_own_gpus};
use crate::llama::Device;
use crate::progress::Step;
use crate::{process, programs};

/// All architectures, on two cores that others use too.
const TIMEOUT: Duration = Duration::from_secs(3600);
/// The weights and tokens are random: the same ones each time.
const SEED: &str = "42";
/// What Ferry's plug-in puts behind the name of a device.
const THROUGH_FERRY: &str = " through Ferry)";
/// What the suite calls all devices that are none of the CPU's, with each tensor split over them.
const SPLIT: &str = "Meta";

/// A model on a device.
#[derive(Debug, Clone, PartialEq)]
struct Configuration {
    model: String,
    device: String,
    /// Whether its logits are near the CPU's, and the same after the model was written and read again; nothing where the
    /// suite has no such check for it.
    verdicts: [Option<bool>; 2],
    /// The normalised mean squared error of its logits.
    error: Option<f64>,
}

impl Configuration {
    fn ran(&self) -> bool {
        self.verdicts.iter().any(Option::is_some)
    }

    /// The suite allows a small error. Where the kernels are the CPU's own, it can be told to be none: `exactly`.
    fn outcome(&self, exactly: bool) -> Result<()> {
        let [near, same] = self.verdicts;
        // Where all logits are 0 on either side, it is none of the numbers.
        let apart = self.error.is_some_and(|error| error > 0.0);
        ensure!(!(exactly && apart), "its logits are apart by {:?}", self.error);
        ensure!(near != Some(false), "its logits are not the CPU's: {:?}", self.error);
        ensure!(same != Some(false), "its logits are others after it was written and read again");
        Ok(())
    }
}

/// Every architecture answers through Ferry as on the CPU.
pub fn test(site: &Site) -> Result<Vec<Row>> {
    let machines = site.machines(1)?;
    let daemon = machines.daemon();
    let (pid, ferry) = attend(site, &Device::Ferry(daemon.socket()), "through Ferry")?;
    let device = ferry.iter().map(|found| found.device.as_str()).find(|name| name.ends_with(THROUGH_FERRY));
    let device = device.context("none of the devices is Ferry's")?;
    let native_device = device.rsplit_once(" (").map_or("", |(native, _)| native);
    let ran = |found: &'_ [Configuration], device: &str| -> Vec<Configuration> {
        found.iter().filter(|found| found.device == device && found.ran()).cloned().collect()
    };
    let (on_ferry, split) = (ran(&ferry, device), ran(&ferry, SPLIT));
    // Each configuration computes a graph at least, and has a session of its own.
    daemon.expect_graphs(pid, (on_ferry.len() + split.len()) as u64)?;
    // The CPU is a device of every run, and nothing is split over it. Natively there may be one device to split over.
    let (native, native_split) = match site.backend.as_str() {
        "cpu" => (ran(&ferry, native_device), Vec::new()),
        _ => {
            let (_, native) = attend(site, &site.native, "natively")?;
            (ran(&native, native_device), ran(&native, SPLIT))
        }
    };
    Ok(vec![
        row(site, "`test-llama-archs`", &on_ferry, &native, site.backend == "cpu"),
        row(
            site,
            "`test-llama-archs`, tensors split over the host's device and a ggml-rpc server",
            &split,
            &native_split,
            false,
        ),
    ])
}

/// Runs the suite on a device and the CPU. Returns its process id, and what it found.
fn attend(site: &Site, device: &Device, how: &str) -> Result<(i32, Vec<Configuration>)> {
    let mut command = Command::new(site.llama.bin.join("test-llama-archs"));
    device.environment(&mut command)?.args(["--seed", SEED]);
    if matches!(device, Device::Ferry(_)) {
        without_own_gpus(&mut command);
    }
    command.env("LD_PRELOAD", programs::compile_load_backends(&site.llama.bin, site.dir())?);
    let mut step = Step::begin(format!("test-llama-archs {how}"));
    let running = process::spawn(&mut command)?;
    let pid = running.pid().as_raw();
    let finished = running.watch(TIMEOUT, |running| {
        let found = configurations(&running.stdout()).map_or(0, |found| found.len());
        step.update(&format!("{found} cases"));
    })?;
    step.done();
    // Its exit status says whether all passed, on other devices too; a signal says that it did not come to its end.
    ensure!(finished.status.code().is_some(), "it was ended by a signal\n{}", finished.tail());
    Ok((pid, configurations(&finished.stdout).with_context(|| finished.tail())?))
}

fn row(site: &Site, suite: &str, ferry: &[Configuration], native: &[Configuration], exactly: bool) -> Row {
    let fails_natively = |ferry: &&Configuration| {
        native.iter().any(|native| native.model == ferry.model && native.outcome(exactly).is_err())
    };
    let failing = ferry.iter().filter(|found| found.outcome(exactly).is_err());
    let mut tally = Tally::default();
    ferry.iter().for_each(|found| tally.count(&found.model, found.outcome(exactly)));
    Row {
        supported_ferry: Some(ferry.len() as u64),
        supported_native: (!native.is_empty()).then_some(native.len() as u64),
        failed_natively: failing.filter(fails_natively).count() as u64,
        ..site.row(suite, tally)
    }
}

/// Reads the suite's table; its last line may be cut.
fn configurations(stdout: &str) -> Result<Vec<Configuration>> {
    let mut found = Vec::new();
    for line in stdout.lines().filter(|line| line.starts_with('|')) {
        let line = without_colours(line);
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let &["", model, device, kind, near, same, ""] = cells.as_slice() else { continue };
        if kind == "Config" || kind.starts_with('-') {
            continue;
        }
        let (model, device) = (format!("{model} {kind}"), device.to_owned());
        let error = near.split_once('(').and_then(|(_, error)| error.trim_end_matches(')').parse().ok());
        found.push(Configuration { model, device, verdicts: [verdict(near)?, verdict(same)?], error });
    }
    Ok(found)
}

fn verdict(cell: &str) -> Result<Option<bool>> {
    Ok(match cell.split(' ').next() {
        Some("OK") => Some(true),
        Some("FAIL") => Some(false),
        Some("SKIP") => None,
        _ => bail!("test-llama-archs says {cell:?}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suites_table_is_read_but_for_its_title_and_a_cut_line() {
        let said = "test: using seed 42\n\
            |  Model arch.|  Device|Config|   NMSE vs. CPU|Roundtrip|\n|------|-----|------|--------|---------|\n\
            |  llama|X (CPU through Ferry)| Dense|\x1b[1;32mOK\x1b[0m (0.00e+00)|  \x1b[1;32mOK\x1b[0m|\n\
            |  llama|  Meta|   MoE|\x1b[1;31mFAIL\x1b[0m (1.00e+00)|  \x1b[1;33mSKIP\x1b[0m|\n\
            |  clip|  X| Dense|\x1b[1;33mSKIP\x1b[0m  |  \x1b[1;33mSKIP\x1b[0m|\n|  gpt2|  X| Dense|";
        let found = configurations(said).unwrap();
        let verdicts: Vec<_> = found.iter().map(|found| found.verdicts).collect();
        assert_eq!(verdicts, [[Some(true), Some(true)], [Some(false), None], [None, None]]);
        assert_eq!((found[0].model.as_str(), found[1].device.as_str()), ("llama Dense", SPLIT));
        let errors: Vec<_> = found.iter().map(|found| found.error).collect();
        assert_eq!(errors, [Some(0.0), Some(1.0), None]);
        assert!(found[0].outcome(true).is_ok() && found[1].outcome(false).is_err() && !found[2].ran());
        let near = Configuration { error: Some(1e-9), ..found[0].clone() };
        assert!(near.outcome(false).is_ok() && near.outcome(true).is_err());
    }
}
