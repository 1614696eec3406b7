//! Which Mach-O programs `ferry shim run` takes. The files are laid out here byte by byte: a header, one load command,
//! a signature.
#![cfg(target_os = "linux")]

use ferry_shim_fixture::{Fixture, shim};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

const ARM64: u32 = 0x0100_000c;
const X86_64: u32 = 0x0100_0007;
const ARM64E: u32 = 0x8000_0002;
const HARDENED: u32 = 0x1_0000;
const ALLOW_VARIABLES: &str = "com.apple.security.cs.allow-dyld-environment-variables";
const ALLOW_LIBRARIES: &str = "com.apple.security.cs.disable-library-validation";
/// What a program that passed is told next: the profile does not know this machine.
const PASSED: &str = "was never measured";

/// What `ferry shim run` says of a program with these bytes; it never runs it.
fn judge(name: &str, bytes: &[u8], mode: u32) -> (Option<i32>, String) {
    let path = Fixture::get().path(name);
    std::fs::write(&path, bytes).expect("written");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("executable");
    let arguments = ["shim", "run", "--app", "llama.cpp@b1", "--host-chip", "Apple M1", "--", &path];
    let mut ferry = Command::new(env!("CARGO_BIN_EXE_ferry"));
    let output = ferry.args(arguments).env("FERRY_SHIM_LIBRARY", shim()).output().expect("ferry starts");
    (output.status.code(), String::from_utf8(output.stderr).expect("UTF-8"))
}

#[track_caller]
fn assert_says(name: &str, bytes: &[u8], says: &str) {
    let (code, stderr) = judge(name, bytes, 0o755);
    assert_eq!(code, Some(78), "{stderr}");
    assert!(stderr.contains(says), "{stderr}");
}

