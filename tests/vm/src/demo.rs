//! A stock llama.cpp in a guest, on one device after the other: what `cargo demo -- --vm` shows.
//!
//! This knows machines and llama.cpp's programs. What a [`Place`] is, and the daemon behind it, is up to the
//! caller.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::{Artifacts, GuestCommand, Vm, VmBuilder};

/// What the model continues.
pub const PROMPT: &str = "A ferry is a boat that";

/// How long anything in the guest may take: its own CPU needs several seconds a token.
const TIMEOUT: Duration = Duration::from_secs(900);

/// Somewhere that the guest's llama.cpp can compute.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// Its name in what is shown.
    pub name: String,
    /// The folder with the stock llama.cpp that computes there: `llama-bench`, `llama-completion`, libraries.
    pub llama: PathBuf,
    /// The environment in which llama.cpp finds it.
    pub env: Vec<(String, String)>,
    /// The arguments that choose it.
    pub arguments: Vec<String>,
    /// Tokens that it generates, for the answer and for the measurement.
    pub tokens: u32,
}

impl Place {
    /// The guest's own CPU.
    ///
    /// Under emulation, kernels for SSE4.2 were seen to be five times faster than those for AVX2 and FMA,
    /// whose floating point QEMU emulates call by call: 1.5 s against 8 s a token of a 135M model.
    pub fn guest_cpu(llama: &Path, tokens: u32) -> Self {
        Self {
            name: "the guest's own CPU".into(),
            llama: llama.into(),
            arguments: ["--device", "none"].map(str::to_owned).into(),
            tokens,
            ..Self::default()
        }
    }

    /// A program of its llama.cpp, told where to find it.
    pub fn tool<'vm>(
        &self,
        vm: &'vm Vm,
        name: &str,
        arguments: impl IntoIterator<Item = impl Into<String>>,
    ) -> GuestCommand<'vm> {
        let program = self.llama.join(name).to_string_lossy().into_owned();
        let argv = std::iter::once(program).chain(arguments.into_iter().map(Into::into));
        let command = vm.command(argv).timeout(TIMEOUT);
        self.env.iter().fold(command, |command, (name, value)| command.env(name, value))
    }

    /// The host through Ferry, whose plug-in lies at `plugin` in the guest too.
    pub fn ferry(llama: &Path, plugin: &Path, tokens: u32) -> Self {
        Self {
            name: "the host, through Ferry".into(),
            llama: llama.into(),
            env: vec![("GGML_BACKEND_PATH".into(), plugin.to_string_lossy().into_owned())],
            arguments: ["--device", "Ferry0", "-ngl", "99"].map(str::to_owned).into(),
            tokens,
        }
    }

    /// The host's ggml-rpc server at `port` of its loopback interface, through QEMU's user-mode network.
    pub fn rpc(llama: &Path, port: u16, tokens: u32) -> Self {
        let server = format!("10.0.2.2:{port}");
        Self {
            name: "the host, through ggml-rpc".into(),
            llama: llama.into(),
            arguments: ["--rpc", &server, "--device", "RPC0", "-ngl", "99"].map(str::to_owned).into(),
            tokens,
            ..Self::default()
        }
    }
}

/// What the demonstration is given.
#[derive(Debug)]
pub struct Demo<'a> {
    /// Where kernel, QEMU and busybox come from.
    pub artifacts: &'a Artifacts,
    /// The machine, with what the places need; llama.cpp and the model are added to it.
    pub machine: VmBuilder,
    /// The model.
    pub model: &'a Path,
    /// Where to compute; ratios are to the first.
    pub places: Vec<Place>,
}

/// What one place did.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// The place's name.
    pub name: String,
    /// The prompt and how the model continued it.
    pub text: String,
    /// Tokens a second.
    pub speed: f64,
}

