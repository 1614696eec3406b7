//! Runs one command line in a fresh guest: to try something by hand.
//!
//!     cargo run -p ferry-vm --example guest -- --share-programs DIR 'DIR/PROGRAM --help'

#[cfg(target_os = "linux")]
fn main() -> anyhow::Result<()> {
    guest::run()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("the harness of the VM tests needs Linux");
    std::process::exit(1);
}

#[cfg(target_os = "linux")]
mod guest {
    use std::io::Write;
    use std::path::PathBuf;
    use std::time::{Duration, Instant};

    use clap::Parser;
    use ferry_vm::{Artifacts, Exit, KernelVersion, Vm};

    /// Runs one command line in a fresh guest.
    #[derive(Parser)]
    struct Options {
        /// Boots kernel 6.1 instead of 6.12
        #[arg(long)]
        old_kernel: bool,
        /// The guest's memory, MiB
        #[arg(long, default_value_t = 1024)]
        memory_mib: u32,
        /// The guest's processors
        #[arg(long, default_value_t = 1)]
        cpus: u32,
        /// Leaves the guest's memory out of a vhost-user back-end's reach
        #[arg(long)]
        private_memory: bool,
        /// Adds a virtio-gpu device served by the vhost-user back-end at this socket
        #[arg(long, value_name = "SOCKET")]
        gpu: Option<PathBuf>,
        /// Adds QEMU's user-mode network
        #[arg(long)]
        network: bool,
        /// Shows a folder under the same path
        #[arg(long, value_name = "DIR")]
        share: Vec<PathBuf>,
        /// Shows a file as a disk, with a link to it under the file's name in /mnt
        #[arg(long, value_name = "FILE")]
        disk: Vec<PathBuf>,
        /// Shows a folder of programs, with the libraries that they need
        #[arg(long, value_name = "DIR")]
        share_programs: Vec<PathBuf>,
        /// Prints the guest's console at the end
        #[arg(long)]
        console: bool,
        /// The line for the guest's shell
        line: String,
    }

    pub fn run() -> anyhow::Result<()> {
        let options = Options::parse();
        let kernel = if options.old_kernel { KernelVersion::V6_1 } else { KernelVersion::V6_12 };
        let mut builder = Vm::builder().kernel(kernel).memory_mib(options.memory_mib).cpus(options.cpus);
        builder = builder.shared_memory(!options.private_memory);
        builder = options.share.into_iter().fold(builder, |builder, folder| builder.share(folder));
        builder = options
            .share_programs
            .into_iter()
            .fold(builder, |builder, folder| builder.share_programs(folder));
        for file in options.disk {
            let name = file.file_name().map(|name| format!("/mnt/{}", name.to_string_lossy()));
            builder = builder.disk(&file, &name.unwrap_or_default());
        }
        if let Some(socket) = options.gpu {
            builder = builder.gpu(socket);
        }
        if options.network {
            builder = builder.network();
        }
        let start = Instant::now();
        let vm = builder.boot(&Artifacts::open()?)?;
        eprintln!("ready after {:.1?}", start.elapsed());
        let start = Instant::now();
        let output = vm.shell(&options.line).timeout(Duration::from_secs(3600)).output()?;
        std::io::stdout().write_all(&output.stdout)?;
        std::io::stderr().write_all(&output.stderr)?;
        eprintln!("{} after {:.1?}", output.exit, start.elapsed());
        if options.console {
            eprintln!("--- console ---\n{}", vm.console());
        }
        drop(vm);
        std::process::exit(match output.exit {
            Exit::Code(code) => code,
            Exit::Signal(signal) => 128 + signal,
        })
    }
}
