//! `cargo speed`: what Ferry costs beside the same back-end used natively, and beside ggml-rpc and ggml-virtgpu.
//!
//! Every arm runs the same llama-bench on the same model in rotated rounds. Beside speeds, the time to load is measured
//! in a way that is the same for all arms: from the start of llama-bench to its end, with a single token to compute. What
//! a token costs in doorbells and sleeps is the difference between two runs of different lengths, counted by both sides.

mod arms;
mod models;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::bench::{self, Arm};
use crate::checkout::{self, Binaries};
use crate::interrupt;
use crate::llama::Bench;
use crate::progress::Step;
use arms::{ArmKind, Contender, Stage};
use models::Model;
use report::{Account, Report};

/// One run of llama-bench: three billion parameters on two cores take minutes.
const RUN_TIMEOUT: Duration = Duration::from_secs(1800);

/// Speeds, times to load and wake-ups of one model after the other: natively, through Ferry, through its peers
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "cargo speed")]
pub struct Options {
    /// Rounds; medians and ranges are over these
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Measurements in each run of llama-bench, after one to warm up; their median is the round's figure
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Models: smollm2, gemma, or of random weights: random-1b, random-3b, random-tiny (it takes next to nothing to compute,
    /// so that what carries it shows); or files
    #[arg(long, value_name = "MODEL", value_delimiter = ',', num_args = 1.., default_value = "smollm2,gemma")]
    models: Vec<Model>,
    /// Arms to compare; the first is what ratios are to [default: native, ferry-unix, rpc, virtgpu; with --vm those of the VM too]
    #[arg(long, value_name = "ARM", value_delimiter = ',', num_args = 1..)]
    arms: Vec<ArmKind>,
    /// Add Ferry and ggml-rpc in a virtual machine (Linux under QEMU, emulated)
    #[arg(long)]
    vm: bool,
    /// Tokens of the prompts
    #[arg(long, value_name = "N", value_delimiter = ',', num_args = 1.., default_value = "512,32")]
    prompts: Vec<u32>,
    /// Tokens to generate
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    generate: u32,
    /// The back-end that all arms compute on
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    backend: String,
    /// A folder with llama.cpp's programs and libraries, instead of the one built from the artifact store
    #[arg(long, value_name = "DIR")]
    llama: Option<PathBuf>,
    /// A folder with ggml-virtgpu's files as the artifact store has them, instead of building them
    #[arg(long, value_name = "DIR")]
    virtgpu: Option<PathBuf>,
    /// A daemon to use instead of building it
    #[arg(long, value_name = "FILE", requires = "plugin")]
    ferryd: Option<PathBuf>,
    /// A plug-in to use instead of building it
    #[arg(long, value_name = "FILE", requires = "ferryd")]
    plugin: Option<PathBuf>,
    /// Where the figures go [default: target/speed.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the comparison and writes it down.
pub fn run(options: &Options) -> Result<ExitCode> {
    interrupt::install()?;
    if let (Some(ferryd), Some(plugin)) = (&options.ferryd, &options.plugin) {
        let found =
            |file: &PathBuf| file.canonicalize().with_context(|| format!("looking for {}", file.display()));
        checkout::use_binaries(Binaries { ferryd: found(ferryd)?, plugin: found(plugin)? });
    }
    let json = options.json.clone().unwrap_or_else(|| checkout::target().join("speed.json"));
    let models = options.models.iter().map(Model::file).collect::<Result<Vec<_>>>()?;
    let stage = Stage::set(options, &models)?;
    let mut report = Report::new(options);
    for model in &models {
        let title = model.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let (arms, accounts) = measure(&stage, model, options)?;
        println!("\n{title} on {}:\n", options.backend);
        let phases = phases(options);
        print!("{}", bench::table(&arms, &phases));
        print!("{}", report::peers_text(&stage.contenders, &arms, &phases));
        report.add(&title, &stage.contenders, &arms, &accounts);
        print!("{}", report::accounts_text(&stage.contenders, &accounts));
        // What was measured so far is kept, whatever becomes of the rest.
        report.write(&json)?;
    }
    println!(
        "\nllama-bench, {} in each round after a warm-up: median (range) of {} rounds. Ratios to the first line: median \
         over the rounds (where it lies, with 95 % confidence from 6 rounds on). load: from llama-bench's start to its end \
         with one token.\nwritten to {}",
        options.repetitions,
        options.rounds,
        json.display()
    );
    stage.end()?;
    Ok(ExitCode::SUCCESS)
}

/// The columns: tokens per second of each prompt and of the generation, seconds to load.
fn phases(options: &Options) -> Vec<String> {
    let prompts = options.prompts.iter().map(|length| format!("pp{length} tok/s"));
    prompts.chain([format!("tg{} tok/s", options.generate), "load s".into()]).collect()
}

fn measure(stage: &Stage, model: &PathBuf, options: &Options) -> Result<(Vec<Arm>, Vec<Option<Account>>)> {
    let Options { prompts, generate, repetitions, .. } = options;
    let bench = Bench { model, prompts, generate: *generate, repetitions: *repetitions, warm_up: true };
    let loading = Bench { model, prompts: &[], generate: 1, repetitions: 1, warm_up: false };
    let mut arms: Vec<Arm> =
        stage.contenders.iter().map(|contender| Arm::new(contender.kind.name())).collect();
    let rounds = options.rounds;
    let name = model.file_name().unwrap_or_default().display().to_string();
    let mut step = Step::begin(format!("measuring {name}, {rounds} interleaved rounds"));
    bench::rotate(rounds, &mut arms, |round, at, name| {
        step.update(&format!("round {} of {rounds}, {name}", round + 1));
        let contender = &stage.contenders[at];
        let mut figures = contender.run(&bench)?.speeds;
        figures.push(contender.run(&loading)?.elapsed.as_secs_f64());
        Ok(figures)
    })?;
    let accounts = stage
        .contenders
        .iter()
        .map(|contender| account(stage, contender, &loading))
        .collect::<Result<Vec<_>>>()?;
    step.done();
    Ok((arms, accounts))
}

/// What a generated token costs an arm of Ferry's, from two runs that differ in their lengths only.
fn account(stage: &Stage, contender: &Contender, bench: &Bench<'_>) -> Result<Option<Account>> {
    /// While a model is loaded the guest waits for room as often as the scheduler likes; llama.cpp plans anew after its
    /// first token. Neither must matter.
    const FEW: u32 = 8;
    const MORE: u32 = 512;
    if !contender.kind.is_ferry() {
        return Ok(None);
    }
    let of = |generate| Bench { generate, ..*bench };
    let counted = |bench: &Bench<'_>| -> Result<_> {
        let guest = contender.run(bench)?.guest.context("the plug-in wrote no statistics")?;
        let host = stage.session_of(guest.guest_pid)?;
        ensure!(host.graphs >= u64::from(bench.generate), "not all tokens were the worker's: {host:?}");
        Ok([guest.messages, guest.doorbells, guest.waits, host.doorbells, host.waits])
    };
    let (few, many) = (counted(&of(FEW))?, counted(&of(FEW + MORE))?);
    let mut per_token =
        many.into_iter().zip(few).map(|(many, few)| (many as f64 - few as f64) / f64::from(MORE));
    let mut next = || per_token.next().expect("five of them");
    Ok(Some(Account {
        messages: next(),
        guest_doorbells: next(),
        guest_waits: next(),
        host_doorbells: next(),
        host_waits: next(),
    }))
}
