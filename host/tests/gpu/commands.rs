//! Every command, in its valid form and in its malformed ones.

use ferry_protocol::virtgpu::{CAPSET_ID, CAPSET_MAGIC, Capset};

use super::harness::*;

#[test]
fn configuration_is_padded_to_what_is_asked() {
    let ram = Ram::new();
    let guest = Guest::new(&ram);
    let device = guest.device.lock().unwrap();
    let known = [0u32, 0, 1, 1].map(u32::to_le_bytes).concat();
    assert_eq!(device.config(0, 16), known);
    assert_eq!(device.config(0, 20), [&known[..], &[0; 4]].concat());
    assert_eq!(device.config(12, 4), [1, 0, 0, 0]);
    assert_eq!(device.config(u32::MAX, 8), [0; 8]);
    assert!(device.config(0, u32::MAX).len() < 1 << 16, "an answer stays small");
}

#[test]
fn the_capability_set_tells_versions_and_limits() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    let info = guest.send(&command(0x108, 0, &[0, 0]));
    assert_eq!(info.len(), 40);
    assert_eq!([0, 24, 28, 32].map(|at| word(&info, at)), [0x1102, CAPSET_ID, 1, 64]);
    for version in [0, 1] {
        let set = guest.send(&command(0x109, 0, &[CAPSET_ID, version]));
        assert_eq!((word(&set, 0), set.len()), (0x1103, 24 + 64));
        let capset: Capset = bytemuck::pod_read_unaligned(&set[24..]);
        assert_eq!((capset.magic, capset.version_min, capset.version_max), (CAPSET_MAGIC, 1, 3));
        assert_eq!((capset.armed_fences_max, capset.fence_deadline_ms), (8, 1000));
    }
    assert_eq!(guest.code(&command(0x108, 0, &[1, 0])), BAD_PARAMETER);
    assert_eq!(guest.code(&command(0x109, 0, &[10, 0])), BAD_PARAMETER);
    assert_eq!(guest.code(&command(0x109, 0, &[CAPSET_ID, 2])), BAD_PARAMETER);
}

#[test]
fn a_console_finds_no_monitor_and_does_no_harm() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    let display = guest.send(&command(0x100, 0, &[]));
    assert_eq!((word(&display, 0), display.len()), (0x1101, 24 + 16 * 24));
    assert!(display[24..].iter().all(|byte| *byte == 0), "all modes off");
    let edid = guest.send(&command(0x10a, 0, &[0, 0]));
    assert_eq!((word(&edid, 0), edid.len(), word(&edid, 24)), (0x1104, 24 + 1032, 0));
    assert_eq!(guest.code(&command(0x10a, 0, &[1, 0])), BAD_SCANOUT);

    guest.ok(&create_2d(1));
    // A framebuffer need not be whole pages.
    guest.ok(&attach_backing(1, &[(HIGH + 12, 1000), (HIGH + 5000, 640)]));
    guest.ok(&command(0x103, 0, &[0, 0, 640, 480, 0, 1]));
    guest.ok(&command(0x105, 0, &[0, 0, 640, 480, 0, 0, 1, 0]));
    guest.ok(&command(0x104, 0, &[0, 0, 640, 480, 1, 0]));
    guest.ok(&command(0x205, 0, &[0, 0, 0, 1, 1, 1, 0, 0, 1, 0, 0, 0]));
    guest.ok(&command(0x206, 0, &[0, 0, 0, 1, 1, 1, 0, 0, 1, 0, 0, 0]));
    guest.ok(&command(0x103, 0, &[0, 0, 0, 0, 0, 0]));
    assert_eq!(guest.code(&command(0x103, 0, &[0, 0, 640, 480, 1, 1])), BAD_SCANOUT);
    assert_eq!(guest.code(&command(0x103, 0, &[0, 0, 640, 480, 0, 7])), BAD_RESOURCE);
    assert_eq!(guest.code(&command(0x104, 0, &[0, 0, 640, 480, 7, 0])), BAD_RESOURCE);
    assert_eq!(guest.code(&command(0x105, 0, &[0, 0, 640, 480, 0, 0, 7, 0])), BAD_RESOURCE);
    guest.ok(&of_resource(UNREF, 1));
}

