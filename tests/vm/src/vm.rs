//! A virtual machine.

use std::fs::{self, File};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use tempfile::TempDir;

use crate::command::{GuestCommand, pull, push};
use crate::debian::{Debian, Release};
use crate::modules::Modules;
use crate::{Agent, Artifacts, GpuDevice, Guarded, Initramfs, Kernel, KernelVersion, Qemu, cargo, elf};

/// How long a boot may take unless the builder says otherwise; five seconds is usual on two idle cores.
const BOOT_TIMEOUT: Duration = Duration::from_secs(120);

/// How long QEMU may take to connect to the agent's socket: it does so before it runs the guest.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// How often the console is looked at while the guest boots.
const POLL: Duration = Duration::from_millis(100);

/// How many of the console's last lines an error shows.
const CONSOLE_TAIL_LINES: usize = 40;

/// Modules that every guest gets; what they depend on comes with them.
const MODULES: [&str; 6] = ["virtio_pci", "virtio_console", "virtio_blk", "virtio_net", "9pnet_virtio", "9p"];

/// The module of the device under test.
const GPU_MODULE: &str = "virtio-gpu";

/// Describes a machine.
#[derive(Debug, Clone)]
#[must_use = "a machine does not run until it is booted"]
pub struct VmBuilder {
    kernel: KernelVersion,
    memory_mib: u32,
    cpus: u32,
    shared_memory: bool,
    gpu: Option<PathBuf>,
    gpu_device: GpuDevice,
    gpu_driver: bool,
    network: bool,
    shares: Vec<PathBuf>,
    disks: Vec<(PathBuf, String)>,
    programs: Vec<PathBuf>,
    program_folders: Vec<PathBuf>,
    files: Vec<(PathBuf, String)>,
    kernel_arguments: String,
    qemu_arguments: Vec<String>,
    boot_timeout: Duration,
}

impl Default for VmBuilder {
    fn default() -> Self {
        Self {
            kernel: KernelVersion::default(),
            memory_mib: 1024,
            cpus: 1,
            shared_memory: true,
            gpu: None,
            gpu_device: GpuDevice::default(),
            gpu_driver: true,
            network: false,
            shares: Vec::new(),
            disks: Vec::new(),
            programs: Vec::new(),
            program_folders: Vec::new(),
            files: Vec::new(),
            kernel_arguments: String::new(),
            qemu_arguments: Vec::new(),
            boot_timeout: BOOT_TIMEOUT,
        }
    }
}

impl VmBuilder {
    /// Which kernel boots.
    pub fn kernel(mut self, version: KernelVersion) -> Self {
        self.kernel = version;
        self
    }

    /// The guest's memory, MiB.
    pub fn memory_mib(mut self, memory_mib: u32) -> Self {
        self.memory_mib = memory_mib;
        self
    }

    /// The guest's processors.
    pub fn cpus(mut self, cpus: u32) -> Self {
        self.cpus = cpus;
        self
    }

    /// Whether a vhost-user back-end can reach the guest's memory (`share=on`). It can unless this says no.
    pub fn shared_memory(mut self, shared: bool) -> Self {
        self.shared_memory = shared;
        self
    }

    /// Adds a virtio-gpu device that the vhost-user back-end listening at `socket` serves.
    pub fn gpu(mut self, socket: impl Into<PathBuf>) -> Self {
        self.gpu = Some(socket.into());
        self
    }

    /// Which of QEMU's devices that is; it decides which QEMU is used.
    pub fn gpu_device(mut self, device: GpuDevice) -> Self {
        self.gpu_device = device;
        self
    }

    /// Whether the guest has the driver of virtio-gpu. It has unless this says no.
    pub fn gpu_driver(mut self, present: bool) -> Self {
        self.gpu_driver = present;
        self
    }

    /// Adds QEMU's user-mode network; the host is 10.0.2.2.
    pub fn network(mut self) -> Self {
        self.network = true;
        self
    }

    /// Shows a folder of the host in the guest, read-only and under the same path.
    pub fn share(mut self, folder: impl Into<PathBuf>) -> Self {
        self.shares.push(folder.into());
        self
    }

