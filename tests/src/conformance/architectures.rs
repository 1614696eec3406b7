//! `test-llama-archs`: a small model of each architecture that llama.cpp knows, on each device, against the CPU.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::operations::without_colours;
use super::row::{Row, Tally};
use super::site::Site;
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
#[derive(Debug, PartialEq)]
struct Configuration {
    model: String,
    device: String,
    /// Whether its logits are near the CPU's, and the same after the model was written and read again; nothing where the
    /// suite has no such check for it.
    verdicts: [Option<bool>; 2],
}

impl Configuration {
    fn ran(&self) -> bool {
        self.verdicts.iter().any(Option::is_some)
    }

    fn outcome(&self) -> Result<()> {
        let [near, same] = self.verdicts;
        ensure!(near != Some(false), "its logits are not the CPU's");
        ensure!(same != Some(false), "its logits are others after it was written and read again");
        Ok(())
    }
}

/// Every architecture answers through Ferry as on the CPU.
pub fn test(site: &Site) -> Result<Vec<Row>> {
    let daemon = site.daemon()?;
    let mut command = Command::new(site.llama.bin.join("test-llama-archs"));
    Device::Ferry(daemon.socket()).environment(&mut command)?.args(["--seed", SEED]);
    command.env("LD_PRELOAD", programs::compile_load_backends(&site.llama.bin, site.dir())?);
    let mut step = Step::begin("test-llama-archs");
    let running = process::spawn(&mut command)?;
    let pid = running.pid().as_raw();
    let finished = running.watch(TIMEOUT, |running| {
        let models = configurations(&running.stdout());
        step.update(
            &models.map_or_else(|error| error.to_string(), |models| format!("{} models", models.len())),
        );
    })?;
    step.done();
    // Its exit status says whether all passed, on other devices too; a signal says that it did not come to its end.
    ensure!(finished.status.code().is_some(), "it was ended by a signal\n{}", finished.tail());
    let found = configurations(&finished.stdout).with_context(|| finished.tail())?;
    let ferry = found.iter().find(|found| found.device.ends_with(THROUGH_FERRY));
    let ferry = &ferry.with_context(|| format!("no device of Ferry's\n{}", finished.tail()))?.device;
    let native = ferry.rsplit_once(" (").map_or("", |(native, _)| native);
    let ran = |device: &str| -> Vec<&Configuration> {
        found.iter().filter(|found| found.device == device && found.ran()).collect()
    };
    // Each configuration computes a graph at least, and has a session of its own.
    daemon.expect_graphs(pid, ran(ferry).len() as u64)?;
    let row = |suite: &str, device: &str| {
        let (mut tally, ran) = (Tally::default(), ran(device));
        ran.iter().for_each(|configuration| tally.count(&configuration.model, configuration.outcome()));
        Row { supported_ferry: Some(ran.len() as u64), ..site.row(suite, tally) }
    };
    let supported_native = Some(ran(native).len() as u64);
    Ok(vec![
        Row { supported_native, ..row("`test-llama-archs`", ferry) },
        row("`test-llama-archs`, tensors split over all of Ferry's devices", SPLIT),
    ])
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
        let verdicts = [verdict(near)?, verdict(same)?];
        found.push(Configuration { model: format!("{model} {kind}"), device: device.to_owned(), verdicts });
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
        assert!(found[0].outcome().is_ok() && found[1].outcome().is_err() && !found[2].ran());
    }
}
