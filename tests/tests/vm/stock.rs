//! What a guest can do without Ferry: the comparisons' other sides.

use ferry_tests::artifacts::Store;
use ferry_tests::llama::RpcServer;
use ferry_vm::demo::{Demo, Place, alike};
use ferry_vm::{Artifacts, KernelVersion, Vm};

/// Also shows that every stock program that the other tests need runs in the guest.
#[test]
fn the_guest_computes_by_itself_and_through_ggml_rpc() {
    let store = Store::open().unwrap();
    let (plain, emulated) = (store.llama().unwrap(), store.llama_emulated().unwrap());
    let server = RpcServer::start(&plain).unwrap();
    let demo = Demo {
        artifacts: &Artifacts::open().unwrap(),
        machine: Vm::builder().kernel(KernelVersion::V6_12).memory_mib(2048).network(),
        model: &store.model().unwrap(),
        places: vec![Place::guest_cpu(&emulated.bin, 3), Place::rpc(&plain.bin, server.port(), 16)],
    };
    let findings = demo.run(&mut std::io::stdout()).unwrap();
    assert!(alike(&findings), "{findings:#?}");
    let [own, rpc] = &findings[..] else { panic!("two places, {} findings", findings.len()) };
    assert!(own.speed > 0.0 && rpc.speed > own.speed, "the host is not faster: {findings:#?}");
}