    /// Shows a large file of the host in the guest as a read-only disk, with a link to it at `path`.
    ///
    /// The guest sees its size rounded up to 512 bytes.
    pub fn disk(mut self, file: impl Into<PathBuf>, path: &str) -> Self {
        self.disks.push((file.into(), path.to_owned()));
        self
    }

    /// Puts the shared libraries into the guest that a program (or library) of a shared folder needs from
    /// outside that folder.
    pub fn runs(mut self, program: impl Into<PathBuf>) -> Self {
        self.programs.push(program.into());
        self
    }

    /// Shows the folder of Ferry's plug-in, with what the plug-in needs.
    ///
    /// # Errors
    /// If it lies in no folder.
    pub fn plugin(self, plugin: &Path) -> Result<Self> {
        let folder = plugin.parent().with_context(|| format!("{} lies in no folder", plugin.display()))?;
        Ok(self.share(folder).runs(plugin))
    }

    /// Shows a folder of programs and libraries, with what they need from outside it.
    pub fn share_programs(mut self, folder: impl Into<PathBuf>) -> Self {
        let folder = folder.into();
        self.program_folders.push(folder.clone());
        self.share(folder)
    }

    /// Copies a file of the host to `path` in the guest before it boots.
    pub fn file(mut self, host: impl Into<PathBuf>, path: &str) -> Self {
        self.files.push((host.into(), path.to_owned()));
        self
    }

    /// Adds to the kernel's command line.
    pub fn kernel_arguments(mut self, arguments: &str) -> Self {
        self.kernel_arguments.push(' ');
        self.kernel_arguments.push_str(arguments);
        self
    }

