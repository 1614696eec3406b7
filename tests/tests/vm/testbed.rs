//! What each of these tests begins with.

use std::path::PathBuf;
use std::time::Duration;

use ferry_tests::artifacts::{LlamaBuild, Store};
use ferry_tests::checkout;
use ferry_tests::llama::FERRY_DEVICE;
use ferry_tests::llama::{Completion, Device};
use ferry_vm::{Artifacts, GuestCommand, KernelVersion, Vm, VmBuilder};

const PROMPT: &str = "A ferry is a boat that";
/// Loading the model takes an emulated CPU some seconds; a token through Ferry a few hundredths.
const TIMEOUT: Duration = Duration::from_secs(300);

/// llama.cpp, the model and the plug-in.
pub struct Testbed {
    pub llama: LlamaBuild,
    pub model: PathBuf,
    plugin: PathBuf,
    artifacts: Artifacts,
}

impl Testbed {
    pub fn new() -> Self {
        let store = Store::open().unwrap();
        let plugin = checkout::binaries().unwrap().plugin.clone();
        let (llama, model) = (store.llama().unwrap(), store.model().unwrap());
        Self { llama, model, plugin, artifacts: Artifacts::open().unwrap() }
    }

    /// A machine with all of it, but no device.
    pub fn machine(&self, kernel: KernelVersion) -> VmBuilder {
        let machine = Vm::builder().kernel(kernel).share_programs(&self.llama.bin);
        machine.share(self.model.parent().unwrap()).plugin(&self.plugin).unwrap()
    }

    pub fn boot(&self, machine: VmBuilder) -> Vm {
        machine.boot(&self.artifacts).unwrap()
    }

    /// The continuation of `prompt` by so many tokens in the guest, through Ferry or not at all.
    pub fn completion<'vm>(&self, vm: &'vm Vm, prompt: &str, tokens: u32) -> GuestCommand<'vm> {
        let program = self.llama.bin.join("llama-completion").to_string_lossy().into_owned();
        let (model, tokens) = (self.model.to_string_lossy(), tokens.to_string());
        let mut argv = vec![program.as_str(), "--model", &model, "--prompt", prompt, "--predict", &tokens];
        argv.extend(["--threads", "1", "--temp", "0", "--seed", "1", "-no-cnv", "--no-warmup"]);
        argv.extend(["--fit", "off", "--ignore-eos", "--ctx-size", "512"]);
        argv.extend(["--device", FERRY_DEVICE, "-ngl", "99"]);
        vm.command(argv).env("GGML_BACKEND_PATH", &self.plugin.to_string_lossy()).timeout(TIMEOUT)
    }

    /// The same with the usual prompt.
    pub fn through_ferry<'vm>(&self, vm: &'vm Vm, tokens: u32) -> GuestCommand<'vm> {
        self.completion(vm, PROMPT, tokens)
    }

    /// What the same build says natively on the host.
    pub fn native(&self, tokens: u32) -> String {
        let completion = Completion { model: &self.model, prompt: PROMPT, tokens, verbose: false };
        completion.run(&self.llama, &Device::Cpu).unwrap().stdout
    }
}
