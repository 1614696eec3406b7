//! llama.cpp's own programs on one device or another.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::artifacts::LlamaBuild;
use crate::bench::spread;
use crate::checkout;
use crate::process::{self, Finished, Running};

/// For one run of a small model on a loaded machine.
pub const RUN_TIMEOUT: Duration = Duration::from_secs(180);
/// Threads of every arm: what the smallest machine of ours has, and the same for all.
pub const THREADS: &str = "2";
/// The plug-in's first device, as llama.cpp names it.
pub const FERRY_DEVICE: &str = "Ferry0";

/// The variable that has ggml's Vulkan back-end use a device whatever it is, and the first device's number.
pub const VULKAN_DEVICES: (&str, &str) = ("GGML_VK_VISIBLE_DEVICES", "0");

/// Where a program computes.
#[derive(Debug, Clone)]
pub enum Device {
    /// Its own CPU back-end.
    Cpu,
    /// A device of another back-end of its own, by name.
    Own(String),
    /// Our plug-in, with the daemon at this socket.
    Ferry(PathBuf),
    /// Whatever llama.cpp chooses by itself, with our plug-in present and told this socket.
    Chosen(PathBuf),
    /// ggml-rpc, with the server at this address.
    Rpc(String),
    /// llama.cpp's own ggml-virtgpu.
    Virtgpu {
        /// The back-end's file.
        plugin: PathBuf,
        /// Its host's socket.
        host: PathBuf,
        /// The device, as llama.cpp names it.
        name: String,
    },
}

impl Device {
    /// The name that `--device` takes, if the device is to be named.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Cpu => Some("none"),
            Self::Own(name) | Self::Virtgpu { name, .. } => Some(name),
            Self::Ferry(_) => Some(FERRY_DEVICE),
            Self::Chosen(_) => None,
            Self::Rpc(_) => Some("RPC0"),
        }
    }

    /// Sets the environment in which ggml finds this device, and no other of ours.
    pub fn environment<'a>(&self, command: &'a mut Command) -> Result<&'a mut Command> {
        command.env_remove("GGML_BACKEND_PATH").env_remove("FERRY_SOCKET").env_remove(VULKAN_DEVICES.0);
        if matches!(self, Self::Own(name) if name.starts_with("Vulkan")) {
            command.env(VULKAN_DEVICES.0, VULKAN_DEVICES.1);
        }
        if let Self::Ferry(socket) | Self::Chosen(socket) = self {
            command.env("GGML_BACKEND_PATH", &checkout::binaries()?.plugin).env("FERRY_SOCKET", socket);
        }
        if let Self::Virtgpu { plugin, host, .. } = self {
            command.env("GGML_BACKEND_PATH", plugin).env("VIRTGPU_HOST", host);
            command.env("GGML_REMOTING_USE_APIR_CAPSET", "1");
        }
        Ok(command)
    }
}

impl LlamaBuild {
    /// One of the build's programs, told to compute on `device` and nowhere else.
    pub fn program(&self, name: &str, device: &Device) -> Result<Command> {
        let mut command = Command::new(self.bin.join(name));
        device.environment(&mut command)?;
        if let Device::Rpc(server) = device {
            command.args(["--rpc", server]);
        }
        if let Some(name) = device.name() {
            command.args(["--device", name]);
        }
        command.args(["-ngl", "99"]);
        Ok(command)
    }

    /// The server of ggml-rpc, which had another name before 2026.
    fn rpc_server(&self) -> Result<PathBuf> {
        let candidates = ["ggml-rpc-server", "rpc-server"].map(|name| self.bin.join(name));
        let found = candidates.into_iter().find(|program| program.exists());
        found.with_context(|| format!("{} has no ggml-rpc-server", self.bin.display()))
    }

    /// The first device of the back-end `name` that the programs have by themselves: "cuda" is CUDA0, say.
    pub fn own_device(&self, name: &str) -> Result<Device> {
        if name.eq_ignore_ascii_case("cpu") {
            return Ok(Device::Cpu);
        }
        let mut list = Command::new(self.bin.join("llama-bench"));
        Device::Cpu.environment(&mut list)?;
        if name.eq_ignore_ascii_case("vulkan") {
            list.env(VULKAN_DEVICES.0, VULKAN_DEVICES.1);
        }
        let listed = process::run(list.arg("--list-devices"), RUN_TIMEOUT)?.success()?.stdout;
        let names = listed.lines().filter_map(|line| line.trim().split_once(':')).map(|(name, _)| name);
        let is_its =
            |device: &&str| device.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
        let found = names.into_iter().find(is_its);
        let found = found.with_context(|| format!("llama.cpp lists no device of {name:?}:\n{listed}"))?;
        Ok(Device::Own(found.to_owned()))
    }
}

