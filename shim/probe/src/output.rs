//! What the probe prints: the reference probe's fields first, under its names.

use crate::ffi::Device;
use crate::honour::{Honoured, Outcome};
use anyhow::{Context, Result};
use ferry_shim_contract::{BUILD_LENGTH_MAX, guest_build};
use serde::Serialize;

/// Apple families that exist, to find the highest one that is claimed.
const APPLE_KNOWN: std::ops::RangeInclusive<u64> = 1001..=1010;
/// `MTLGPUFamilyMetal3`, which must stay what the device says of it.
const METAL3: u64 = 5001;

/// What a device says of itself.
#[derive(Debug, Serialize)]
pub struct Said {
    /// Its name.
    pub device: String,
    /// The family that was asked for.
    pub family: u64,
    /// Whether it says yes to that.
    pub supports_family: bool,
    /// Its threadgroup memory, in bytes.
    pub max_threadgroup_memory: u64,
    /// Its Objective-C class.
    pub device_class: String,
    /// The highest Apple family that it says yes to.
    pub apple_family_max: Option<u64>,
    /// Whether it says yes to Metal3.
    pub supports_metal3: bool,
    /// Version of the shim in this process.
    pub shim: Option<u64>,
    /// Build of the guest's operating system.
    pub guest_build: String,
}

impl Said {
    /// Asks a device.
    pub fn ask(device: &Device, family: u64) -> Result<Self> {
        let mut build = [0; BUILD_LENGTH_MAX];
        let build = guest_build(&mut build).context("the kernel does not say its build")?;
        let mut apple_family_max = None;
        for known in APPLE_KNOWN {
            if device.supports_family(known)? {
                apple_family_max = Some(known);
            }
        }
        Ok(Self {
            device: device.name()?,
            family,
            supports_family: device.supports_family(family)?,
            max_threadgroup_memory: device.max_threadgroup_memory()?,
            device_class: device.class_name(),
            apple_family_max,
            supports_metal3: device.supports_family(METAL3)?,
            shim: device.shim_version(),
            guest_build: String::from_utf8_lossy(build).into_owned(),
        })
    }
}

/// Everything, as JSON.
#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    said: &'a Said,
    #[serde(flatten)]
    honoured: Option<&'a Honoured>,
}

/// Prints one field a line, or one JSON object.
pub fn print(said: &Said, honoured: Option<&Honoured>, json: bool) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string(&Whole { said, honoured })?);
        return Ok(());
    }
    println!("device={}", said.device);
    println!("family={}", said.family);
    println!("supports_family={}", said.supports_family);
    println!("max_threadgroup_memory={}", said.max_threadgroup_memory);
    println!("device_class={}", said.device_class);
    println!("apple_family_max={}", said.apple_family_max.map_or("none".into(), |family| family.to_string()));
    println!("supports_metal3={}", said.supports_metal3);
    println!("shim={}", said.shim.map_or("none".into(), |version| version.to_string()));
    println!("guest_build={}", said.guest_build);
    if let Some(honoured) = honoured {
        print_honoured(honoured);
    }
    Ok(())
}

fn print_honoured(honoured: &Honoured) {
    for result in &honoured.checks {
        let (word, detail) = match &result.outcome {
            Outcome::Honoured => ("honoured", None),
            Outcome::NotHonoured(detail) => ("not honoured", Some(detail)),
            Outcome::Crashed(detail) => ("crashed", Some(detail)),
            Outcome::TimedOut(detail) => ("timed out", Some(detail)),
        };
        let detail = detail.map_or(String::new(), |detail| format!(": {detail}"));
        println!("check.{}={word}{detail}", result.check);
    }
    if let Some(path) = &honoured.token {
        println!("token={}", path.display());
    }
    if let Some(reason) = &honoured.no_token {
        println!("token=none: {reason}");
    }
}
