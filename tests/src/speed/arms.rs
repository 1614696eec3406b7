//! The arms of `cargo speed`: where llama-bench runs, and on what.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use tempfile::TempDir;

use super::{Options, RUN_TIMEOUT};
use crate::artifacts::{LlamaBuild, Store};
use crate::daemon::{Daemon, Session};
use crate::llama::{Bench, Device, RpcServer, THREADS};
use crate::process;

#[cfg(target_os = "linux")]
mod guest;
#[cfg(target_os = "linux")]
use {
    crate::artifacts::VirtgpuBuild,
    crate::virtgpu::VirtgpuHost,
    guest::{Guest, GuestPlace},
};

/// An arm's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ArmKind {
    /// The back-end, used natively
    Native,
    /// Natively, with weights repacked for this CPU as only a program's own CPU back-end can
    NativeRepacked,
    /// Ferry over a unix socket
    FerryUnix,
    /// Ferry without shared memory
    FerryStream,
    /// ggml-rpc on loopback
    Rpc,
    /// llama.cpp's ggml-virtgpu without the virtual machine and the renderer that it has between its two ends
    Virtgpu,
    /// Ferry in a virtual machine
    FerryVm,
    /// ggml-rpc from a virtual machine, over its network
    RpcVm,
}

impl ArmKind {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::NativeRepacked => "native-repacked",
            Self::FerryUnix => "ferry-unix",
            Self::FerryStream => "ferry-stream",
            Self::Rpc => "rpc",
            Self::Virtgpu => "virtgpu",
            Self::FerryVm => "ferry-vm",
            Self::RpcVm => "rpc-vm",
        }
    }

    /// Whether it computes through Ferry.
    pub fn is_ferry(self) -> bool {
        matches!(self, Self::FerryUnix | Self::FerryStream | Self::FerryVm)
    }

    /// What does the same in the same place, if it is one of Ferry's.
    pub fn peers(self) -> &'static [Self] {
        match self {
            Self::FerryUnix | Self::FerryStream => &[Self::Rpc, Self::Virtgpu],
            Self::FerryVm => &[Self::RpcVm],
            _ => &[],
        }
    }

    fn is_rpc(self) -> bool {
        matches!(self, Self::Rpc | Self::RpcVm)
    }

    fn is_in_vm(self) -> bool {
        matches!(self, Self::FerryVm | Self::RpcVm)
    }
}

/// What the plug-in says of its session when that ends.
#[derive(Debug, Clone, Deserialize)]
pub struct GuestAccount {
    pub guest_pid: i32,
    pub messages: u64,
    pub doorbells: u64,
    pub waits: u64,
}

impl GuestAccount {
    /// The last line of a file of statistics.
    fn last(lines: &str) -> Result<Option<Self>> {
        let last = lines.lines().last();
        last.map(|line| serde_json::from_str(line).with_context(|| format!("FERRY_STATS: {line:?}")))
            .transpose()
    }
}

/// What a run of llama-bench gave.
pub struct Ran {
    /// Tokens per second of each measurement.
    pub speeds: Vec<f64>,
    /// From its start to its end.
    pub elapsed: Duration,
    /// What the plug-in counted, if it was one of Ferry's.
    pub guest: Option<GuestAccount>,
}

/// One arm.
pub struct Contender {
    /// Which.
    pub kind: ArmKind,
    place: Place,
}

enum Place {
    /// Beside the daemon.
    Here { llama: LlamaBuild, device: Device, dir: PathBuf },
    #[cfg(target_os = "linux")]
    Guest(GuestPlace),
}

impl Contender {
    /// Runs llama-bench there.
    pub fn run(&self, bench: &Bench<'_>) -> Result<Ran> {
        let named = || format!("measuring {}", self.kind.name());
        match &self.place {
            Place::Here { llama, device, dir } => {
                self.run_here(bench, llama, device, dir).with_context(named)
            }
            #[cfg(target_os = "linux")]
            Place::Guest(place) => place.run(bench).with_context(named),
        }
    }

    fn run_here(&self, bench: &Bench<'_>, llama: &LlamaBuild, device: &Device, dir: &Path) -> Result<Ran> {
        let stats = dir.join("guest-stats.jsonl");
        let mut command = llama.program("llama-bench", device)?;
        command.args(bench.arguments(THREADS)).env("FERRY_STATS", &stats);
        if self.kind == ArmKind::FerryStream {
            command.env("FERRY_TRANSPORT", "stream");
        }
        let finished = process::run(&mut command, RUN_TIMEOUT)?.success()?;
        let speeds = bench.speeds(&finished.stdout).with_context(|| finished.tail())?;
        let guest = match self.kind.is_ferry() {
            true => GuestAccount::last(&std::fs::read_to_string(&stats).unwrap_or_default())?,
            false => None,
        };
        Ok(Ran { speeds, elapsed: finished.elapsed, guest })
    }
}

/// Everything that the arms need, running.
pub struct Stage {
    /// The arms.
    pub contenders: Vec<Contender>,
    daemon: Option<Daemon>,
    _server: Option<RpcServer>,
    #[cfg(target_os = "linux")]
    _virtgpu: Option<VirtgpuHost>,
    #[cfg(target_os = "linux")]
    guest: Option<Guest>,
    _dir: TempDir,
}