/// A greedy completion.
#[derive(Debug, Clone, Copy)]
pub struct Completion<'a> {
    /// The model's file.
    pub model: &'a Path,
    /// What to go on from.
    pub prompt: &'a str,
    /// Tokens to generate.
    pub tokens: u32,
    /// Have llama.cpp log everything it does.
    pub verbose: bool,
}

impl Completion<'_> {
    /// llama-completion with these arguments; standard output is prompt and answer, nothing else.
    pub fn command(&self, llama: &LlamaBuild, device: &Device) -> Result<Command> {
        let mut command = llama.program("llama-completion", device)?;
        command.arg("--model").arg(self.model).args(["--prompt", self.prompt, "--threads", THREADS]);
        command.args(["--predict", &self.tokens.to_string(), "--temp", "0", "--seed", "1"]);
        // Each graph that is computed should be one that is asked for here: no warm-up, no trial contexts.
        command.args(["-no-cnv", "--no-warmup", "--fit", "off", "--ignore-eos"]);
        if self.verbose {
            command.arg("--verbose");
        }
        Ok(command)
    }

    /// Runs it to a successful end.
    pub fn run(&self, llama: &LlamaBuild, device: &Device) -> Result<Finished> {
        process::run(&mut self.command(llama, device)?, RUN_TIMEOUT)?.success()
    }
}

/// llama.cpp computes the look-up of the input tokens' embeddings (one GET_ROWS) on the program's own CPU,
/// whatever device the model is on: the table is large and a token needs one row of it.
pub const NODES_ON_GUEST_CPU: u64 = 1;

/// How many nodes a device executes for a completion of so many tokens, from the node counts of the native
/// run: one graph for the prompt, one for each token but the last, which nothing continues from.
pub fn expected_nodes((prompt, single): (u64, u64), tokens: u32) -> u64 {
    (prompt - NODES_ON_GUEST_CPU) + u64::from(tokens - 1) * (single - NODES_ON_GUEST_CPU)
}

/// How many nodes llama.cpp's graphs have, by its own account: for a prompt, and for a single token.
pub fn graph_nodes(log: &str) -> Result<(u64, u64)> {
    // "graph nodes  = 936", or "graph nodes  = 936 (with bs=512), 940 (with bs=1)" if they differ
    let line =
        log.lines().find(|line| line.contains("graph nodes")).context("llama.cpp logs no node count")?;
    let value = line.split_once('=').map(|(_, value)| value).context("a node count without '='")?;
    let leading = |text: &str| text.trim().split(' ').next().and_then(|number| number.parse().ok());
    let prompt = leading(value).with_context(|| format!("no node count in {line:?}"))?;
    let single = value.split_once(", ").and_then(|(_, second)| leading(second));
    Ok((prompt, single.unwrap_or(prompt)))
}

/// What a round of llama-bench measured, in tokens per second.
#[derive(Debug, Clone, Copy)]
pub struct Speed {
    /// Prompt processing.
    pub prompt: f64,
    /// Token generation.
    pub generate: f64,
}

/// One line of llama-bench's JSON.
#[derive(Debug, Deserialize)]
struct BenchLine {
    n_prompt: u32,
    n_gen: u32,
    samples_ts: Vec<f64>,
}

/// What llama-bench is asked to measure.
#[derive(Debug, Clone, Copy)]
pub struct Bench<'a> {
    /// The model's file.
    pub model: &'a Path,
    /// Numbers of tokens to process at once, each a measurement.
    pub prompts: &'a [u32],
    /// Tokens to generate one by one; none if 0.
    pub generate: u32,
    /// How often to measure each; the median counts.
    pub repetitions: u32,
    /// Do each thing once before it is measured.
    pub warm_up: bool,
}

impl Bench<'_> {
    /// llama-bench's arguments but for those that choose the device.
    pub fn arguments(&self, threads: &str) -> Vec<String> {
        let lengths: Vec<String> = self.prompts.iter().map(u32::to_string).collect();
        let prompts = if lengths.is_empty() { "0".to_owned() } else { lengths.join(",") };
        let model = self.model.to_string_lossy();
        let fixed = ["--threads", threads, "--output", "json", "--model", &model, "--n-prompt", &prompts];
        let mut arguments: Vec<String> = fixed.map(str::to_owned).into();
        arguments.extend(["--n-gen".into(), self.generate.to_string()]);
        arguments.extend(["--repetitions".into(), self.repetitions.to_string()]);
        if !self.warm_up {
            arguments.push("--no-warmup".into());
        }
        arguments
    }

    /// The tokens per second in llama-bench's output: of each prompt, then of the generation if one was asked for.
    pub fn speeds(&self, stdout: &str) -> Result<Vec<f64>> {
        let lines: Vec<BenchLine> = serde_json::from_str(stdout)
            .with_context(|| format!("reading llama-bench's JSON, which is {stdout:?}"))?;
        let prompts = self.prompts.iter().map(|&length| (length, 0));
        let generate = (self.generate > 0).then_some((0, self.generate));
        let speed = |wanted: (u32, u32)| {
            let found = lines.iter().find(|line| (line.n_prompt, line.n_gen) == wanted);
            let samples = found.map(|line| &line.samples_ts).filter(|samples| !samples.is_empty());
            let samples = samples.with_context(|| format!("llama-bench did not measure {wanted:?}"))?;
            Ok(spread(samples.iter().copied()).median)
        };
        prompts.chain(generate).map(speed).collect()
    }
}