fn little(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn big(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
}

/// A 64-bit Mach-O program with these load commands.
fn program(cpu: u32, subtype: u32, commands: &[Vec<u8>]) -> Vec<u8> {
    let size = u32::try_from(commands.concat().len()).expect("small");
    let count = u32::try_from(commands.len()).expect("few");
    let header = little(&[0xfeed_facf, cpu, subtype, 2, count, size, 0, 0]);
    [header, commands.concat()].concat()
}

/// An arm64 program with a signature of these flags and, perhaps, entitlements.
fn signed(flags: u32, entitlements: Option<&str>) -> Vec<u8> {
    let directory = big(&[0xfade_0c02, 44, 0x2_0400, flags, 0, 0, 0, 0, 0, 0, 0]);
    let xml = entitlements.unwrap_or_default().as_bytes();
    let mut blobs = vec![directory];
    if entitlements.is_some() {
        blobs
            .push([big(&[0xfade_7171, u32::try_from(xml.len()).expect("small") + 8]), xml.to_vec()].concat());
    }
    let count = u32::try_from(blobs.len()).expect("few");
    let mut offset = 12 + 8 * count;
    let mut index = Vec::new();
    for (kind, blob) in blobs.iter().enumerate() {
        index.extend([kind as u32 * 5, offset]);
        offset += u32::try_from(blob.len()).expect("small");
    }
    let signature = [big(&[0xfade_0cc0, offset, count]), big(&index), blobs.concat()].concat();
    let command = little(&[0x1d, 16, 48, u32::try_from(signature.len()).expect("small")]);
    [program(ARM64, 0, &[command]), signature].concat()
}

fn entitlements(keys: &[&str]) -> String {
    let entries: String = keys.iter().map(|key| format!("<key>{key}</key><true/>")).collect();
    format!("<plist version=\"1.0\"><dict>{entries}</dict></plist>")
}

#[test]
fn a_plain_program_passes() {
    assert_says("plain", &program(ARM64, 0, &[]), PASSED);
    assert_says("adhoc", &signed(2, None), PASSED);
}

#[test]
fn a_hardened_program_passes_only_with_both_entitlements() {
    assert_says("hardened", &signed(HARDENED, None), ALLOW_VARIABLES);
    assert_says(
        "hardened_other",
        &signed(HARDENED, Some(&entitlements(&["com.apple.other"]))),
        "ignores inserted libraries",
    );
    assert_says("hardened_one", &signed(HARDENED, Some(&entitlements(&[ALLOW_VARIABLES]))), ALLOW_LIBRARIES);
    let both = entitlements(&[ALLOW_VARIABLES, ALLOW_LIBRARIES]);
    assert_says("hardened_both", &signed(HARDENED, Some(&both)), PASSED);
    assert_says(
        "hardened_false",
        &signed(HARDENED, Some(&both.replace("<true/>", "<false/>"))),
        ALLOW_VARIABLES,
    );
}

#[test]
fn a_program_of_another_architecture_is_refused() {
    assert_says("x86_64", &program(X86_64, 3, &[]), "not an arm64 program");
    assert_says("arm64e", &program(ARM64, ARM64E, &[]), "arm64e program is ended");
    assert_says("fat_x86_64", &fat(&[(X86_64, 3)]), "no arm64 part");
    assert_says("fat_arm64e", &fat(&[(X86_64, 3), (ARM64, ARM64E)]), "no arm64 part");
    assert_says("fat_both", &fat(&[(X86_64, 3), (ARM64, 0)]), PASSED);
    assert_says("object", &little(&[0xfeed_face, 12, 0, 2, 0, 0, 0]), "no 64-bit program");
}

fn fat(slices: &[(u32, u32)]) -> Vec<u8> {
    const START: usize = 4096;
    let mut file = big(&[0xcafe_babe, u32::try_from(slices.len()).expect("few")]);
    for (index, (cpu, subtype)) in slices.iter().enumerate() {
        let length = u32::try_from(program(*cpu, *subtype, &[]).len()).expect("small");
        let offset = u32::try_from(START * (index + 1)).expect("small");
        file.extend(big(&[*cpu, *subtype, offset, length, 12]));
    }
    for (index, (cpu, subtype)) in slices.iter().enumerate() {
        file.resize(START * (index + 1), 0);
        file.extend(program(*cpu, *subtype, &[]));
    }
    file
}

#[test]
fn programs_that_restrict_themselves_are_refused() {
    let mut segment = little(&[0x19, 72]);
    segment.extend(b"__RESTRICT\0\0\0\0\0\0");
    segment.resize(72, 0);
    assert_says("restrict", &program(ARM64, 0, &[segment]), "__RESTRICT");
    let (code, stderr) = judge("setuid", &program(ARM64, 0, &[]), 0o4755);
    assert_eq!(code, Some(78));
    assert!(stderr.contains("setuid"), "{stderr}");
}

/// Whatever is cut off or damaged ends in an error, never in a panic or a pass by accident.
#[test]
fn malformed_programs_are_refused() {
    let whole = signed(HARDENED, Some(&entitlements(&[ALLOW_VARIABLES, ALLOW_LIBRARIES])));
    for length in (0..whole.len()).step_by(13) {
        let (code, stderr) = judge("cut", &whole[..length], 0o755);
        assert_eq!(code, Some(78), "cut at {length}: {stderr}");
        assert!(!stderr.contains(PASSED), "cut at {length}: {stderr}");
    }
    for (at, value) in
        [(16, 0xff), (20, 0xff), (36, 0), (40, 0xff), (44, 0xff), (48, 0), (56, 0xff), (66, 0xff), (71, 0xff)]
    {
        let mut damaged = whole.clone();
        damaged[at] = value;
        let (code, stderr) = judge("damaged", &damaged, 0o755);
        assert_eq!(code, Some(78), "{at}: {stderr}");
        assert!(!stderr.contains("panicked"), "{at}: {stderr}");
    }
    assert_says("empty", b"", "no 64-bit program");
    assert_says("text", b"hello", "no 64-bit program");
}
