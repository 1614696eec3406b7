//! What a user of llama.cpp may choose: each choice gives what it gives natively.

use ferry_tests::choices::{CHOICES, Comparison};
use ferry_tests::daemon::Daemon;
use ferry_tests::llama::Device;

use crate::testbed::Testbed;

#[test]
fn every_choice_gives_its_native_answer() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let comparison =
        Comparison { llama: &bed.llama, model: &bed.model, native: &Device::Cpu, daemon: &daemon };
    for choice in CHOICES {
        comparison.answer(choice).unwrap_or_else(|error| panic!("{choice:?}: {error:#}"));
    }
}
