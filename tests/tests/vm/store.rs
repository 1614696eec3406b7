//! A model store on the host of a virtual machine.

use std::process::Command;

use ferry_tests::checkout;
use ferry_tests::daemon::Daemon;
use ferry_tests::llama::RUN_TIMEOUT;
use ferry_tests::process;
use ferry_vm::KernelVersion;

use crate::testbed::Testbed;

const TOKENS: u32 = 8;
/// What crosses without weights: messages, norms, inputs, and 192 KiB of logits for each token.
const REST_BYTES_MAX: u64 = 4 << 20;

#[test]
fn weights_that_the_host_has_do_not_leave_the_machine() {
    let bed = Testbed::new();
    let dir = tempfile::tempdir().unwrap();
    let (store, socket) = (dir.path().join("store"), dir.path().join("vm.sock"));
    std::fs::create_dir(&store).unwrap();
    let mut add = Command::new(&checkout::binaries().unwrap().ferryd);
    add.args(["store", "add", "--model-store"]).args([&store, &bed.model]);
    process::run(&mut add, RUN_TIMEOUT).unwrap().success().unwrap();

    let adapt = |mut command: Command| {
        command.arg("--vhost-user").arg(&socket).arg("--model-store").arg(&store);
        Ok(command)
    };
    let daemon = Daemon::adapted(&bed.llama.bin, "cpu", adapt).unwrap();
    let vm = bed.boot(bed.machine(KernelVersion::V6_12).gpu(&socket));
    assert_eq!(bed.through_ferry(&vm, TOKENS).text().unwrap(), bed.native(TOKENS));
    let session = &daemon.sessions(1).unwrap()[0];
    let weights = std::fs::metadata(&bed.model).unwrap().len() * 9 / 10;
    assert!(session.bytes_from_store >= weights && session.failures == 0, "{session:?}");
    assert!(session.bytes_in + session.bytes_shared <= REST_BYTES_MAX, "{session:?}");
}
