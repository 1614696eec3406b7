//! What Ferry is compared with: a peer whose numbers are shown has to have computed, and rightly.

use ferry_tests::artifacts::Store;
use ferry_tests::llama::{Completion, Device};
use ferry_tests::virtgpu::VirtgpuHost;

use crate::testbed::Testbed;

const TOKENS: u32 = 8;

#[test]
fn ggml_virtgpu_computes_on_its_host_what_is_computed_natively() {
    let bed = Testbed::new();
    let build = Store::open().unwrap().virtgpu().unwrap();
    let mut host = VirtgpuHost::start(&build, &bed.llama, "cpu", "CPU").unwrap();
    let completion =
        Completion { model: &bed.model, prompt: "The capital of France is", tokens: TOKENS, verbose: false };
    let answer = completion.run(&bed.llama, &host.device()).unwrap();
    assert_eq!(answer.stdout, completion.run(&bed.llama, &Device::Cpu).unwrap().stdout);
    let commands = host.commands_of_last_session().unwrap();
    // Of what it sends for every token, only the graph is left where both have the buffers' memory.
    assert!(commands > u64::from(TOKENS), "only {commands} commands");
}