    /// Adds arguments to QEMU's.
    pub fn qemu_arguments<'a>(mut self, arguments: impl IntoIterator<Item = &'a str>) -> Self {
        self.qemu_arguments.extend(arguments.into_iter().map(str::to_owned));
        self
    }

    /// How long the boot may take.
    pub fn boot_timeout(mut self, timeout: Duration) -> Self {
        self.boot_timeout = timeout;
        self
    }

    /// Boots the machine and waits until its agent answers and its folders are there.
    ///
    /// # Errors
    /// If QEMU does not start or the guest does not get so far; the error has the end of the console's log.
    pub fn boot(self, artifacts: &Artifacts) -> Result<Vm> {
        let kernel = Kernel::fetch(artifacts, self.kernel)?;
        let qemu = Qemu::find(artifacts, self.gpu_device)?;
        let dir = tempfile::Builder::new().prefix("ferry-vm-").tempdir()?;
        self.initramfs(artifacts, &kernel)?.write(&dir.path().join("initramfs"))?;

        let socket = dir.path().join("agent.sock");
        let listener = UnixListener::bind(&socket)?;
        let mut command = qemu.command();
        self.arguments(&mut command, &kernel, dir.path());
        let log = File::create(dir.path().join("qemu.log"))?;
        command.stdin(std::process::Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let process = Guarded::spawn(command).context("cannot start QEMU")?;

        let stream =
            accept(&listener, &process).map_err(|error| with_logs(&format!("{error:#}"), dir.path()))?;
        let vm = Vm { agent: Agent::new(stream)?, process, dir, builder: self };
        vm.ready()?;
        Ok(vm)
    }

    fn initramfs(&self, artifacts: &Artifacts, kernel: &Kernel) -> Result<Initramfs> {
        let busybox = artifacts.entry("busybox-static", |into| {
            Debian::open(artifacts, Release::Bookworm)?.unpack(&["busybox-static".to_owned()], into)
        })?;
        let gpu = self.gpu_driver.then_some(GPU_MODULE);
        let modules: Vec<_> = MODULES.into_iter().chain(gpu).collect();
        let modules = Modules::open(&kernel.modules_dir)?.resolve(&modules)?;
        let mut root = Initramfs::new(
            &busybox.join("bin/busybox"),
            &cargo::binary("ferry-vm-agent", "ferry-vm-agent")?,
            modules,
        )?;
        let mut programs = self.programs.clone();
        for folder in &self.program_folders {
            programs.extend(elf::files_in(folder)?);
        }
        root.libraries_of(&programs)?;
        for (host, path) in &self.files {
            root.copy(host, path)?;
        }
        Ok(root)
    }

    fn arguments(&self, command: &mut Command, kernel: &Kernel, dir: &Path) {
        let memory = self.memory_mib;
        let share = if self.shared_memory { "on" } else { "off" };
        command.args(["-nodefaults", "-no-user-config", "-vga", "none", "-display", "none"]);
        command.args(["-machine", "q35,memory-backend=mem", "-accel", "tcg", "-cpu", "max"]);
        command.args(["-smp", &self.cpus.to_string(), "-m", &format!("{memory}M")]);
        command.args(["-object", &format!("memory-backend-memfd,id=mem,size={memory}M,share={share}")]);
        command.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(dir.join("initramfs"));
        // A panicked guest stops, so that the end of its console says why; mitigations only cost time here.
        let arguments = format!("console=ttyS0 quiet panic=0 mitigations=off{}", self.kernel_arguments);
        command.args(["-append", &arguments]);
        command.args(["-serial", &format!("file:{}", option_path(&dir.join("console.log")))]);
        command.args(["-device", "virtio-serial-pci"]);
        command.args(["-chardev", &format!("socket,id=agent,path={}", option_path(&dir.join("agent.sock")))]);
        command
            .args(["-device", &format!("virtserialport,chardev=agent,name={}", ferry_vm_agent::PORT_NAME)]);
        self.device_arguments(command);
        command.args(&self.qemu_arguments);
    }

    fn device_arguments(&self, command: &mut Command) {
        if let Some(socket) = &self.gpu {
            command.args(["-chardev", &format!("socket,id=ferry,path={}", option_path(socket))]);
            command.args(["-device", &self.gpu_device.option("ferry")]);
        }
        if self.network {
            command.args(["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="]);
        }
        for (index, folder) in self.shares.iter().enumerate() {
            let folder = option_path(folder);
            command.args([
                "-fsdev",
                &format!("local,id=share{index},path={folder},security_model=none,readonly=on"),
            ]);
            command.args(["-device", &format!("virtio-9p-pci,fsdev=share{index},mount_tag=share{index}")]);
        }
        for (index, (file, _)) in self.disks.iter().enumerate() {
            let file = option_path(file);
            command.args(["-drive", &format!("file={file},if=none,id=disk{index},format=raw,readonly=on")]);
            command.args(["-device", &format!("virtio-blk-pci,drive=disk{index},serial=disk{index}")]);
        }
    }

    /// The shell commands, run by the guest, that bring its folders and disks to their places.
    fn mounts(&self) -> String {
        let mut script = String::from("set -e\n");
        for (index, folder) in self.shares.iter().enumerate() {
            let folder = folder.display();
            // The host's files do not change under a test: the guest may keep what it read.
            let options = "trans=virtio,version=9p2000.L,ro,msize=524288,cache=loose";
            script += &format!("mkdir -p '{folder}'\nmount -t 9p -o {options} share{index} '{folder}'\n");
        }
        for (index, (_, path)) in self.disks.iter().enumerate() {
            script += &format!(
                "device=$(grep -lx disk{index} /sys/block/vd*/serial | cut -d/ -f4)\n\
                 mkdir -p \"$(dirname '{path}')\"\nln -sf \"/dev/$device\" '{path}'\n"
            );
        }
        script
    }
}

/// A path as a value in one of QEMU's comma-separated options.
fn option_path(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// Takes QEMU's connection for the agent's port.
fn accept(listener: &UnixListener, process: &Guarded) -> Result<UnixStream> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return Err(error.into()),
            Err(_) => {}
        }
        if let Some(status) = process.wait(POLL) {
            bail!("QEMU ended at once ({status})");
        }
        if Instant::now() > deadline {
            bail!("QEMU did not connect to the agent's socket within {CONNECT_TIMEOUT:?}");
        }
    }
}