impl Stage {
    /// Starts what the options ask for.
    pub fn set(options: &Options, models: &[PathBuf]) -> Result<Self> {
        let kinds = kinds(options);
        let llama = llama(options)?;
        let native = llama.own_device(&options.backend)?;
        let needs = |wanted: fn(ArmKind) -> bool| kinds.iter().any(|&kind| wanted(kind));
        let (in_vm, backend) = (needs(ArmKind::is_in_vm), &options.backend);
        let daemon = needs(ArmKind::is_ferry)
            .then(|| Daemon::start_with(&llama.bin, backend, usize::from(in_vm)))
            .transpose()?;
        let own_name = match &native {
            Device::Own(name) => name,
            _ => "CPU",
        };
        let server = needs(ArmKind::is_rpc).then(|| RpcServer::start_on(&llama, own_name)).transpose()?;
        #[cfg(target_os = "linux")]
        let virtgpu = needs(|kind| kind == ArmKind::Virtgpu)
            .then(|| VirtgpuHost::start(&virtgpu_build(options)?, &llama, backend, own_name))
            .transpose()?;
        #[cfg(target_os = "linux")]
        let guest = in_vm.then(|| Guest::boot(&llama, models, daemon.as_ref())).transpose()?;
        #[cfg(not(target_os = "linux"))]
        anyhow::ensure!(!in_vm, "the virtual machine needs a Linux host: leave out --vm ({models:?})");
        let dir = tempfile::tempdir().context("making a folder")?;
        let here = |llama: &LlamaBuild, device| Place::Here {
            llama: llama.clone(),
            device,
            dir: dir.path().to_owned(),
        };
        let place = |kind| -> Result<Place> {
            let daemon = daemon.as_ref().context("no daemon was started");
            let server = server.as_ref().context("no server was started");
            Ok(match kind {
                ArmKind::Native => here(&llama, native.clone()),
                ArmKind::NativeRepacked => here(&Store::open()?.llama_repacked()?, Device::Cpu),
                ArmKind::FerryUnix | ArmKind::FerryStream => here(&llama, Device::Ferry(daemon?.socket())),
                ArmKind::Rpc => here(&llama, server?.device()),
                #[cfg(target_os = "linux")]
                ArmKind::Virtgpu => here(&llama, virtgpu.as_ref().context("no host was started")?.device()),
                #[cfg(target_os = "linux")]
                ArmKind::FerryVm => Place::Guest(guest.as_ref().context("no machine")?.ferry(&llama)?),
                #[cfg(target_os = "linux")]
                ArmKind::RpcVm => {
                    Place::Guest(guest.as_ref().context("no machine")?.rpc(&llama, server?.port()))
                }
                #[cfg(not(target_os = "linux"))]
                ArmKind::Virtgpu | ArmKind::FerryVm | ArmKind::RpcVm => {
                    anyhow::bail!("needs a Linux host")
                }
            })
        };
        let contenders = kinds
            .iter()
            .map(|&kind| Ok(Contender { kind, place: place(kind)? }))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            contenders,
            daemon,
            _server: server,
            #[cfg(target_os = "linux")]
            _virtgpu: virtgpu,
            #[cfg(target_os = "linux")]
            guest,
            _dir: dir,
        })
    }

    /// What the worker of the guest process `pid` counted.
    pub fn session_of(&self, pid: i32) -> Result<Session> {
        self.daemon.as_ref().context("no daemon was started")?.session_of(pid)
    }

    /// Ends it all; an error is a daemon that does not end by itself.
    pub fn end(self) -> Result<()> {
        drop(self.contenders);
        #[cfg(target_os = "linux")]
        self.guest.map(Guest::power_off).transpose()?;
        self.daemon.map_or(Ok(()), Daemon::stop)
    }
}

fn kinds(options: &Options) -> Vec<ArmKind> {
    if !options.arms.is_empty() {
        return options.arms.clone();
    }
    let mut kinds = vec![ArmKind::Native, ArmKind::FerryUnix, ArmKind::Rpc];
    #[cfg(target_os = "linux")]
    match virtgpu_build(options) {
        Ok(_) => kinds.push(ArmKind::Virtgpu),
        Err(reason) => eprintln!("  without ggml-virtgpu: {reason:#}"),
    }
    if options.vm {
        kinds.extend([ArmKind::FerryVm, ArmKind::RpcVm]);
    }
    kinds
}

fn llama(options: &Options) -> Result<LlamaBuild> {
    match &options.llama {
        Some(dir) => {
            let bin = dir.canonicalize().with_context(|| format!("looking for {}", dir.display()))?;
            // Only its programs are run; nothing is compiled against its headers.
            Ok(LlamaBuild { source: bin.clone(), bin })
        }
        None => Store::open()?.llama(),
    }
}

#[cfg(target_os = "linux")]
fn virtgpu_build(options: &Options) -> Result<VirtgpuBuild> {
    match (&options.virtgpu, &options.llama) {
        (Some(dir), _) => VirtgpuBuild::at(dir),
        (None, Some(_)) => {
            anyhow::bail!("where --llama names llama.cpp, --virtgpu has to name the folder of ggml-virtgpu")
        }
        (None, None) => Store::open()?.virtgpu(),
    }
}