#[test]
fn unknown_commands_are_answered() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    for unknown in [0, 1, 0xff, 0x10b, 0x10d, 0x110, 0x1ff, 0x20a, 0x300, 0x301, 0x1100, u32::MAX] {
        assert_eq!(guest.code(&command(unknown, 1, &[0; 16])), UNSPEC, "{unknown:#x}");
    }
    assert_eq!(guest.snapshot().errors, 12);
}

#[test]
fn short_commands_are_answered() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.ok(&ctx_create(1, 0));
    for len in 0..24 {
        assert_eq!(guest.code(&vec![0; len]), UNSPEC, "{len} bytes");
    }
    let commands = [
        ctx_create(2, 0),
        create_2d(9),
        create_3d(9),
        create_blob(9, 1, 4096, &[]),
        attach_backing(9, &[]),
        of_resource(UNREF, 9),
        of_resource(DETACH_BACKING, 9),
        of_context(CTX_ATTACH, 1, 9),
        of_context(CTX_DETACH, 1, 9),
        command(0x108, 0, &[0, 0]),
        command(0x109, 0, &[CAPSET_ID, 0]),
        command(0x10a, 0, &[0, 0]),
        command(0x103, 0, &[0; 6]),
        command(0x104, 0, &[0; 6]),
        command(0x105, 0, &[0; 8]),
        command(0x205, 0, &[0; 12]),
        submit(1, &[]),
    ];
    for full in commands {
        for len in 24..full.len() {
            let code = guest.code(&full[..len]);
            assert_eq!(code, BAD_PARAMETER, "{len} of {} bytes of {:#x}", full.len(), word(&full, 0));
        }
    }
}

#[test]
fn ids_are_checked_and_not_used_twice() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    assert_eq!(guest.code(&create_3d(0)), BAD_RESOURCE);
    assert_eq!(guest.code(&ctx_create(0, 0)), BAD_CONTEXT);
    guest.ok(&create_3d(5));
    for twin in [create_3d(5), create_2d(5), create_blob(5, 1, 4096, &[(HIGH, 4096)])] {
        assert_eq!(guest.code(&twin), BAD_RESOURCE);
    }
    guest.ok(&ctx_create(3, 0));
    assert_eq!(guest.code(&ctx_create(3, 0)), BAD_CONTEXT);
    for unknown in [UNREF, DETACH_BACKING] {
        assert_eq!(guest.code(&of_resource(unknown, 6)), BAD_RESOURCE);
    }
    assert_eq!(guest.code(&of_context(CTX_ATTACH, 3, 6)), BAD_RESOURCE);
    assert_eq!(guest.code(&of_context(CTX_ATTACH, 4, 5)), BAD_CONTEXT);
    assert_eq!(guest.code(&of_context(CTX_DETACH, 3, 5)), BAD_RESOURCE, "never attached");
    assert_eq!(guest.code(&command(0x201, 4, &[])), BAD_CONTEXT);
    assert_eq!(guest.code(&submit(4, &[])), BAD_CONTEXT);
    // Freed ids may come again.
    guest.ok(&of_resource(UNREF, 5));
    guest.ok(&create_3d(5));
    guest.ok(&command(0x201, 3, &[]));
    guest.ok(&ctx_create(3, 0));
}