/// One round of llama-bench: `prompt` tokens at once, then `generate` tokens one by one.
pub fn bench(
    llama: &LlamaBuild,
    device: &Device,
    model: &Path,
    (prompt, generate): (u32, u32),
) -> Result<Speed> {
    let bench = Bench { model, prompts: &[prompt], generate, repetitions: 1, warm_up: true };
    let mut command = llama.program("llama-bench", device)?;
    let finished = process::run(command.args(bench.arguments(THREADS)), RUN_TIMEOUT)?.success()?;
    let speeds = bench.speeds(&finished.stdout).with_context(|| finished.tail())?;
    Ok(Speed { prompt: speeds[0], generate: speeds[1] })
}

/// A running ggml-rpc server, reachable on loopback only.
#[derive(Debug)]
pub struct RpcServer {
    _running: Running,
    port: u16,
}

impl RpcServer {
    /// Starts it on the CPU back-end and a free port, and waits until it accepts connections.
    pub fn start(llama: &LlamaBuild) -> Result<Self> {
        Self::start_on(llama, "CPU")
    }

    /// The same on the device of this name.
    pub fn start_on(llama: &LlamaBuild, device: &str) -> Result<Self> {
        // The port is free a moment before the server takes it; somebody else could take it in between.
        let port = TcpListener::bind("127.0.0.1:0").context("looking for a free port")?.local_addr()?.port();
        let mut command = Command::new(llama.rpc_server()?);
        Device::Own(device.to_owned()).environment(&mut command)?;
        command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--threads", THREADS, "--device", device]);
        let mut running = process::spawn(&mut command)?;
        let address = format!("127.0.0.1:{port}");
        running.wait_until("accepting connections", RUN_TIMEOUT, |_| TcpStream::connect(&address).is_ok())?;
        Ok(Self { _running: running, port })
    }

    /// The port of the loopback interface where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The device that programs then use.
    pub fn device(&self) -> Device {
        Device::Rpc(format!("127.0.0.1:{}", self.port))
    }
}

/// The tokens of `decode`'s lines `token INDEX ID HASH`, in order.
pub fn decoded(stdout: &str) -> Result<Vec<&str>> {
    stdout
        .lines()
        .enumerate()
        .map(|(index, line)| match line.strip_prefix(&format!("token {index} ")) {
            Some(token) => Ok(token),
            None => bail!("line {index} of decode's output is {line:?}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_counts_in_both_forms() {
        assert_eq!(graph_nodes("x\nI sched_reserve: graph nodes  = 936\ny").unwrap(), (936, 936));
        let two = "graph nodes  = 936 (with bs=512), 940 (with bs=1)";
        assert_eq!(graph_nodes(two).unwrap(), (936, 940));
        assert!(graph_nodes("graph splits = 1").is_err());
    }

    #[test]
    fn the_figures_of_llama_bench_come_in_the_order_asked_for() {
        let (model, prompts) = (Path::new("m"), [512, 32]);
        let bench = Bench { model, prompts: &prompts, generate: 8, repetitions: 3, warm_up: false };
        let arguments = bench.arguments("2").join(" ");
        assert!(
            arguments.ends_with("--n-prompt 512,32 --n-gen 8 --repetitions 3 --no-warmup"),
            "{arguments}"
        );
        let line = |prompt, generate, speeds: &str| {
            format!(r#"{{"n_prompt": {prompt}, "n_gen": {generate}, "samples_ts": [{speeds}]}}"#)
        };
        let json = |first| format!("[{}, {}, {first}]", line(0, 8, "3.0, 9.0, 1.0"), line(32, 0, "2.0"));
        assert_eq!(bench.speeds(&json(line(512, 0, "1.0"))).unwrap(), [1.0, 2.0, 3.0]);
        assert!(bench.speeds(&json(line(512, 0, ""))).is_err());
        assert!(bench.speeds("[]").is_err());
    }

    #[test]
    fn decoded_lines_must_be_in_order() {
        assert_eq!(decoded("token 0 12 ab\ntoken 1 13 cd\n").unwrap(), ["12 ab", "13 cd"]);
        assert!(decoded("token 1 12 ab\n").is_err());
    }
}
