//! `cargo demo -- --vm`: the same in a virtual machine, whose own CPU is emulated.

use std::process::ExitCode;

use anyhow::Result;

use super::Options;

#[cfg(not(target_os = "linux"))]
pub fn run(_: &Options) -> Result<ExitCode> {
    anyhow::bail!("the demonstration's virtual machine needs a Linux host: leave out --vm")
}

/// Success means: the answer through Ferry is the host's own, and the worker computed the one that it should have.
#[cfg(target_os = "linux")]
pub fn run(options: &Options) -> Result<ExitCode> {
    use crate::artifacts::Store;
    use crate::checkout;
    use crate::daemon::Daemon;
    use crate::llama::{Completion, Device, RpcServer};
    use ferry_vm::demo::{Demo, PROMPT, Place};
    use ferry_vm::{Artifacts, Vm};

    let store = Store::open()?;
    let model = options.model(&store)?;
    let (llama, emulated) = (store.llama()?.bin, store.llama_emulated()?.bin);
    let binaries = checkout::binaries()?;
    let daemon = Daemon::start_for_machines(&llama, 1)?;
    let server = RpcServer::start(&store.llama()?)?;
    let machine = Vm::builder().memory_mib(2048).network().gpu(daemon.machine_socket(0));
    let (own, others) = if options.quick { (3, 16) } else { (8, 48) };
    let demo = Demo {
        artifacts: &Artifacts::open()?,
        machine: machine.plugin(&binaries.plugin)?,
        model: &model,
        places: vec![
            Place::guest_cpu(&emulated, own),
            Place::ferry(&llama, &binaries.plugin, others),
            Place::rpc(&llama, server.port(), others),
        ],
    };
    let findings = demo.run(&mut std::io::stdout())?;
    // The host's own answer, with the kernels that its worker used. The guest's own CPU has others (emulation offers it no
    // AVX2 that would be worth using), which round otherwise: after some tokens its text may be another one.
    let completion = Completion { model: &model, prompt: PROMPT, tokens: others, verbose: false };
    let native = completion.run(&store.llama()?, &Device::Cpu)?.stdout;
    let identical = findings[1].text.trim() == native.trim();
    println!(
        "the guest's answer through Ferry and the host's own are identical: {}",
        if identical { "yes" } else { "NO" }
    );
    // One session for the answer, one for the measurement.
    let sessions = daemon.sessions(2)?;
    let graphs: u64 = sessions.iter().map(|session| session.graphs).sum();
    let nodes: u64 = sessions.iter().map(|session| session.nodes).sum();
    println!("executed by the host's workers: {graphs} graphs, {nodes} nodes");
    daemon.stop()?;
    let as_expected = graphs >= 2 * u64::from(others);
    if !as_expected {
        println!("NOT as expected: {others} tokens twice are at least {} graphs", 2 * others);
    }
    Ok(if as_expected && identical { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
