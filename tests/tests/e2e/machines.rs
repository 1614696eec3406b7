//! Several devices in one daemon, those of other machines among them.

use ferry_tests::artifacts::LlamaBuild;
use ferry_tests::daemon::Daemon;
use ferry_tests::llama::{Completion, Device, RpcServer};

use crate::testbed::{Testbed, run};

const TOKENS: u32 = 24;

/// A daemon whose devices are the host's CPU and those of two ggml-rpc servers.
fn daemon(llama: &LlamaBuild, servers: &[RpcServer; 2]) -> Daemon {
    let [first, second] = servers.each_ref().map(RpcServer::port);
    Daemon::adapted(&llama.bin, |mut command| {
        command.args(["--backend", &format!("rpc=127.0.0.1:{first},127.0.0.1:{second}")]);
        Ok(command)
    })
    .unwrap()
}

#[test]
fn a_model_split_over_machines_and_devices_answers_as_natively() {
    let bed = Testbed::new();
    let servers = [(); 2].map(|()| RpcServer::start(&bed.llama).unwrap());
    let daemon = daemon(&bed.llama, &servers);
    let prompt = "The three largest rivers of Europe are";
    let completion = Completion { model: &bed.model, prompt, tokens: TOKENS, verbose: false };
    let native = completion.run(&bed.llama, &Device::Cpu).unwrap().stdout;
    for (count, devices) in [(1, "Ferry1,Ferry2"), (2, "Ferry0,Ferry1"), (3, "Ferry0,Ferry1,Ferry2")] {
        let mut command = completion.command(&bed.llama, &Device::Ferry(daemon.socket())).unwrap();
        let finished = run(command.args(["--device", devices, "--split-mode", "layer"]));
        assert_eq!(finished.stdout, native, "{devices}");
        let session = daemon.sessions(count).unwrap()[count - 1].clone();
        // One graph a device and token: each of them has computed.
        let parts = devices.split(',').count() as u64;
        assert_eq!(
            (session.graphs, session.failures),
            (parts * u64::from(TOKENS), 0),
            "{devices}: {session:?}"
        );
    }
}
