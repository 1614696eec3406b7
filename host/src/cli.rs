//! What a person, or a process of ours, may say on the command line.

use crate::ggml::Library;
use crate::store::admin;
use clap::{Args, Parser, Subcommand};
use ferry_protocol::hello::field_text;
use std::io::{IsTerminal, stderr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tracing_subscriber::EnvFilter;

/// Lets programs in virtual machines compute on this machine's GPU.
#[derive(Debug, Parser)]
#[command(name = "ferryd", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Listen for guests and serve them, until SIGTERM or SIGINT.
    Serve(Serve),
    /// List the devices that guests would be shown.
    Devices(Backends),
    /// Keep models on this machine, so that guests which load the same need not send their weights.
    #[command(subcommand)]
    Store(StoreCommand),
    /// Accept connections on standard input's socket (started by `serve`).
    #[command(hide = true)]
    Front(Front),
    /// Serve the guest at standard input's socket (started by `serve`).
    #[command(hide = true)]
    Worker(Worker),
    /// Write the devices to standard output (started by `serve`).
    #[command(hide = true)]
    Probe(Backends),
}

/// Which ggml to load.
#[derive(Args, Clone, Debug)]
pub struct Backends {
    /// Directory with the ggml libraries of a llama.cpp build (libggml-base, libggml-cuda, …).
    #[arg(long, value_name = "DIR")]
    pub ggml_dir: PathBuf,
    /// Back-end to load from there: cpu, cuda, vulkan, metal, …, or the path of its library; rpc=HOST:PORT,… for the
    /// devices of other machines, where ggml-rpc-server runs. May be repeated: guests see the devices of all.
    #[arg(long = "backend", value_name = "NAME", required = true)]
    pub backends: Vec<String>,
}

/// `ferryd serve`.
#[derive(Args, Clone, Debug)]
pub struct Serve {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub ggml: Backends,
    /// Unix socket to listen on, for guests that share this machine's kernel. If no socket of either kind is named:
    /// $XDG_RUNTIME_DIR/ferry.sock, or /run/ferry.sock.
    #[arg(long, value_name = "SOCKET")]
    pub unix: Vec<PathBuf>,
    /// Socket for one virtual machine's virtio-gpu device, for QEMU's `-chardev socket,id=ferry,path=SOCKET -device
    /// vhost-user-gpu-pci,chardev=ferry` with shared memory (`share=on`). May be repeated: one for each machine.
    #[arg(long, value_name = "SOCKET")]
    pub vhost_user: Vec<PathBuf>,
    /// Permissions of the sockets, in octal.
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = octal)]
    pub socket_mode: u32,
    /// Sessions (guest processes) that each socket may have at once.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub sessions_max: usize,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub tuning: Tuning,
}

/// How workers serve.
#[derive(Args, Clone, Debug)]
pub struct Tuning {
    /// Append each session's counters to this file, as a line of JSON, when it ends; for a virtual machine also those of
    /// its device.
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,
    /// Microseconds to look for the next message before sleeping, at most. Default: 5000 with 8 cores or more, 2000 with 4,
    /// else 0.
    #[arg(long, value_name = "N")]
    pub spin_us: Option<u64>,
    /// Offer guests the weights of the models in this directory, which `ferryd store add` fills: what a guest has as well
    /// need not cross. A guest that knows a published model's hashes can read it from here.
    #[arg(long, value_name = "DIR")]
    pub model_store: Option<PathBuf>,
}

/// `ferryd store`.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Copy GGUF files into the store. Every guest may then read their weights.
    Add {
        #[command(flatten)]
        #[allow(missing_docs)]
        store: ModelStore,
        /// The models' files.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// List the models in the store.
    List(ModelStore),
    /// Read every model whole, and say which are damaged.
    Check(ModelStore),
    /// Remove models from the store.
    Remove {
        #[command(flatten)]
        #[allow(missing_docs)]
        store: ModelStore,
        /// Their names, as `list` shows them.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

/// Which store.
#[derive(Args, Clone, Debug)]
pub struct ModelStore {
    /// The store's directory.
    #[arg(long = "model-store", value_name = "DIR")]
    pub dir: PathBuf,
}

/// `ferryd front`.
#[derive(Args, Clone, Debug)]
pub struct Front {
    /// The socket is for a virtual machine's device.
    #[arg(long)]
    pub vhost_user: bool,
    /// Append the device's counters to this file whenever a session ends.
    #[arg(long)]
    pub stats: Option<PathBuf>,
    /// The supervisor.
    #[arg(long)]
    pub parent: u32,
}

/// `ferryd worker`.
#[derive(Args, Clone, Debug)]
pub struct Worker {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub ggml: Backends,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub tuning: Tuning,
    /// How to speak: the number of the transport.
    #[arg(long)]
    pub transport: u32,
    /// Number of the request that the opening answers.
    #[arg(long)]
    pub open_seq: u64,
    /// The guest's process.
    #[arg(long)]
    pub client_pid: u32,
    /// The supervisor.
    #[arg(long)]
    pub parent: u32,
}

fn octal(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err(format!("'{text}' is not a mode such as 600 or 660")),
    }
}

/// Logs to standard error; `FERRY_LOG` chooses what (default: `info`).
pub fn init_logging() {
    let filter = EnvFilter::try_from_env("FERRY_LOG")
        .unwrap_or_else(|_| EnvFilter::new("info,ggml=warn,virtio_queue=off"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal())
        .with_target(false)
        .init();
}

/// `ferryd store`.
pub fn run_store(command: &StoreCommand) -> anyhow::Result<()> {
    match command {
        StoreCommand::Add { store, files } => {
            for file in files {
                println!("{}", admin::add(&store.dir, file)?);
            }
        }
        StoreCommand::List(store) => {
            for entry in admin::list(&store.dir)? {
                entry.map_or_else(|error| println!("{error:#}"), |entry| println!("{entry}"));
            }
        }
        StoreCommand::Check(store) => check_store(&store.dir)?,
        StoreCommand::Remove { store, names } => {
            for name in names {
                admin::remove(&store.dir, name)?;
            }
        }
    }
    Ok(())
}

fn check_store(dir: &Path) -> anyhow::Result<()> {
    let mut damaged = 0;
    for name in admin::names(dir)? {
        let verdict = match admin::damaged_pieces(dir, &name) {
            Ok(0) => "whole".to_owned(),
            Ok(pieces) => format!("damaged: {pieces} pieces are not what they were"),
            Err(error) => format!("damaged: {error:#}"),
        };
        damaged += usize::from(verdict != "whole");
        println!("{name}: {verdict}");
    }
    match damaged {
        0 => Ok(()),
        n => {
            anyhow::bail!("damaged models: {n}. Guests send their weights instead; remove and add them again")
        }
    }
}

/// `ferryd devices`.
pub fn print_devices(backends: &Backends) -> anyhow::Result<()> {
    let library = Arc::new(Library::load(&backends.ggml_dir, &backends.backends)?);
    if library.devices().is_empty() {
        anyhow::bail!("the back-ends {} have no device on this machine", backends.backends.join(", "));
    }
    for at in 0..library.devices().len() {
        let device = library.describe(at);
        let (name, description) = (field_text(&device.name), field_text(&device.description));
        let mib = |bytes: u64| bytes >> 20;
        println!(
            "{name}: {description} ({} MiB, {} MiB free)",
            mib(device.memory_total),
            mib(device.memory_free)
        );
    }
    Ok(())
}
