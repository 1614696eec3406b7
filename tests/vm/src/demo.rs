//! What `cargo demo -- --vm` shows: a stock guest whose llama.cpp computes on the host.

use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::{Artifacts, GuestCommand, KernelVersion, Vm};

/// What the model continues.
const PROMPT: &str = "A ferry is a boat that";

/// How long anything in the guest may take: its own CPU needs several seconds a token.
const TIMEOUT: Duration = Duration::from_secs(900);

/// What the demonstration is given.
#[derive(Debug)]
pub struct Demo<'a> {
    /// Where kernel, QEMU and busybox come from.
    pub artifacts: &'a Artifacts,
    /// Which kernel boots.
    pub kernel: KernelVersion,
    /// The folder with a stock llama.cpp: `llama-bench`, `llama-completion` and its libraries.
    pub llama: &'a Path,
    /// The model.
    pub model: &'a Path,
    /// Ferry's plug-in.
    pub plugin: &'a Path,
    /// The socket where a daemon serves one machine (`ferryd serve --vhost-user`).
    pub socket: &'a Path,
    /// Tokens that the guest's own CPU generates, at some six seconds each.
    pub cpu_tokens: u32,
    /// Tokens that the host generates.
    pub ferry_tokens: u32,
}

/// What the demonstration found.
#[derive(Debug, Clone, PartialEq)]
pub struct Findings {
    /// What the guest's own CPU answered: shorter than the host's answer.
    pub cpu_text: String,
    /// What the host answered.
    pub ferry_text: String,
    /// Tokens a second of the guest's own CPU.
    pub cpu_speed: f64,
    /// Tokens a second through Ferry.
    pub ferry_speed: f64,
}

impl Findings {
    /// Whether both answers begin alike, as far as the shorter one goes.
    pub fn alike(&self) -> bool {
        let cpu = self.cpu_text.trim_end();
        cpu.len() > PROMPT.len() && self.ferry_text.starts_with(cpu)
    }

    /// The comparison as a table.
    pub fn table(&self) -> String {
        let mut table = String::new();
        let ratio = self.ferry_speed / self.cpu_speed;
        let _ = writeln!(table, "{:<28} {:>12}  {:>8}", "generating, in the guest", "tokens/s", "ratio");
        let _ = writeln!(table, "{:<28} {:>12.2}  {:>8}", "on its own (emulated) CPU", self.cpu_speed, "1");
        let _ = writeln!(table, "{:<28} {:>12.2}  {ratio:>8.0}", "through Ferry", self.ferry_speed);
        table
    }
}

/// Where the guest's llama.cpp computes.
#[derive(Clone, Copy)]
enum Place {
    Cpu,
    Ferry,
}

