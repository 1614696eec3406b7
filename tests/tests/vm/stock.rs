//! What a guest gains: its own CPU, ggml-rpc and Ferry side by side.

use ferry_tests::artifacts::Store;
use ferry_tests::checkout;
use ferry_tests::daemon::Daemon;
use ferry_tests::llama::RpcServer;
use ferry_vm::demo::{Demo, Place, alike};
use ferry_vm::{Artifacts, KernelVersion, Vm};

/// An emulated CPU is some eighty times slower than the host's; this much is never noise.
const FASTER_BY: f64 = 5.0;

/// Also shows that every stock program that the other tests need runs in the guest.
#[test]
fn the_guest_computes_by_itself_through_ggml_rpc_and_through_ferry() {
    let store = Store::open().unwrap();
    let (plain, emulated) = (store.llama().unwrap(), store.llama_emulated().unwrap());
    let server = RpcServer::start(&plain).unwrap();
    let plugin = &checkout::binaries().unwrap().plugin;
    let daemon = Daemon::start_for_machines(&plain.bin, 1).unwrap();
    let machine = Vm::builder().kernel(KernelVersion::V6_12).memory_mib(2048).network();
    let demo = Demo {
        artifacts: &Artifacts::open().unwrap(),
        machine: machine.gpu(daemon.machine_socket(0)).plugin(plugin).unwrap(),
        model: &store.model().unwrap(),
        places: vec![
            Place::guest_cpu(&emulated.bin, 3),
            Place::rpc(&plain.bin, server.port(), 16),
            Place::ferry(&plain.bin, plugin, 16),
        ],
    };
    let findings = demo.run(&mut std::io::stdout()).unwrap();
    assert!(alike(&findings), "{findings:#?}");
    let [own, rpc, ferry] = &findings[..] else { panic!("three places, {} findings", findings.len()) };
    assert!(own.speed > 0.0 && rpc.speed > own.speed, "the host is not faster: {findings:#?}");
    assert!(ferry.speed >= FASTER_BY * own.speed, "not worth it: {findings:#?}");
    assert!(daemon.sessions(2).unwrap().iter().all(|session| session.graphs >= 16));
}
