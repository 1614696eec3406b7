//! Headers to build ggml's Vulkan back-end with: Debian 12's are too old for it, so they are Debian 13's. They are unpacked,
//! not installed. The loader is the machine's own, when it is linked and when it runs.

use anyhow::Result;
use ferry_vm::Artifacts;
use ferry_vm::debian::{Debian, Release};

const PACKAGES: [&str; 2] = ["libvulkan-dev", "spirv-headers"];

/// The flags with which CMake finds them.
pub fn headers() -> Result<Vec<String>> {
    let artifacts = Artifacts::open()?;
    let root = artifacts.entry("vulkan-headers", |into| {
        Debian::open(&artifacts, Release::Trixie)?.unpack(&PACKAGES.map(str::to_owned), into)
    })?;
    let usr = root.join("usr");
    let flag = |name: &str, path: &str| format!("-D{name}={}", usr.join(path).display());
    let loader = format!("/usr/lib/{}-linux-gnu/libvulkan.so.1", std::env::consts::ARCH);
    Ok(vec![
        flag("Vulkan_INCLUDE_DIR", "include"),
        flag("SPIRV-Headers_DIR", "share/cmake/SPIRV-Headers"),
        format!("-DVulkan_LIBRARY={loader}"),
    ])
}
