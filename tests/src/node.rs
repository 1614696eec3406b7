//! node-llama-cpp as a guest: llama.cpp in the process of another language's runtime.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::artifacts::NodeBuild;
use crate::llama::Device;

/// `complete.mjs` for so many tokens, on the CPU or on the devices that llama.cpp finds.
pub fn complete(build: &NodeBuild, model: &Path, device: &Device, tokens: u32) -> Result<Command> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join("complete.mjs");
    let mut command = Command::new("node");
    device.environment(&mut command)?.current_dir(&build.client);
    let layers = if matches!(device, Device::Cpu) { "0" } else { "99" };
    command.arg(program).arg(model).args([layers, &tokens.to_string()]).args(&build.gpu);
    Ok(command)
}