#[test]
fn blobs_of_guest_memory_come_with_their_pages() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.ok(&ctx_create(1, CAPSET_ID));
    guest.ok(&create_blob(1, 1, 8192, &[(HIGH, 4096), (HIGH + 8192, 4096)]));
    guest.ok(&of_context(CTX_ATTACH, 1, 1));
    guest.ok(&open(1, 1));
    assert_eq!(guest.workers().bytes(), 8192);
    assert_ne!(guest.code(&attach_backing(1, &[(HIGH, 4096)])), OK, "its pages stay");
    assert_ne!(guest.code(&of_resource(DETACH_BACKING, 1)), OK, "its pages stay");
    for (memory, size, list) in [
        (2, 4096, vec![]),
        (3, 4096, vec![(HIGH, 4096)]),
        (0, 4096, vec![(HIGH, 4096)]),
        (1, 0, vec![(HIGH, 4096)]),
        (1, 4097, vec![(HIGH, 4096)]),
        (1, u64::MAX, vec![(HIGH, 4096)]),
    ] {
        assert_eq!(guest.code(&create_blob(2, memory, size, &list)), BAD_PARAMETER, "{memory} {size}");
    }
    for host_visible in [0x208, 0x209] {
        assert_eq!(guest.code(&command(host_visible, 0, &[1, 0, 0, 0])), BAD_PARAMETER);
    }
    guest.ok(&of_resource(UNREF, 1));
    assert_eq!(guest.workers().bytes(), 0);
}

#[test]
fn tier_two_commands_are_unknown_without_their_features() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.device.lock().unwrap().set_features(1 << 32 | 1);
    assert_eq!(guest.code(&create_blob(1, 1, 4096, &[(HIGH, 4096)])), UNSPEC);
    guest.ok(&ctx_create(1, 4));
}

#[test]
fn a_context_of_another_capset_is_refused() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    assert_eq!(guest.code(&ctx_create(1, 4)), BAD_PARAMETER);
    guest.ok(&ctx_create(1, CAPSET_ID));
    guest.ok(&ctx_create(2, 0));
}

#[test]
fn an_answer_names_the_fence_and_its_timeline() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.ok(&ctx_create(7, CAPSET_ID));
    let ours = submit(7, &[]);
    for (flags, fence, ring) in [(0, 0, 0), (1, 9, 0), (3, u64::MAX, 63)] {
        let mut bytes = fenced(0x207, flags, fence, 7, ring, &[]);
        bytes.extend(&ours[24..]);
        let answer = guest.send(&bytes);
        assert_eq!(answer[4..], bytes[4..24], "flags, fence, context and ring come back");
    }
    let noisy = guest.send(&fenced(0x100, 0xffff_fff0, 5, 7, 3, &[]));
    assert_eq!(word(&noisy, 4), 0, "unknown flags do not");
}

#[test]
fn numbers_of_everything_are_limited() {
    let ram = Ram::new();
    let limits = ferry_host::gpu::Limits { contexts: 2, resources: 3, extents: 4, ..Default::default() };
    let mut guest = Guest::with_limits(&ram, limits);
    guest.ok(&ctx_create(1, 0));
    guest.ok(&ctx_create(2, 0));
    assert_eq!(guest.code(&ctx_create(3, 0)), OUT_OF_MEMORY);
    for id in 1..=3 {
        guest.ok(&create_3d(id));
    }
    assert_eq!(guest.code(&create_3d(4)), OUT_OF_MEMORY);
    let apart = |first: u64, count: u64| -> Vec<(u64, u32)> {
        (0..count).map(|page| (HIGH + (first + 2 * page) * PAGE, PAGE as u32)).collect()
    };
    guest.ok(&attach_backing(1, &apart(0, 3)));
    assert_eq!(guest.code(&attach_backing(2, &apart(10, 2))), OUT_OF_MEMORY);
    guest.ok(&attach_backing(2, &apart(10, 1)));
    assert_eq!(guest.code(&attach_backing(3, &apart(20, 1))), OUT_OF_MEMORY);
    // What is freed can be had again.
    guest.ok(&of_resource(DETACH_BACKING, 1));
    guest.ok(&attach_backing(3, &apart(20, 3)));
    guest.ok(&command(0x201, 1, &[]));
    guest.ok(&ctx_create(3, 0));
}
