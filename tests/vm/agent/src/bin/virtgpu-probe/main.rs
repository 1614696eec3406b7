//! Says what the kernel of this machine knows of a virtio-gpu device, as one JSON object; with a capability set, which
//! should be Ferry's, also what becomes of fences there.
//!
//!     virtgpu-probe [/dev/dri/renderD128] [CAPSET_ID CAPSET_BYTES]

#[cfg(target_os = "linux")]
mod fences;
#[cfg(target_os = "linux")]
mod uapi;

#[cfg(target_os = "linux")]
fn main() -> anyhow::Result<()> {
    use anyhow::Context;
    use std::fs::File;

    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or_else(|| "/dev/dri/renderD128".into());
    let capset = match (arguments.next(), arguments.next()) {
        (Some(id), Some(bytes)) => Some((id.parse()?, bytes.parse()?)),
        _ => None,
    };
    let node =
        File::options().read(true).write(true).open(&path).with_context(|| format!("cannot open {path}"))?;
    let mut found = serde_json::Map::new();
    for (name, number) in uapi::PARAMETERS {
        // A kernel that does not know a parameter says so; that is an answer too.
        let value = uapi::parameter(&node, number).ok();
        found.insert(name.into(), value.into());
    }
    if let Some((id, bytes)) = capset {
        let body = uapi::capset(&node, id, bytes).with_context(|| format!("cannot read capset {id}"))?;
        found.insert("capset".into(), body.into());
        let can = |name: &str| found.get(name).is_some_and(|value| value == 1);
        let (blobs, timelines) = (can("resource_blob"), can("context_init").then_some(id));
        found.insert("fences".into(), fences::look(&path, blobs, timelines)?);
    }
    println!("{}", serde_json::Value::Object(found));
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("virtgpu-probe runs on Linux only");
    std::process::exit(1);
}
