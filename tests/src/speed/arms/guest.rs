//! Arms in a virtual machine: one that boots once, in which llama-bench runs as it does here.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result};
use ferry_vm::demo;
use ferry_vm::{Artifacts, Vm};

use super::{GuestAccount, Ran};
use crate::artifacts::LlamaBuild;
use crate::checkout;
use crate::daemon::Daemon;
use crate::llama::{Bench, THREADS};
use crate::progress::Step;
use crate::speed::RUN_TIMEOUT;

/// Where the plug-in writes its statistics in the guest.
const STATS: &str = "/tmp/ferry-stats.jsonl";
const MEMORY_MIB: u32 = 2048;

/// The machine.
pub struct Guest {
    vm: Rc<Vm>,
}

/// A place in it.
pub struct GuestPlace {
    vm: Rc<Vm>,
    place: demo::Place,
    is_ferry: bool,
}

impl Guest {
    /// Boots it, with llama.cpp, the models, and the device of `daemon` if there is one.
    pub fn boot(llama: &LlamaBuild, models: &[PathBuf], daemon: Option<&Daemon>) -> Result<Self> {
        let step = Step::begin("booting a virtual machine");
        let mut machine = Vm::builder().memory_mib(MEMORY_MIB).network().share_programs(&llama.bin);
        let folders: BTreeSet<&Path> = models.iter().filter_map(|model| model.parent()).collect();
        machine = folders.into_iter().fold(machine, |machine, folder| machine.share(folder));
        if let Some(daemon) = daemon {
            machine = machine.gpu(daemon.machine_socket(0)).plugin(&checkout::binaries()?.plugin)?;
        }
        let vm = Rc::new(machine.boot(&Artifacts::open()?)?);
        step.done();
        Ok(Self { vm })
    }

    /// Its Ferry device.
    pub fn ferry(&self, llama: &LlamaBuild) -> Result<GuestPlace> {
        let place = demo::Place::ferry(&llama.bin, &checkout::binaries()?.plugin, 0);
        Ok(GuestPlace { vm: Rc::clone(&self.vm), place, is_ferry: true })
    }

    /// The host's ggml-rpc server over its network.
    pub fn rpc(&self, llama: &LlamaBuild, port: u16) -> GuestPlace {
        GuestPlace { vm: Rc::clone(&self.vm), place: demo::Place::rpc(&llama.bin, port, 0), is_ferry: false }
    }

    /// Once no place in it is left.
    pub fn power_off(self) -> Result<()> {
        Rc::into_inner(self.vm).context("somebody still uses the virtual machine")?.power_off()
    }
}

impl GuestPlace {
    /// Runs llama-bench in the guest.
    pub fn run(&self, bench: &Bench<'_>) -> Result<Ran> {
        let arguments = bench.arguments(THREADS).into_iter().chain(self.place.arguments.iter().cloned());
        let command = self.place.tool(&self.vm, "llama-bench", arguments).env("FERRY_STATS", STATS);
        let started = Instant::now();
        let stdout = command.timeout(RUN_TIMEOUT).text()?;
        let elapsed = started.elapsed();
        let guest = match self.is_ferry {
            true => GuestAccount::last(&self.vm.command(["cat", STATS]).text()?)?,
            false => None,
        };
        Ok(Ran { speeds: bench.speeds(&stdout)?, elapsed, guest })
    }
}