/// An error with what QEMU and the guest's console said last.
fn with_logs(reason: &str, dir: &Path) -> anyhow::Error {
    let tail = |name: &str| {
        let text = fs::read(dir.join(name)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(CONSOLE_TAIL_LINES)..].join("\n")
    };
    anyhow!(
        "{reason}\n--- QEMU's output ---\n{}\n--- end of the guest's console ---\n{}",
        tail("qemu.log"),
        tail("console.log")
    )
}

/// A running machine. Dropping it kills it.
#[derive(Debug)]
pub struct Vm {
    // The process goes first when this is dropped, then the folder it writes to.
    process: Guarded,
    agent: Agent,
    builder: VmBuilder,
    dir: TempDir,
}

impl Vm {
    /// Starts to describe a machine.
    pub fn builder() -> VmBuilder {
        VmBuilder::default()
    }

    /// A command to run in the guest.
    pub fn command<S: Into<String>>(&self, argv: impl IntoIterator<Item = S>) -> GuestCommand<'_> {
        GuestCommand::new(self, argv)
    }

    /// A line for the guest's shell.
    pub fn shell(&self, line: &str) -> GuestCommand<'_> {
        self.command(["sh", "-c", line])
    }

    /// Copies `content` into the file `path` of the guest, with the permission bits `mode`.
    ///
    /// # Errors
    /// If the guest cannot write it, or is gone.
    pub fn push(&self, content: &[u8], path: &str, mode: u32) -> Result<()> {
        push(self, content, path, mode)
    }

    /// The content of the guest's file `path`.
    ///
    /// # Errors
    /// If the guest cannot read it, or is gone.
    pub fn pull(&self, path: &str) -> Result<Vec<u8>> {
        pull(self, path)
    }

    /// Has the guest reboot itself and waits until it is ready again.
    ///
    /// # Errors
    /// If it does not come back.
    pub fn reboot(&self) -> Result<()> {
        self.shell("reboot -f").spawn()?;
        self.ready()
    }

    /// Has the guest power itself off and waits for QEMU's end.
    ///
    /// # Errors
    /// If QEMU does not end, or not well.
    pub fn power_off(self) -> Result<()> {
        self.shell("poweroff -f").spawn()?;
        match self.process.wait(self.builder.boot_timeout) {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(self.failure(&format!("QEMU ended with {status}"))),
            None => Err(self.failure("QEMU did not end when the guest powered off")),
        }
    }

    /// Waits until the guest is ready after a boot of its own making, and its folders are there.
    ///
    /// # Errors
    /// If it does not get so far in time: with the end of the console's log.
    pub fn ready(&self) -> Result<()> {
        let deadline = Instant::now() + self.builder.boot_timeout;
        loop {
            match self.agent.hello(POLL) {
                Ok(_) => break,
                Err(RecvTimeoutError::Disconnected) => {
                    let end = self.process.wait(CONNECT_TIMEOUT).map_or("closed its socket".into(), describe);
                    return Err(self.failure(&format!("QEMU {end} before the guest was ready")));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.console().contains("Kernel panic") {
                return Err(self.failure("the guest's kernel panicked"));
            }
            if Instant::now() > deadline {
                let limit = self.builder.boot_timeout;
                return Err(self.failure(&format!("the guest was not ready within {limit:?}")));
            }
        }
        let mounts = self.shell(&self.builder.mounts()).text();
        mounts.map(drop).context("cannot bring the host's folders into the guest")
    }

    /// All that the guest's console said so far.
    pub fn console(&self) -> String {
        let log = fs::read(self.dir.path().join("console.log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// All that QEMU itself said so far.
    pub fn qemu_log(&self) -> String {
        let log = fs::read(self.dir.path().join("qemu.log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// QEMU's process.
    pub fn process(&self) -> &Guarded {
        &self.process
    }

    /// An error that shows what QEMU and the guest's console said last.
    pub fn failure(&self, reason: &str) -> anyhow::Error {
        let VmBuilder { kernel, memory_mib, cpus, .. } = self.builder;
        let what = format!("{reason} (kernel {kernel}, {memory_mib} MiB, {cpus} processors)");
        with_logs(&what, self.dir.path())
    }

    pub(crate) fn agent(&self) -> &Agent {
        &self.agent
    }
}

fn describe(status: ExitStatus) -> String {
    format!("ended ({status})")
}
