//! Boots stock Linux kernels under stock QEMU and runs commands in them: the harness of the VM tests.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use ferry_vm::{Artifacts, KernelVersion, Vm};
//!
//! let artifacts = Artifacts::open()?;
//! let vm = Vm::builder().kernel(KernelVersion::V6_12).memory_mib(1024).boot(&artifacts)?;
//! println!("{}", vm.command(["uname", "-r"]).output()?.stdout_text());
//! vm.power_off()?;
//! # Ok(()) }
//! ```
//!
//! Kernels, busybox and QEMU come as packages from the Debian mirror that the machine's apt knows, unpacked
//! below the artifacts folder: nothing is installed and no root is needed. The guest boots from an initramfs that is
//! built here: busybox, the kernel modules it needs, the shared libraries of the programs it will run, and a
//! small agent that the harness talks to over a virtio-serial port. Folders of the host appear in the guest
//! read-only *under the same path*, so that run paths and configuration mean the same on both sides.

#![cfg(target_os = "linux")]

mod agent;
mod artifacts;
pub mod cargo;
mod command;
mod cpio;
pub mod debian;
pub mod demo;
mod elf;
mod initramfs;
pub mod kernel;
mod modules;
mod process;
mod qemu;
mod sys;
mod vm;

pub use agent::Agent;
pub use artifacts::Artifacts;
pub use command::{GuestCommand, GuestProcess, Output};
pub use cpio::Cpio;
pub use ferry_vm_agent::Exit;
pub use initramfs::Initramfs;
pub use kernel::{Kernel, KernelVersion};
pub use process::Guarded;
pub use qemu::{GpuDevice, Qemu};
pub use vm::{Vm, VmBuilder};
