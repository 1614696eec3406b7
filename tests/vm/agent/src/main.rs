//! The agent in a test's virtual machine: does what the harness asks for over a virtio-serial port.

#[cfg(target_os = "linux")]
mod serve;

#[cfg(target_os = "linux")]
fn main() -> anyhow::Result<()> {
    serve::run()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("ferry-vm-agent runs in a Linux guest only");
    std::process::exit(1);
}
