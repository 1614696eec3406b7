//! `cargo demo`: a real model answers natively and through Ferry, side by side.

mod vm;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::artifacts::{LlamaBuild, Store};
use crate::bench::{self, Arm};
use crate::daemon::{Daemon, Session};
use crate::llama::{self, Completion, Device, NODES_ON_GUEST_CPU, RpcServer, THREADS};
use crate::progress::Step;
use crate::{checkout, interrupt};

const PROMPT: &str = "A ferry is a boat that";
/// Tokens of the compared answer.
const ANSWER_TOKENS: u32 = 48;
/// A real model answers natively and through Ferry: the same text, and how fast
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "cargo demo")]
pub struct Options {
    /// Rounds of the benchmark; medians and ranges are over these
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Show the answer and one short round of the benchmark
    #[arg(long)]
    pub quick: bool,
    /// Do it in a virtual machine (Linux under QEMU, emulated): the guest's own CPU against the host through Ferry
    #[arg(long)]
    pub vm: bool,
    /// A GGUF file to use instead of SmolLM2-135M
    #[arg(long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// Leave the daemon's folder (log, statistics) behind and say where it is
    #[arg(long)]
    pub keep: bool,
}

/// Everything that a run needs, made before anything is shown.
struct Stage {
    llama: LlamaBuild,
    repacked: LlamaBuild,
    model: PathBuf,
    daemon: Daemon,
}

/// Runs the demonstration. Success means: same text, and computed where it should have been.
pub fn run(options: &Options) -> Result<ExitCode> {
    interrupt::install()?;
    if options.vm {
        return vm::run(options);
    }
    let mut stage = Stage::set(options)?;
    let shown = show_answer(&stage).and_then(|good| show_speed(&stage, options).map(|()| good));
    if options.keep {
        println!("\nkept: {}", stage.daemon.keep()?.display());
    }
    stage.daemon.stop()?;
    Ok(if shown? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Options {
    fn model(&self, store: &Store) -> Result<PathBuf> {
        match &self.model {
            Some(file) => file.canonicalize().with_context(|| format!("looking for {}", file.display())),
            None => store.model(),
        }
    }
}

impl Stage {
    fn set(options: &Options) -> Result<Self> {
        let store = Store::open()?;
        let model = options.model(&store)?;
        let (llama, repacked) = (store.llama()?, store.llama_repacked()?);
        checkout::binaries()?;
        let daemon = Daemon::start(&llama.bin)?;
        Ok(Self { llama, repacked, model, daemon })
    }

    fn ferry(&self) -> Device {
        Device::Ferry(self.daemon.socket())
    }
}

/// The same greedy completion twice. Returns whether it was the same, and computed by the worker.
fn show_answer(stage: &Stage) -> Result<bool> {
    let completion = Completion { model: &stage.model, prompt: PROMPT, tokens: ANSWER_TOKENS, verbose: true };
    let step = Step::begin("asking the model natively");
    let native = completion.run(&stage.llama, &Device::Cpu)?;
    step.done();
    let step = Step::begin("asking the model through Ferry");
    let ferry = completion.run(&stage.llama, &stage.ferry())?;
    step.done();

    println!("\nnative │ {}", native.stdout.trim().replace('\n', "\n       │ "));
    println!("Ferry  │ {}", ferry.stdout.trim().replace('\n', "\n       │ "));
    let identical = native.stdout == ferry.stdout;
    println!("identical: {}", if identical { "yes" } else { "no" });

    let sessions = stage.daemon.sessions(1)?;
    let as_expected = show_nodes(&sessions[0], llama::graph_nodes(&native.stderr)?);
    Ok(identical && as_expected)
}

/// Holds the worker's count against what the native run says of its graphs: a program that quietly computed
/// on its own CPU would show the same text.
fn show_nodes(session: &Session, native_nodes: (u64, u64)) -> bool {
    let expected = llama::expected_nodes(native_nodes, ANSWER_TOKENS);
    let per_token = |nodes: u64| nodes as f64 / f64::from(ANSWER_TOKENS);
    let Session { nodes, graphs, .. } = *session;
    println!(
        "\nnodes executed by the worker: {:.1} per token ({nodes} in {graphs} graphs)",
        per_token(nodes)
    );
    println!(
        "nodes expected:               {:.1} per token ({expected} in {ANSWER_TOKENS} graphs)",
        per_token(expected)
    );
    println!(
        "  llama.cpp says its native graph has {} nodes; {NODES_ON_GUEST_CPU} of them, the look-up of the\n  \
         token's embedding, it always computes on the program's own CPU",
        native_nodes.1
    );
    let as_expected = nodes == expected && graphs == u64::from(ANSWER_TOKENS);
    println!("as expected: {}", if as_expected { "yes" } else { "NO: not (only) the worker computed this" });
    as_expected
}

fn show_speed(stage: &Stage, options: &Options) -> Result<()> {
    let (rounds, lengths) = if options.quick { (1, (64, 16)) } else { (options.rounds, (128, 128)) };
    let server = RpcServer::start(&stage.llama)?;
    let contenders = [
        ("native, plain kernels", &stage.llama, Device::Cpu),
        ("Ferry", &stage.llama, stage.ferry()),
        ("ggml-rpc, loopback", &stage.llama, server.device()),
        ("native, repacked weights", &stage.repacked, Device::Cpu),
    ];
    let mut arms = contenders.each_ref().map(|(name, ..)| Arm::new(*name));
    let mut step = Step::begin(format!("measuring, {rounds} interleaved rounds"));
    bench::rotate(rounds, &mut arms, |round, at, name| {
        step.update(&format!("round {} of {rounds}, {name}", round + 1));
        let (_, llama, device) = &contenders[at];
        let speed = llama::bench(llama, device, &stage.model, lengths)?;
        Ok(vec![speed.prompt, speed.generate])
    })?;
    step.done();
    println!(
        "\nllama-bench, {THREADS} threads, median (range) of {rounds} rounds; median of the rounds' ratios to the first line:\n"
    );
    let columns = [format!("pp{} tok/s", lengths.0), format!("tg{} tok/s", lengths.1)];
    print!("{}", bench::table(&arms, &columns));
    println!(
        "\n  Plain kernels are the same computation as the worker's; repacking rearranges some weight types in\n  \
         buffers that only a program's own CPU back-end has."
    );
    Ok(())
}
