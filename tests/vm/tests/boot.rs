//! The harness itself, on real QEMU and both kernels.

#![cfg(target_os = "linux")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ferry_vm::{Artifacts, Exit, KernelVersion, Vm};
use nix::sys::signal::Signal;

/// A small guest of one kernel.
fn boot(kernel: KernelVersion) -> Result<Vm> {
    let start = Instant::now();
    let vm = Vm::builder().kernel(kernel).memory_mib(512).boot(&Artifacts::open()?)?;
    println!("kernel {kernel} was ready after {:.1?}", start.elapsed());
    Ok(vm)
}

/// What every kernel must do: one body, so that a new kernel is one line.
fn walk_through(kernel: KernelVersion) -> Result<()> {
    let vm = boot(kernel)?;
    let release = vm.command(["uname", "-r"]).text()?;
    ensure!(release.starts_with(&format!("{kernel}.")), "asked for {kernel}, got {release}");
    commands(&vm)?;
    files(&vm)?;
    signals(&vm)?;

    let boot_id = vm.pull("/proc/sys/kernel/random/boot_id")?;
    vm.push(b"x", "/tmp/gone", 0o600)?;
    vm.reboot()?;
    ensure!(vm.pull("/proc/sys/kernel/random/boot_id")? != boot_id, "the same boot after a reboot");
    ensure!(vm.pull("/tmp/gone").is_err(), "memory survived a reboot");
    commands(&vm)?;

    let qemu = format!("/proc/{}", vm.process().pid());
    vm.power_off()?;
    ensure!(!Path::new(&qemu).exists(), "QEMU outlived the guest");
    Ok(())
}

fn commands(vm: &Vm) -> Result<()> {
    let output = vm.shell("echo out; echo err >&2; exit 7").output()?;
    ensure!(output.exit == Exit::Code(7), "{output:?}");
    ensure!(output.stdout == b"out\n" && output.stderr == b"err\n", "{output:?}");

    let output = vm.command(["wc", "-c"]).stdin(&vec![b'x'; 100_000]).text()?;
    ensure!(output.trim() == "100000", "wc counted {output}");

    let output = vm.shell("echo $PLACE; pwd").env("PLACE", "a guest").current_dir("/tmp").text()?;
    ensure!(output == "a guest\n/tmp\n", "{output}");

    let user = vm.shell("id -u; id -g; cat /dev/ttyS0").user(1000).output()?;
    ensure!(user.stdout == b"1000\n1000\n" && !user.exit.success(), "{user:?}");

    let error = vm.command(["no-such-program"]).output().unwrap_err();
    ensure!(error.to_string().contains("cannot start no-such-program"), "{error:#}");
    Ok(())
}

fn files(vm: &Vm) -> Result<()> {
    let content: Vec<u8> = (0..=255).cycle().take(300_001).collect();
    vm.push(&content, "/tmp/file", 0o640)?;
    ensure!(vm.pull("/tmp/file")? == content, "a file came back changed");
    let mode = vm.command(["stat", "-c", "%a", "/tmp/file"]).text()?;
    ensure!(mode.trim() == "640", "mode {mode}");
    let error = vm.pull("/no/such/file").unwrap_err();
    ensure!(format!("{error:#}").contains("/no/such/file"), "{error:#}");
    Ok(())
}

fn signals(vm: &Vm) -> Result<()> {
    let mut process = vm.shell("echo ready; sleep 1000").spawn()?;
    process.wait_for("ready")?;
    process.signal(Signal::SIGTERM)?;
    let output = process.wait()?;
    ensure!(output.exit == Exit::Signal(15), "{output:?}");

    let start = Instant::now();
    let error = vm.shell("echo so far; sleep 1000").timeout(Duration::from_secs(2)).output().unwrap_err();
    let error = format!("{error:#}");
    ensure!(error.contains("took too long") && error.contains("so far"), "{error}");
    ensure!(start.elapsed() < Duration::from_secs(20), "a time limit of 2 s took {:?}", start.elapsed());
    let sleepers = vm.shell("pidof sleep; true").text()?;
    ensure!(sleepers.trim().is_empty(), "what took too long still runs: {sleepers}");
    Ok(())
}

#[test]
fn kernel_6_1() -> Result<()> {
    walk_through(KernelVersion::V6_1)
}

#[test]
fn kernel_6_12() -> Result<()> {
    walk_through(KernelVersion::V6_12)
}

/// Folders, disks, programs of the host, a second processor and the network, in one boot.
#[test]
fn what_a_machine_can_be_given() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (folder, disk) = (dir.path().join("a folder"), dir.path().join("disk"));
    fs::create_dir(&folder)?;
    fs::write(folder.join("file"), "of the host\n")?;
    fs::copy("/usr/bin/sort", folder.join("sort"))?;
    fs::write(&disk, [7; 1536])?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let builder =
        Vm::builder().memory_mib(512).cpus(2).network().share_programs(&folder).disk(&disk, "/mnt/disk");
    let vm = builder.boot(&Artifacts::open()?)?;
    let check = || {
        let folder = folder.to_str().context("a folder with a name that is text")?;
        let text = vm.command(["./sort", "-r", "file", "-"]).current_dir(folder).stdin(b"z\na\n").text()?;
        ensure!(text == "z\nof the host\na\n", "{text}");
        let written = vm.shell("echo x > file").current_dir(folder).output()?;
        ensure!(!written.exit.success(), "the guest wrote into the host's folder");
        ensure!(vm.pull("/mnt/disk")? == [7; 1536], "another disk");
        ensure!(vm.command(["nproc"]).text()? == "2\n", "not two processors");
        Ok(())
    };
    check()?;
    vm.reboot()?;
    check()?;

    let port = listener.local_addr()?.port().to_string();
    let guest = vm.shell("echo from the guest | nc 10.0.2.2 $PORT").env("PORT", &port).spawn()?;
    let mut line = String::new();
    BufReader::new(listener.accept()?.0).read_line(&mut line)?;
    ensure!(line == "from the guest\n", "{line}");
    drop(guest);
    vm.power_off()
}

#[test]
fn a_guest_that_cannot_boot_says_why() -> Result<()> {
    let start = Instant::now();
    let builder = Vm::builder().memory_mib(512).kernel_arguments("rdinit=/no/such/init");
    let error = format!("{:#}", builder.boot(&Artifacts::open()?).unwrap_err());
    ensure!(error.contains("kernel panicked") && error.contains("end of the guest's console"), "{error}");
    ensure!(start.elapsed() < Duration::from_secs(90), "it took {:?} to notice", start.elapsed());
    Ok(())
}

#[test]
fn a_wrong_option_shows_what_qemu_says() -> Result<()> {
    let builder = Vm::builder().memory_mib(512).qemu_arguments(["-device", "no-such-device"]);
    let error = format!("{:#}", builder.boot(&Artifacts::open()?).unwrap_err());
    ensure!(error.contains("no-such-device"), "{error}");
    Ok(())
}

#[test]
fn a_command_says_when_the_guest_goes_down() -> Result<()> {
    let vm = boot(KernelVersion::default())?;
    let mut process = vm.shell("echo ready; sleep 1000").spawn()?;
    process.wait_for("ready")?;
    vm.process().signal(Signal::SIGKILL);
    let error = format!("{:#}", process.wait().unwrap_err());
    ensure!(error.contains("went down") && error.contains("ready"), "{error}");
    Ok(())
}