impl Demo<'_> {
    /// Boots a guest, shows each step on `show`, and returns what each place did, in their order.
    ///
    /// # Errors
    /// If anything of it fails; a difference between the answers is no error but a finding.
    pub fn run(&self, show: &mut impl Write) -> Result<Vec<Finding>> {
        let start = Instant::now();
        let vm = self.boot()?;
        let system = vm.command(["uname", "-srm"]).text()?;
        writeln!(show, "booted {} in {:.1} s", system.trim(), start.elapsed().as_secs_f64())?;
        let processor = vm.shell("sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1").text()?;
        writeln!(show, "its processor: {}", processor.trim())?;
        let mut findings = Vec::new();
        for place in &self.places {
            findings.push(self.visit(&vm, place, show)?);
        }
        writeln!(show, "\n{}", table(&findings))?;
        vm.power_off()?;
        Ok(findings)
    }

    fn visit(&self, vm: &Vm, place: &Place, show: &mut impl Write) -> Result<Finding> {
        writeln!(show, "\n── {}", place.name)?;
        let mut list = vec!["--list-devices"];
        if let Some(rpc) = place.arguments.iter().position(|argument| argument == "--rpc") {
            // The server's devices exist only once it is named.
            list.splice(0..0, place.arguments[rpc..].iter().take(2).map(String::as_str));
        }
        let devices = place.tool(vm, "llama-bench", list).text()?;
        writeln!(show, "guest$ llama-bench --list-devices\n{}", devices.trim_end())?;
        let text = self.answer(vm, place)?;
        writeln!(show, "guest$ llama-completion --predict {}\n{}", place.tokens, text.trim())?;
        Ok(Finding { name: place.name.clone(), text, speed: self.speed(vm, place)? })
    }

    fn boot(&self) -> Result<Vm> {
        let models = self.model.parent();
        let models = models.with_context(|| format!("{} lies in no folder", self.model.display()))?;
        let folders: BTreeSet<&Path> = self.places.iter().map(|place| place.llama.as_path()).collect();
        let machine = self.machine.clone().share(models);
        folders.into_iter().fold(machine, VmBuilder::share_programs).boot(self.artifacts)
    }

    /// The model's greedy answer.
    fn answer(&self, vm: &Vm, place: &Place) -> Result<String> {
        let (model, tokens) = (self.model.to_string_lossy(), place.tokens.to_string());
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
        arguments.extend(place.arguments.iter().map(String::as_str));
        place.tool(vm, "llama-completion", arguments).text()
    }

    /// Tokens a second while generating.
    fn speed(&self, vm: &Vm, place: &Place) -> Result<f64> {
        let (model, tokens) = (self.model.to_string_lossy(), place.tokens.to_string());
        let mut arguments = vec!["--model", &model, "--n-prompt", "0", "--n-gen", &tokens, "--threads", "1"];
        arguments.extend(["--repetitions", "1", "--no-warmup", "--output", "json"]);
        arguments.extend(place.arguments.iter().map(String::as_str));
        let json = place.tool(vm, "llama-bench", arguments).text()?;
        parse_speed(&json).with_context(|| format!("llama-bench measured nothing:\n{json}"))
    }
}

/// Whether all answers go on from the prompt and begin alike, as far as the shortest goes.
pub fn alike(findings: &[Finding]) -> bool {
    let shortest = findings.iter().map(|finding| finding.text.trim()).min_by_key(|text| text.len());
    let shortest = shortest.unwrap_or_default();
    shortest.len() > PROMPT.len() && findings.iter().all(|finding| finding.text.trim().starts_with(shortest))
}

/// The speeds, and their ratios to the first, as a table.
pub fn table(findings: &[Finding]) -> String {
    let mut table = format!("{:<30} {:>10}  {:>7}\n", "generating, in the guest, on", "tokens/s", "ratio");
    for Finding { name, speed, .. } in findings {
        let _ = writeln!(table, "{name:<30} {speed:>10.2}  {:>7.1}", speed / findings[0].speed);
    }
    table
}

/// The speed in llama-bench's JSON.
fn parse_speed(json: &str) -> Option<f64> {
    let tests: serde_json::Value = serde_json::from_str(json).ok()?;
    tests.get(0)?.get("avg_ts")?.as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(first: &str, second: &str) -> [Finding; 2] {
        let finding =
            |text: &str, speed| Finding { name: "x".into(), text: format!("{PROMPT}{text}"), speed };
        [finding(first, 0.15), finding(second, 60.0)]
    }

    #[test]
    fn answers_are_compared_as_far_as_the_shorter_goes() {
        assert!(alike(&findings(" carries\n\n", " carries people")));
        assert!(!alike(&findings(" carriers", " carries people")));
        assert!(!alike(&findings("", " carries people")), "no token is no agreement");
    }

    #[test]
    fn ratios_are_to_the_first() {
        let table = table(&findings("", ""));
        assert!(table.trim_end().ends_with("400.0"), "{table}");
    }

    #[test]
    fn the_speed_is_found() {
        assert_eq!(parse_speed(r#"[{"n_gen": 3, "avg_ts": 0.25}]"#), Some(0.25));
        assert_eq!(parse_speed("[]"), None);
    }
}
