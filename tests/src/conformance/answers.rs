//! What llama.cpp's programs answer: with all that a user may choose, with several models, adapters, devices, threads.

use anyhow::{Context, Result, ensure};

use super::row::{Row, Tally};
use super::site::{Site, without_own_gpus};
use crate::choices::{CHOICES, Comparison};
use crate::daemon::Daemon;
use crate::lora;
use crate::machines::SPLITS;
use crate::progress::Step;
use crate::threads;

impl Site {
    fn comparison<'a>(&'a self, daemon: &'a Daemon) -> Result<Comparison<'a>> {
        Ok(Comparison { llama: &self.llama, model: self.model()?, native: &self.native, daemon })
    }
}

/// Flash attention on and off, quantised caches, mmap on and off, partial offload, …
pub fn choices(site: &Site) -> Result<Vec<Row>> {
    let daemon = site.daemon()?;
    let comparison = site.comparison(&daemon)?;
    let mut tally = Tally::default();
    let mut step = Step::begin("answers with each choice of a user");
    for choice in CHOICES {
        let choice_text = choice.join(" ");
        step.update(&choice_text);
        tally.count(choice_text, comparison.answer(choice).map(drop));
    }
    step.done();
    let mut names: Vec<&str> = Vec::new();
    for name in CHOICES.iter().flat_map(|choice| choice.iter()).filter_map(|word| word.strip_prefix("--")) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(vec![site.row(&format!("`llama-completion` with {}", names.join(", ")), tally)])
}

/// The native answer, with each model.
pub fn models(site: &Site) -> Result<Vec<Row>> {
    let daemon = site.daemon()?;
    let (mut tally, mut names) = (Tally::default(), Vec::new());
    let mut step = Step::begin("answers of each model");
    for model in &site.models {
        let name = model.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        step.update(&name);
        let answer = Comparison { model, ..site.comparison(&daemon)? }.answer(&[]);
        tally.count(&name, answer.map(drop));
        names.push(name);
    }
    step.done();
    Ok(vec![site.row(&format!("`llama-completion` of {}", names.join(", ")), tally)])
}

/// An adapter changes the answer, as it does natively.
pub fn adapter(site: &Site) -> Result<Vec<Row>> {
    let adapter = site.dir().join("adapter.gguf");
    lora::SMOLLM2.write_adapter(&adapter).context("writing the adapter")?;
    let daemon = site.daemon()?;
    let comparison = site.comparison(&daemon)?;
    let step = Step::begin("an answer with an adapter");
    let outcome = comparison.answer(&[]).and_then(|plain| {
        let adapted = comparison.answer(&["--lora", &adapter.to_string_lossy()])?;
        ensure!(adapted != plain, "the adapter makes no difference: {plain:?}");
        Ok(())
    });
    step.done();
    let mut tally = Tally::default();
    tally.count("--lora", outcome);
    Ok(vec![site.row("`llama-completion` with a LoRA adapter", tally)])
}

/// A model split over the host's own device and those of ggml-rpc servers.
pub fn devices(site: &Site) -> Result<Vec<Row>> {
    let machines = site.machines(2)?;
    let mut tally = Tally::default();
    let step = Step::begin("a model split over devices");
    for devices in SPLITS {
        tally.count(devices, machines.answer_split(&site.llama, site.model()?, &site.native, devices));
    }
    step.done();
    Ok(vec![site.row("`--split-mode layer` over the host's device and two ggml-rpc servers", tally)])
}

/// Many contexts at once in one process.
pub fn many_threads(site: &Site) -> Result<Vec<Row>> {
    let daemon = site.daemon()?;
    let step = Step::begin("test-thread-safety");
    let mut command = threads::command(&site.llama, site.model()?, &daemon)?;
    without_own_gpus(&mut command);
    let contexts = threads::run(command, &daemon, site.backend == "cpu")?;
    step.done();
    let tally = Tally { passed: contexts as u64, failures: Vec::new() };
    Ok(vec![site.row("`test-thread-safety`", tally)])
}
