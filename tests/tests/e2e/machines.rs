//! Several devices in one daemon, those of other machines among them.

use ferry_tests::llama::Device;
use ferry_tests::machines::{Machines, SPLITS};

use crate::testbed::Testbed;

#[test]
fn a_model_split_over_machines_and_devices_answers_as_natively() {
    let bed = Testbed::new();
    let machines = Machines::start(&bed.llama, "cpu", "CPU", 2).unwrap();
    for devices in SPLITS {
        let answer = machines.answer_split(&bed.llama, &bed.model, &Device::Cpu, devices);
        answer.unwrap_or_else(|error| panic!("{devices}: {error:#}"));
    }
}