impl Demo<'_> {
    /// Boots a guest, shows each step on `show`, and compares.
    ///
    /// # Errors
    /// If anything of it fails; a difference between the answers is no error but a finding.
    pub fn run(&self, show: &mut impl Write) -> Result<Findings> {
        let start = Instant::now();
        let vm = self.boot()?;
        let system = vm.command(["uname", "-srm"]).text()?;
        writeln!(show, "booted {} in {:.1} s", system.trim(), start.elapsed().as_secs_f64())?;
        let processor = vm.shell("sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1").text()?;
        writeln!(show, "its processor: {}", processor.trim())?;

        let devices = self.tool(&vm, "llama-bench", Place::Ferry, &["--list-devices"]).text()?;
        writeln!(show, "\nguest$ llama-bench --list-devices\n{}", devices.trim_end())?;

        let ferry_text = self.answer(&vm, Place::Ferry, self.ferry_tokens)?;
        writeln!(show, "\nanswer computed by the host │ {}", indented(&ferry_text))?;
        let cpu_text = self.answer(&vm, Place::Cpu, self.cpu_tokens)?;
        writeln!(show, "by the guest's own CPU      │ {}", indented(&cpu_text))?;

        let ferry_speed = self.speed(&vm, Place::Ferry, self.ferry_tokens)?;
        let cpu_speed = self.speed(&vm, Place::Cpu, self.cpu_tokens)?;
        let findings = Findings { cpu_text, ferry_text, cpu_speed, ferry_speed };
        writeln!(show, "alike: {}\n\n{}", if findings.alike() { "yes" } else { "NO" }, findings.table())?;
        vm.power_off()?;
        Ok(findings)
    }

    fn boot(&self) -> Result<Vm> {
        let folder = |path: &Path| {
            let parent = path.parent().with_context(|| format!("{} lies in no folder", path.display()))?;
            anyhow::Ok(parent.to_owned())
        };
        let (models, plugins) = (folder(self.model)?, folder(self.plugin)?);
        let builder = Vm::builder().kernel(self.kernel).memory_mib(2048).gpu(self.socket);
        builder.share_programs(self.llama).share(models).share(plugins).runs(self.plugin).boot(self.artifacts)
    }

    /// A program of llama.cpp in the guest.
    fn tool<'vm>(&self, vm: &'vm Vm, name: &str, place: Place, arguments: &[&str]) -> GuestCommand<'vm> {
        let program = self.llama.join(name).to_string_lossy().into_owned();
        let argv = std::iter::once(program).chain(arguments.iter().map(|&argument| argument.to_owned()));
        let command = vm.command(argv).timeout(TIMEOUT);
        match place {
            Place::Cpu => command,
            Place::Ferry => command.env("GGML_BACKEND_PATH", &self.plugin.to_string_lossy()),
        }
    }

    /// The model's greedy answer.
    fn answer(&self, vm: &Vm, place: Place, tokens: u32) -> Result<String> {
        let (model, tokens) = (self.model.to_string_lossy(), tokens.to_string());
        let mut arguments =
            vec!["--model", &model, "--prompt", PROMPT, "--predict", &tokens, "--threads", "1"];
        arguments.extend([
            "--temp",
            "0",
            "--seed",
            "1",
            "-no-cnv",
            "--no-warmup",
            "--fit",
            "off",
            "--ignore-eos",
        ]);
        self.tool(vm, "llama-completion", place, &arguments).text()
    }

    /// Tokens a second while generating.
    fn speed(&self, vm: &Vm, place: Place, tokens: u32) -> Result<f64> {
        let (model, tokens) = (self.model.to_string_lossy(), tokens.to_string());
        let mut arguments = vec!["--model", &model, "--n-prompt", "0", "--n-gen", &tokens, "--threads", "1"];
        arguments.extend(["--repetitions", "1", "--no-warmup", "--output", "json"]);
        let json = self.tool(vm, "llama-bench", place, &arguments).text()?;
        parse_speed(&json).with_context(|| format!("llama-bench measured nothing:\n{json}"))
    }
}

/// Lines after the first line up with it.
fn indented(text: &str) -> String {
    text.trim().replace('\n', "\n                            │ ")
}

/// The speed in llama-bench's JSON.
fn parse_speed(json: &str) -> Option<f64> {
    let tests: serde_json::Value = serde_json::from_str(json).ok()?;
    tests.get(0)?.get("avg_ts")?.as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_compared_as_far_as_the_shorter_goes() {
        let findings = |cpu: &str, ferry: &str| Findings {
            cpu_text: format!("{PROMPT}{cpu}"),
            ferry_text: format!("{PROMPT}{ferry}"),
            cpu_speed: 0.15,
            ferry_speed: 60.0,
        };
        assert!(findings(" carries\n\n", " carries people").alike());
        assert!(!findings(" carriers", " carries people").alike());
        assert!(!findings("", " carries people").alike(), "no token is no agreement");
        assert!(findings("", "").table().contains("400"));
    }

    #[test]
    fn the_speed_is_found() {
        assert_eq!(parse_speed(r#"[{"n_gen": 3, "avg_ts": 0.25}]"#), Some(0.25));
        assert_eq!(parse_speed("[]"), None);
    }
}
