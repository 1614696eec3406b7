//! `llama-perplexity`: how well a model foretells a text, which is a number of many digits.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::row::{Row, Tally};
use super::site::Site;
use crate::llama::{Device, THREADS};
use crate::process;
use crate::progress::Step;

/// A few chunks of text, on two cores that others use too.
const TIMEOUT: Duration = Duration::from_secs(1800);
const CHUNKS: u32 = 4;
/// English prose that is at hand everywhere.
const TEXT: &str = include_str!("../../../protocol/SPEC.md");

/// The figures are the native ones to the last digit: after each chunk, and at the end.
pub fn test(site: &Site) -> Result<Vec<Row>> {
    let text = site.dir().join("text");
    fs::write(&text, TEXT).context("writing the text")?;
    let model = site.model()?;
    let step = Step::begin("llama-perplexity natively");
    let native = process::run(&mut command(site, &site.native, model, &text)?, TIMEOUT)?.success()?;
    step.done();
    let expected = figures(&(native.stdout.clone() + &native.stderr));
    ensure!(expected.len() > CHUNKS as usize, "it gives no figures\n{}", native.tail());
    let daemon = site.daemon()?;
    let step = Step::begin("llama-perplexity through Ferry");
    let device = Device::Ferry(daemon.socket());
    let (ferry, _) = daemon.serve(&mut command(site, &device, model, &text)?, TIMEOUT)?;
    step.done();
    let found = figures(&(ferry.stdout + &ferry.stderr));
    ensure!(found.len() == expected.len(), "its figures are {found:?}, natively {expected:?}");
    let mut tally = Tally::default();
    for (found, expected) in found.iter().zip(&expected) {
        tally.check(found, found == expected, || format!("natively it is {expected}"));
    }
    Ok(vec![site.row(&format!("`llama-perplexity`, {CHUNKS} chunks of 512 tokens"), tally)])
}

fn command(site: &Site, device: &Device, model: &Path, text: &Path) -> Result<Command> {
    let mut command = site.llama.program("llama-perplexity", device)?;
    command.arg("--model").arg(model).arg("--file").arg(text).args(["--ctx-size", "512"]);
    command.args(["--chunks", &CHUNKS.to_string(), "--threads", THREADS, "--fit", "off"]);
    Ok(command)
}

/// The figures in what it says: "[1]12.3456,[2]23.4567," and "Final estimate: PPL = 12.3456 +/- 1.23456".
fn figures(said: &str) -> Vec<String> {
    let chunks = said.lines().filter(|line| line.starts_with('[') && line.contains(','));
    let chunks = chunks.flat_map(|line| line.split(',')).filter(|figure| figure.starts_with('['));
    let last = said.lines().filter_map(|line| line.split_once("Final estimate: ")).map(|(_, figure)| figure);
    chunks.chain(last).map(|figure| figure.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_chunks_and_the_last_one_are_found() {
        let said =
            "perplexity: calculating\n[1]12.3,[2]23.4,\nFinal estimate: PPL = 23.4 +/- 1.2\n[info] x\n";
        assert_eq!(figures(said), ["[1]12.3", "[2]23.4", "PPL = 23.4 +/- 1.2"]);
    }
}
