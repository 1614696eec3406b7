//! The virtio-gpu device in a guest, as its kernel sees it.

#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ferry_protocol::virtgpu::{CAPSET_ID, CAPSET_MAGIC, Capset};
use ferry_vm::{Artifacts, GpuDevice, Guarded, KernelVersion, Vm, VmBuilder, cargo};

/// A device without a worker behind it, on a socket of its own.
struct Device {
    socket: PathBuf,
    _process: Guarded,
    _dir: tempfile::TempDir,
}

impl Device {
    fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let socket = dir.path().join("gpu.sock");
        let mut command = Command::new(cargo::example("ferry-host", "gpu_loopback")?);
        command.arg(&socket).stdin(Stdio::null()).stdout(Stdio::null());
        let process = Guarded::spawn(command)?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while !socket.exists() {
            ensure!(process.status().is_none() && Instant::now() < deadline, "the device does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Self { socket, _process: process, _dir: dir })
    }

    fn guest(&self, kernel: KernelVersion) -> Result<VmBuilder> {
        let probe = cargo::binary("ferry-vm-agent", "virtgpu-probe")?;
        let builder = Vm::builder().kernel(kernel).memory_mib(512).gpu(&self.socket);
        Ok(builder.file(probe, "/bin/virtgpu-probe"))
    }
}

fn probe(vm: &Vm) -> Result<serde_json::Value> {
    let (id, bytes) = (CAPSET_ID.to_string(), size_of::<Capset>().to_string());
    let text = vm.command(["virtgpu-probe", "/dev/dri/renderD128", &id, &bytes]).text()?;
    Ok(serde_json::from_str(&text)?)
}

fn check_device(vm: &Vm, device: GpuDevice) -> Result<()> {
    let found = probe(vm)?;
    let everything = i32::from(device == GpuDevice::Generic);
    ensure!(found["resource_blob"] == everything && found["context_init"] == everything, "{found}");
    // A fence is a wake-up; it is nobody else's only where each ring of a context has a timeline.
    let held_signalled = device == GpuDevice::VhostUserGpu;
    let fences = serde_json::json!({ "later_signalled": true, "held_signalled": held_signalled });
    ensure!(found["fences"] == fences, "{found}");
    ensure!(found["3d_features"] == 1, "{found}");
    let body: Vec<u8> = serde_json::from_value(found["capset"].clone()).context("no capset was read")?;
    let capset: Capset = bytemuck::try_pod_read_unaligned(&body).map_err(anyhow::Error::msg)?;
    ensure!(capset.magic == CAPSET_MAGIC && capset.version_min <= capset.version_max, "{capset:?}");
    Ok(())
}

/// On one device and, in the next machine on the same socket, on the other.
fn appears_and_survives_a_reboot(kernel: KernelVersion) -> Result<()> {
    let back_end = Device::start()?;
    for device in GpuDevice::ALL {
        let vm = back_end.guest(kernel)?.gpu_device(device).boot(&Artifacts::open()?)?;
        check_device(&vm, device).with_context(|| format!("{device:?}"))?;
        vm.reboot()?;
        check_device(&vm, device).with_context(|| format!("{device:?} after a reboot"))?;
        vm.power_off()?;
    }
    Ok(())
}

#[test]
fn device_on_kernel_6_1() -> Result<()> {
    appears_and_survives_a_reboot(KernelVersion::V6_1)
}

#[test]
fn device_on_kernel_6_12() -> Result<()> {
    appears_and_survives_a_reboot(KernelVersion::V6_12)
}

#[test]
fn no_render_node_without_the_device() -> Result<()> {
    let vm = Vm::builder().memory_mib(512).boot(&Artifacts::open()?)?;
    ensure!(vm.pull("/dev/dri/renderD128").is_err(), "a render node without a device");
    vm.power_off()
}

#[test]
fn memory_out_of_reach_leaves_the_guest_alive() -> Result<()> {
    let device = Device::start()?;
    let vm = device.guest(KernelVersion::default())?.shared_memory(false).boot(&Artifacts::open()?)?;
    let alive = vm.command(["echo", "alive"]).text()?;
    ensure!(alive == "alive\n", "{alive}");
    ensure!(probe(&vm).is_err(), "the device works without share=on");
    let kernel_log = vm.command(["dmesg"]).text()?;
    ensure!(kernel_log.contains("timed out waiting for cap set"), "{kernel_log}");
    ensure!(Path::new(&format!("/proc/{}", vm.process().pid())).exists(), "QEMU is gone");
    Ok(())
}
