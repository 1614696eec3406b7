//! The ioctls that the plug-in speaks to the guest's kernel, against the kernel's own header.

use std::fmt::Write;
use std::mem::offset_of;
use std::process::Command;

use ferry_vm::{Artifacts, kernel};

// The plug-in is a library for C programs and exports nothing to Rust: its file is compiled here a second time.
#[path = "../../../guest/src/virtgpu/uapi.rs"]
#[allow(dead_code)]
mod uapi;

use uapi::{ExecBuffer, GemClose, GetCaps, Map, ResourceCreate, Wait};

macro_rules! places {
    ($($c:literal, $rust:ty: $($field:ident),*;)*) => {
        vec![$($((
            format!("offsetof(struct {}, {})", $c, stringify!($field)),
            offset_of!($rust, $field),
        )),*),*]
    };
}

#[test]
fn the_plug_ins_ioctls_are_the_kernels() {
    let mut places = places! {
        "drm_virtgpu_map", Map: offset, handle, pad;
        "drm_virtgpu_execbuffer", ExecBuffer: flags, size, command, bo_handles, num_bo_handles, fence_fd,
            ring_idx;
        "drm_virtgpu_resource_create", ResourceCreate: target, format, bind, width, height, depth, array_size, last_level,
            nr_samples, flags, bo_handle, res_handle, size, stride;
        "drm_virtgpu_3d_wait", Wait: handle, flags;
        "drm_virtgpu_get_caps", GetCaps: cap_set_id, cap_set_ver, addr, size, pad;
        "drm_gem_close", GemClose: handle, pad;
    };
    for (c, size) in [
        ("drm_virtgpu_map", size_of::<Map>()),
        ("drm_virtgpu_resource_create", size_of::<ResourceCreate>()),
        ("drm_virtgpu_3d_wait", size_of::<Wait>()),
        ("drm_virtgpu_get_caps", size_of::<GetCaps>()),
        ("drm_gem_close", size_of::<GemClose>()),
    ] {
        places.push((format!("sizeof(struct {c})"), size));
    }
    places.push(("DRM_IOCTL_GEM_CLOSE & 0xff".into(), 9));
    places.push(("VIRTGPU_EXECBUF_FENCE_FD_OUT".into(), uapi::FENCE_FD_OUT as usize));
    for (number, ours) in
        [("MAP", 1), ("EXECBUFFER", 2), ("RESOURCE_CREATE", 4), ("WAIT", 8), ("GET_CAPS", 9)]
    {
        places.push((format!("DRM_VIRTGPU_{number}"), ours));
    }

    let mut source = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <drm/virtgpu_drm.h>\nint main(void) {\n",
    );
    for (expression, _) in &places {
        writeln!(source, "    printf(\"%zu\\n\", (size_t)({expression}));").unwrap();
    }
    source.push_str("}\n");
    let dir = tempfile::tempdir().unwrap();
    let (file, program) = (dir.path().join("uapi.c"), dir.path().join("uapi"));
    std::fs::write(&file, source).unwrap();
    let headers = kernel::headers(&Artifacts::open().unwrap()).unwrap();
    let compiled =
        Command::new("cc").arg("-I").arg(headers).arg("-o").arg(&program).arg(&file).status().unwrap();
    assert!(compiled.success());
    let printed = String::from_utf8(Command::new(&program).output().unwrap().stdout).unwrap();
    let theirs: Vec<usize> = printed.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(theirs.len(), places.len());
    for ((expression, ours), theirs) in places.iter().zip(theirs) {
        assert_eq!(*ours, theirs, "{expression}");
    }
}
